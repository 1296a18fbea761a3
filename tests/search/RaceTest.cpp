#include <gtest/gtest.h>

#include "fakes/FakeServices.h"
#include "search/Race.h"
#include "search/SearchProblems.h"

namespace ktune::search {
namespace {

using schedule::PlanGenome;
using schedule::Problem;
using schedule::Target;
using testing::FakeCompiler;
using testing::FakeMeasurer;
using testing::FakeWorld;

/// A worker with the default as id 0 and N random candidates as ids 1..N, of the given true times relative to the
/// default's 50 us.
struct Track {
  Track(std::vector<double> ratiosIn, FakeWorld worldIn, op::Graph graph = testing::normGraph())
      : ratios(std::move(ratiosIn)), world(std::move(worldIn)), problem(testing::problemOf(graph)), measurer(world) {
    world.costNs = [this](const PlanGenome& genome, const std::vector<int64_t>&) {
      return 5e4 * factor.at(genome.text());
    };
    Random random(77);
    genomes.push_back(schedule::defaultGenome(problem, target));
    factor[genomes[0].text()] = 1;
    while (genomes.size() <= ratios.size()) {
      PlanGenome genome = schedule::randomGenome(problem, target, random);
      if (factor.contains(genome.text())) continue;
      factor[genome.text()] = ratios[genomes.size() - 1];
      genomes.push_back(genome);
    }
    load(1);
  }
  void load(uint64_t seed) {
    EXPECT_TRUE(measurer.open(problem, {.seed = seed}, {}).has_value());
    FakeCompiler compiler(world);
    for (size_t i = 0; i < genomes.size(); ++i)
      EXPECT_TRUE(measurer.load(static_cast<int64_t>(i), compiler.planOf(problem, genomes[i]), {}).has_value());
  }
  [[nodiscard]] RaceOptions options(uint64_t seed) const {
    RaceOptions o;
    o.points = static_cast<int>(op::scoringPoints(problem.bucket).size());
    o.seed = seed;
    return o;
  }
  [[nodiscard]] std::vector<RaceEntry> entries() const {
    std::vector<RaceEntry> all(ratios.size());
    for (size_t i = 0; i < all.size(); ++i) all[i].id = static_cast<int64_t>(i) + 1;
    return all;
  }

  std::vector<double> ratios;
  FakeWorld world;
  Target target = schedule::fakeTarget();
  Problem problem;
  FakeMeasurer measurer;
  std::vector<PlanGenome> genomes;
  std::map<std::string, double> factor;
  Counters counters;
};

/// Simulated races of the statistical tests; a sanitizer looks for other faults, and needs fewer.
#ifdef KTUNE_SANITIZED
constexpr int kManyRuns = 40;
#else
constexpr int kManyRuns = 320;
#endif

FakeWorld noisyWorld() {
  FakeWorld world;
  world.noise = 0.03;
  world.drift = 0.2;
  world.spikeRate = 0.02;
  return world;
}

int64_t winnerOf(const std::vector<RaceEntry>& entries) {
  return std::min_element(entries.begin(), entries.end(),
                          [](const RaceEntry& a, const RaceEntry& b) { return a.logScore < b.logScore; })
      ->id;
}

TEST(Race, ExactWithoutNoise) {
  Track track({1.3, 0.9, 1.1, 0.8, 1.0, 2.5}, FakeWorld());
  Race race(track.measurer, track.counters, track.options(1));
  std::vector<RaceEntry> entries = track.entries();
  ASSERT_TRUE(race.run(entries, std::nullopt, {}, {}).isOk());
  for (size_t i = 0; i < entries.size(); ++i) EXPECT_NEAR(entries[i].logScore, std::log(track.ratios[i]), 1e-9);
  EXPECT_EQ(winnerOf(entries), 4);
  EXPECT_NEAR(entries[3].lastNs, 4e4, 1);
  EXPECT_GT(entries[3].samples, entries[5].samples);
  EXPECT_EQ(track.counters.measurements, track.world.samples);
}

TEST(Race, HalvingSparesTheSlow) {
  std::vector<double> ratios;
  for (int i = 0; i < 48; ++i) ratios.push_back(0.7 + 0.02 * i);
  ratios.push_back(50);
  Track track(ratios, noisyWorld());
  Race race(track.measurer, track.counters, track.options(2));
  std::vector<RaceEntry> entries = track.entries();
  ASSERT_TRUE(race.run(entries, std::nullopt, {}, {}).isOk());
  EXPECT_LE(winnerOf(entries), 4);
  EXPECT_EQ(entries[48].samples, 1);  // hopeless after its first
  int64_t total = 0;
  for (const RaceEntry& e : entries) total += e.samples;
  EXPECT_LT(total, 49 * 3 + 36 * 6 + 27 * 12);
  EXPECT_GE(entries[static_cast<size_t>(winnerOf(entries)) - 1].samples, 21);
  EXPECT_GT(race.noise(), 0.03);  // drift between two calls counts as noise
  EXPECT_LT(race.noise(), 0.09);
}

TEST(Race, DriftAndSpikesCancel) {
  // The best is 8 % better than the rest; drift is 20 %.
  int found = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::vector<double> ratios(24, 1.0);
    ratios[seed % 24] = 0.92;
    FakeWorld world = noisyWorld();
    world.seed = seed;
    Track track(ratios, world);
    Race race(track.measurer, track.counters, track.options(seed));
    std::vector<RaceEntry> entries = track.entries();
    ASSERT_TRUE(race.run(entries, std::nullopt, {}, {}).isOk());
    found += winnerOf(entries) == static_cast<int64_t>(seed % 24) + 1 ? 1 : 0;
  }
  EXPECT_GE(found, 54);
}

TEST(Race, SeveralPointsAreAveraged) {
  Track track({0.5, 0.9}, FakeWorld(), testing::linearGraph(2, 64));
  // Candidate 1 is twice as fast at the high end, four times as slow at the low end.
  track.world.costNs = [&](const PlanGenome& genome, const std::vector<int64_t>& point) {
    double f = track.factor.at(genome.text());
    if (f == 0.5 && point[0] == 2) f = 4;
    if (f == 0.5 && point[0] != 64) f = 2;
    return 1e4 * static_cast<double>(point[0]) * f;
  };
  ASSERT_EQ(track.options(1).points, 3);
  Race race(track.measurer, track.counters, track.options(1));
  std::vector<RaceEntry> entries = track.entries();
  ASSERT_TRUE(race.run(entries, std::nullopt, {}, {}).isOk());
  EXPECT_NEAR(std::exp(entries[0].logScore), std::cbrt(4 * 2 * 0.5), 1e-6);
  EXPECT_NEAR(std::exp(entries[1].logScore), 0.9, 1e-6);
  EXPECT_EQ(winnerOf(entries), 2);
}

TEST(Race, TheBestRunsInEveryRound) {
  Track track({0.9, 1.0, 1.1, 1.2}, noisyWorld());
  Race race(track.measurer, track.counters, track.options(1));
  std::vector<RaceEntry> first = track.entries();
  first.resize(1);
  ASSERT_TRUE(race.run(first, std::nullopt, {}, {}).isOk());
  int64_t before = race.standing(1).samples;
  std::vector<RaceEntry> rest = track.entries();
  rest.erase(rest.begin());
  ASSERT_TRUE(race.run(rest, 1, {}, {}).isOk());
  EXPECT_GE(race.standing(1).samples, before + 21);
  EXPECT_NEAR(race.standing(1).logScore, std::log(0.9), 0.03);
}

TEST(Race, CrashesAreRejections) {
  Track track({0.5, 0.9, 1.0}, FakeWorld());
  track.world.run = [&](const PlanGenome& genome) -> std::optional<Rejection> {
    if (track.factor.at(genome.text()) == 0.5) return Rejection{"run-crash", "SIGSEGV"};
    return std::nullopt;
  };
  Race race(track.measurer, track.counters, track.options(1));
  std::vector<RaceEntry> entries = track.entries();
  ASSERT_TRUE(race.run(entries, std::nullopt, {}, {}).isOk());
  ASSERT_TRUE(entries[0].rejection.has_value());
  EXPECT_EQ(entries[0].rejection->reason, "run-crash");
  EXPECT_TRUE(std::isinf(entries[0].logScore));
  EXPECT_EQ(winnerOf(entries), 2);

  track.world.run = [&](const PlanGenome& genome) -> std::optional<Rejection> {
    if (genome == track.genomes[0]) return Rejection{"run-timeout", "30 s"};
    return std::nullopt;
  };
  ASSERT_TRUE(race.run(entries, std::nullopt, {}, {}).isOk());
  ASSERT_TRUE(race.anchorRejection().has_value());
  EXPECT_EQ(race.anchorRejection()->reason, "run-timeout");
}

TEST(Race, ImpossibleTimesAreRejections) {
  Track track({0.001, 0.9}, FakeWorld());  // 50 ns
  RaceOptions options = track.options(1);
  options.shortestNs = {1000};
  Race race(track.measurer, track.counters, options);
  std::vector<RaceEntry> entries = track.entries();
  ASSERT_TRUE(race.run(entries, std::nullopt, {}, {}).isOk());
  ASSERT_TRUE(entries[0].rejection.has_value());
  EXPECT_EQ(entries[0].rejection->reason, "impossible-time");
  EXPECT_FALSE(entries[1].rejection.has_value());
}

TEST(Race, LimitsOfBelief) {
  Problem add = testing::problemOf(testing::addGraph(16384, 16384));  // 805 MB
  Target cpu = schedule::fakeTarget();
  cpu.kind = schedule::DeviceKind::kCpu;
  MeasureFacts facts{.copyBytesPerSecond = 1e10, .emptyLaunchNs = 3000, .regime = ""};
  double bytes = op::workOf(add.source, {16384}).bytes;
  EXPECT_NEAR(shortestBelievableNs(add, cpu, facts).at(0), bytes / 4e10 * 1e9, 1);
  // Small enough for the caches: only the cores' own limits hold. A tenth of a microsecond is refused by the launch.
  Problem tiny = testing::problemOf(testing::addGraph(1, 1));
  EXPECT_DOUBLE_EQ(shortestBelievableNs(tiny, cpu, facts).at(0), 1500);
  // 2 * 64 * 1024 * 2048 operations on two cores of 64-byte vectors: 268e6 / (2 * 16 * 4 * 2 * 7) ns.
  Problem linear = testing::problemOf(testing::linearGraph(64, 64));
  EXPECT_NEAR(shortestBelievableNs(linear, cpu, facts).at(0), 2.0 * 64 * 1024 * 2048 / (2 * 16 * 4 * 2 * 7.0), 1);
  EXPECT_DOUBLE_EQ(shortestBelievableNs(linear, schedule::fakeTarget(), facts).at(0), 1500);
  EXPECT_EQ(shortestBelievableNs(testing::problemOf(testing::linearGraph(2, 64)), cpu, facts).size(), 3u);
}

TEST(Race, EndsAtTheDeadlineOrWhenCancelled) {
  FakeWorld world;
  world.sleepInSamples = true;
  Track track(std::vector<double>(200, 1.0), world);
  Race race(track.measurer, track.counters, track.options(1));
  std::vector<RaceEntry> entries = track.entries();
  double before = monotonicSeconds();
  ASSERT_TRUE(race.run(entries, std::nullopt, {}, Deadline::after(0.1)).isOk());
  EXPECT_LT(monotonicSeconds() - before, 0.2);
  EXPECT_TRUE(std::any_of(entries.begin(), entries.end(), [](const RaceEntry& e) { return std::isinf(e.logScore); }));
  EXPECT_TRUE(std::any_of(entries.begin(), entries.end(), [](const RaceEntry& e) { return e.samples > 0; }));
  CancellationFlag flag;
  flag.raise();
  RaceOptions options = track.options(1);
  options.cancellation = &flag;
  Race cancelled(track.measurer, track.counters, options);
  int64_t samples = track.world.samples;
  ASSERT_TRUE(cancelled.run(entries, std::nullopt, {}, {}).isOk());
  EXPECT_EQ(track.world.samples, samples);
}

TEST(Race, FailuresAreErrors) {
  FakeWorld world;
  Track track({0.9}, world);
  track.world.sampleFailure = unavailable("worker gone");
  Race race(track.measurer, track.counters, track.options(1));
  std::vector<RaceEntry> entries = track.entries();
  EXPECT_EQ(race.run(entries, std::nullopt, {}, {}).code(), StatusCode::kUnavailable);
}

/// Races COUNT candidates, lets the best duel with the default in a fresh worker: was it promoted?
bool promoted(Track& track, uint64_t seed, int64_t* winner = nullptr) {
  Race race(track.measurer, track.counters, track.options(seed));
  std::vector<RaceEntry> entries = track.entries();
  EXPECT_TRUE(race.run(entries, std::nullopt, {}, {}).isOk());
  track.load(seed + 1000);
  DuelOptions options;
  options.challenger = winnerOf(entries);
  options.tried = static_cast<int64_t>(track.ratios.size());
  options.seed = seed;
  Result<DuelResult> result = duel(track.measurer, track.counters, options, {});
  EXPECT_TRUE(result.has_value());
  EXPECT_TRUE(result->decided);
  EXPECT_GE(result->rounds, 10);
  EXPECT_LE(result->rounds, 60);
  if (winner != nullptr) *winner = options.challenger;
  return result->significant;
}

TEST(Duel, EquallyFastCandidatesAreNotPromoted) {
  // The best of many equal candidates always looks better than the default (winner's curse); the duel must not fall
  // for it, whether there were many or few.
  int promotions = 0;
  constexpr int kRuns = kManyRuns;
  for (uint64_t seed = 1; seed <= kRuns; ++seed) {
    FakeWorld world = noisyWorld();
    world.seed = seed;
    Track track(std::vector<double>(seed % 2 == 0 ? 2 : 24, 1.0), world);
    promotions += promoted(track, seed) ? 1 : 0;
  }
  EXPECT_LT(100 * promotions, kRuns);
}

TEST(Duel, FivePercentIsFound) {
  int found = 0;
  constexpr int kRuns = kManyRuns;
  for (uint64_t seed = 1; seed <= kRuns; ++seed) {
    FakeWorld world = noisyWorld();
    world.seed = seed;
    Track track({0.95}, world);
    DuelOptions options;
    options.tried = 200;
    options.seed = seed;
    Result<DuelResult> result = duel(track.measurer, track.counters, options, {});
    ASSERT_TRUE(result.has_value());
    found += result->significant ? 1 : 0;
    if (result->significant) {
      EXPECT_LT(result->logRatio.high, 0);
      EXPECT_NEAR(result->logRatio.estimate, std::log(0.95), 0.06);
    }
  }
  EXPECT_GE(found, kRuns * 95 / 100);
}

TEST(Duel, StopsEarlyWhenItIsClear) {
  Track fast({0.5}, noisyWorld());
  DuelOptions options;
  options.tried = 500;
  Result<DuelResult> result = duel(fast.measurer, fast.counters, options, {});
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(result->significant);
  EXPECT_LE(result->rounds, 15);
  Track slow({1.5}, noisyWorld());
  result = duel(slow.measurer, slow.counters, options, {});
  ASSERT_TRUE(result.has_value());
  EXPECT_FALSE(result->significant);
  EXPECT_LE(result->rounds, 20);
  // Exactly equal and without noise: precise at once, and no gain.
  Track equal({1.0}, FakeWorld());
  result = duel(equal.measurer, equal.counters, options, {});
  ASSERT_TRUE(result.has_value());
  EXPECT_FALSE(result->significant);
  EXPECT_EQ(result->rounds, 10);
}

TEST(Duel, TooFewRoundsDecideNothing) {
  FakeWorld world;
  world.sleepInSamples = true;
  Track track({0.5}, world);
  Result<DuelResult> result = duel(track.measurer, track.counters, {}, Deadline::after(0.012));
  ASSERT_TRUE(result.has_value());
  EXPECT_FALSE(result->decided);
  EXPECT_FALSE(result->significant);
  EXPECT_LT(result->rounds, 10);
  // Out of time after the minimum, between two looks: judged by what there is.
  DuelOptions strict;
  strict.tried = 5000;
  result = duel(track.measurer, track.counters, strict, Deadline::after(0.030));
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->decided, result->rounds >= 10);
}

TEST(Duel, CrashAndImpossibleTime) {
  Track track({0.5}, FakeWorld());
  DuelOptions options;
  options.shortestNs = {40000};
  Result<DuelResult> result = duel(track.measurer, track.counters, options, {});
  ASSERT_TRUE(result.has_value());
  ASSERT_TRUE(result->challengerRejection.has_value());
  EXPECT_EQ(result->challengerRejection->reason, "impossible-time");
  track.world.run = [&](const PlanGenome& genome) -> std::optional<Rejection> {
    if (genome == track.genomes[1]) return Rejection{"run-crash", ""};
    return std::nullopt;
  };
  result = duel(track.measurer, track.counters, {}, {});
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->challengerRejection->reason, "run-crash");
  EXPECT_FALSE(result->anchorRejection.has_value());
}

}  // namespace
}  // namespace ktune::search
