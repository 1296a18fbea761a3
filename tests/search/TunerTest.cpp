#include <gtest/gtest.h>

#include "base/Log.h"
#include "fakes/FakeServices.h"
#include "search/SearchProblems.h"
#include "search/Tuner.h"

namespace ktune::search {
namespace {

using schedule::PlanGenome;
using schedule::Problem;
using schedule::Target;
using testing::addGraph;
using testing::FakeCompiler;
using testing::FakeMeasurer;
using testing::FakeWorld;
using testing::linearGraph;
using testing::normGraph;

class TunerTest : public ::testing::Test {
 protected:
  TunerTest() {
    setLogLevel(LogLevel::kSilent);
    options.target = schedule::fakeTarget();
    options.stamp = {.ktune = "1", .compiler = "fake", .driver = "fake", .verifier = "1"};
    options.budget = {.seconds = 20, .candidates = 60};
    useBowl(linearGraph(64, 64), 0.05);
  }
  ~TunerTest() override { setLogLevel(LogLevel::kWarning); }

  /// A bowl round a random legal genome of GRAPH, fused like its default: 50 us there.
  void useBowl(const op::Graph& graph, double perStep) {
    Problem problem = testing::problemOf(graph);
    Random random(2024);
    base = schedule::defaultGenome(problem, options.target);
    do {
      optimum = schedule::randomGenome(problem, options.target, random);
    } while (optimum.fuse != base.fuse);
    world.costNs = [this, perStep](const PlanGenome& g, const std::vector<int64_t>&) {
      return testing::bowlNs(g, optimum, 5e4, perStep);
    };
  }
  std::vector<UnitReport> tune(const std::vector<Unit>& units) {
    Result<std::vector<UnitReport>> reports = tuneUnits(units, options, compiler, measurer, *store, counters);
    EXPECT_TRUE(reports.has_value()) << reports.status().toString();
    return reports ? *reports : std::vector<UnitReport>();
  }
  UnitReport tuneOne(const op::Graph& graph) {
    std::vector<UnitReport> reports = tune({{.graph = graph}});
    return reports.size() == 1 ? reports[0] : UnitReport();
  }
  double costOf(const PlanGenome& genome) { return world.costNs(genome, {64}); }

  FakeWorld world;
  FakeCompiler compiler{world};
  FakeMeasurer measurer{world};
  std::unique_ptr<cache::Store> store = cache::makeMemoryStore();
  TunerOptions options;
  Counters counters;
  PlanGenome optimum, base;
};

Rejection wrong() {
  return {"wrong-result", "element 3: 1.5, expected 2.5"};
}

TEST_F(TunerTest, FindsNearlyTheBest) {
  world.noise = 0.03;
  world.drift = 0.1;
  world.spikeRate = 0.01;
  options.budget.candidates = 500;
  world.conditions = {1980, 612.5, 54, "power cap"};
  UnitReport report = tuneOne(linearGraph(64, 64));
  ASSERT_EQ(report.outcome, UnitOutcome::kTuned);
  const cache::Record& record = report.record;
  EXPECT_EQ(record.decision, cache::Decision::kTuned);
  EXPECT_LT(costOf(record.genome), 1.15 * costOf(optimum));
  EXPECT_LT(costOf(optimum), 0.8 * costOf(base));  // the test would be too easy otherwise
  const cache::Evidence& e = record.evidence;
  double truth = costOf(record.genome) / costOf(base);
  EXPECT_NEAR(e.ratio, truth, 0.1 * truth);
  EXPECT_LT(e.ratioHigh, 1);
  EXPECT_LE(e.ratioLow, e.ratio);
  EXPECT_GE(e.ratioHigh, e.ratio);
  EXPECT_EQ(e.confidence, 0.99);
  EXPECT_EQ(e.candidates, 500);
  EXPECT_GT(e.measured, 400);
  EXPECT_EQ(e.seed, options.seed);
  EXPECT_EQ(e.planDigest, record.plan.digest());
  EXPECT_EQ(e.checks, (std::vector<std::string>{"normal", "special"}));
  EXPECT_EQ(e.worstErrorShare, 0.25);
  EXPECT_EQ(e.copyBytesPerSecond, 1e10);
  EXPECT_EQ(e.regime, "fake");
  EXPECT_EQ(e.clockMhz, 1980);
  EXPECT_EQ(e.powerWatts, 612.5);
  EXPECT_EQ(e.temperatureC, 54);
  EXPECT_EQ(e.throttle, "power cap");
  EXPECT_FALSE(e.proposer.empty());
  EXPECT_NE(e.proposer, "default");
  EXPECT_GT(e.unixTime, 1700000000);
  EXPECT_GT(e.tuningSeconds, 0);
  ASSERT_EQ(e.points.size(), 1u);
  EXPECT_EQ(e.points[0].symbolValues, std::vector<int64_t>{64});
  EXPECT_GE(e.points[0].samples, 10);
  EXPECT_LT(e.points[0].medianNs, e.points[0].defaultMedianNs);
  EXPECT_EQ(e.points[0].operations, op::workOf(linearGraph(64, 64), {64}).operations);
  EXPECT_FALSE(world.overlapped);
  // A fresh process for the duel, and other inputs.
  ASSERT_EQ(world.openSeeds.size(), 2u);
  EXPECT_NE(world.openSeeds[0], world.openSeeds[1]);
}

TEST_F(TunerTest, EveryKindOfOperatorImproves) {
  for (const op::Graph& graph : {normGraph(16, 16), addGraph(256, 256), linearGraph(2, 64)}) {
    world.noise = 0.02;
    useBowl(graph, 0.06);
    options.budget.candidates = 200;
    UnitReport report = tuneOne(graph);
    ASSERT_EQ(report.outcome, UnitOutcome::kTuned);
    EXPECT_LT(costOf(report.record.genome), 1.3 * costOf(optimum)) << op::label(graph);
    EXPECT_EQ(report.record.evidence.points.size(), op::scoringPoints(report.record.bucket).size());
  }
}

TEST_F(TunerTest, CountersAndCandidatesAreExact) {
  for (int64_t candidates : {1, 2, 7, 33, 100}) {
    store = cache::makeMemoryStore();
    world.compiled = world.samples = world.screens = world.fulls = 0;
    world.compiledGenomes.clear();
    counters = {};
    options.budget.candidates = candidates;
    UnitReport report = tuneOne(linearGraph(64, 64));
    ASSERT_EQ(report.outcome, UnitOutcome::kTuned);
    EXPECT_EQ(world.compiled, candidates);
    EXPECT_EQ(counters.compiles, candidates);
    EXPECT_EQ(report.record.evidence.candidates, candidates);
    EXPECT_EQ(counters.measurements, world.samples);
    EXPECT_EQ(counters.checks, world.screens + world.fulls);
    EXPECT_EQ(counters.tuned, 1);
    // No genome is compiled twice.
    EXPECT_EQ(std::set<std::string>(world.compiledGenomes.begin(), world.compiledGenomes.end()).size(),
              world.compiledGenomes.size());
  }
}

TEST_F(TunerTest, TheDefaultAloneIsPublishedWithItsTimes) {
  options.budget.candidates = 1;
  world.noise = 0.03;
  useBowl(linearGraph(2, 64), 0.05);
  UnitReport report = tuneOne(linearGraph(2, 64));
  ASSERT_EQ(report.outcome, UnitOutcome::kTuned);
  const cache::Record& record = report.record;
  EXPECT_EQ(record.decision, cache::Decision::kDefault);
  EXPECT_EQ(record.genome, base);
  EXPECT_EQ(record.evidence.proposer, "default");
  EXPECT_EQ(record.evidence.ratio, 1);
  EXPECT_EQ(record.evidence.ratioLow, 1);
  ASSERT_EQ(record.evidence.points.size(), 3u);
  for (const cache::PointEvidence& point : record.evidence.points) {
    EXPECT_GE(point.samples, 10);
    EXPECT_NEAR(point.medianNs, costOf(base), 0.05 * costOf(base));
    EXPECT_EQ(point.medianNs, point.defaultMedianNs);
  }
  EXPECT_EQ(world.opens, 1);
}

TEST_F(TunerTest, NothingWinsInTheNoise) {
  world.noise = 0.03;
  world.costNs = [](const PlanGenome&, const std::vector<int64_t>&) { return 5e4; };
  options.budget.candidates = 120;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    store = cache::makeMemoryStore();
    options.seed = seed;
    UnitReport report = tuneOne(linearGraph(64, 64));
    ASSERT_EQ(report.outcome, UnitOutcome::kTuned);
    EXPECT_EQ(report.record.decision, cache::Decision::kDefault);
    EXPECT_EQ(report.record.genome, base);
    EXPECT_EQ(report.record.evidence.ratio, 1);
  }
}

TEST_F(TunerTest, HitsCostNothing) {
  std::vector<Unit> units{{.graph = linearGraph(64, 64)}, {.graph = normGraph()}, {.graph = linearGraph(64, 64)}};
  std::vector<UnitReport> first = tune(units);
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0].outcome, UnitOutcome::kTuned);
  EXPECT_EQ(first[1].outcome, UnitOutcome::kTuned);
  EXPECT_EQ(first[2].outcome, UnitOutcome::kHit);  // published by the first
  EXPECT_EQ(first[2].record, first[0].record);

  FakeWorld untouched;
  FakeCompiler idleCompiler(untouched);
  FakeMeasurer idleMeasurer(untouched);
  Counters second;
  options.budget.seconds = 0;  // hits need none
  Result<std::vector<UnitReport>> reports = tuneUnits(units, options, idleCompiler, idleMeasurer, *store, second);
  ASSERT_TRUE(reports.has_value());
  for (const UnitReport& report : *reports) EXPECT_EQ(report.outcome, UnitOutcome::kHit);
  EXPECT_EQ(second.hits, 3);
  EXPECT_EQ(second.compiles + second.measurements + second.checks + second.tuned, 0);
  EXPECT_EQ(untouched.compileCalls + untouched.opens + untouched.loads + untouched.samples, 0);
}

TEST_F(TunerTest, AnotherStampIsRacedAgain) {
  UnitReport first = tuneOne(linearGraph(64, 64));
  ASSERT_EQ(first.record.decision, cache::Decision::kTuned);
  options.stamp.ktune = "2";
  options.budget.candidates = 2;  // the default and the incumbent
  world.order.clear();
  UnitReport second = tuneOne(linearGraph(64, 64));
  ASSERT_EQ(second.outcome, UnitOutcome::kTuned);
  ASSERT_EQ(world.order.size(), 2u);
  EXPECT_EQ(world.order[0], base);
  EXPECT_EQ(world.order[1], first.record.genome);
  EXPECT_EQ(second.record.genome, first.record.genome);
  EXPECT_EQ(second.record.evidence.proposer, "incumbent");
  EXPECT_EQ(second.record.stamp.ktune, "2");
}

TEST_F(TunerTest, RetuneRacesTheWinnerAgain) {
  UnitReport first = tuneOne(linearGraph(64, 64));
  options.retune = true;
  options.budget.candidates = 2;
  UnitReport second = tuneOne(linearGraph(64, 64));
  EXPECT_EQ(second.outcome, UnitOutcome::kTuned);
  EXPECT_EQ(second.record.evidence.proposer, "incumbent");
  EXPECT_EQ(second.record.genome, first.record.genome);
}

TEST_F(TunerTest, WrongCandidatesAreRejectedAndCounted) {
  // Everything within five steps of the optimum is wrong: fast but not published.
  world.full = world.screen = [&](const PlanGenome& g) -> std::optional<Rejection> {
    if (testing::stepsApart(g, optimum) <= 5) return wrong();
    return std::nullopt;
  };
  ASSERT_GT(testing::stepsApart(base, optimum), 5);
  options.budget.candidates = 300;
  UnitReport report = tuneOne(linearGraph(64, 64));
  ASSERT_EQ(report.record.decision, cache::Decision::kTuned);
  EXPECT_GT(testing::stepsApart(report.record.genome, optimum), 5);
  EXPECT_GT(report.record.evidence.rejections["wrong-result"], 0);
}

TEST_F(TunerTest, TheProofLooksDeeperThanTheScreening) {
  // The fastest ones pass the screening and fail the proof: the next takes their place, or the default stays.
  std::set<std::string> proven;
  int failures = 0;
  world.full = [&](const PlanGenome& g) -> std::optional<Rejection> {
    if (g == base || failures == 2) return std::nullopt;
    ++failures;
    return wrong();
  };
  UnitReport report = tuneOne(linearGraph(64, 64));
  EXPECT_EQ(report.record.decision, cache::Decision::kTuned);
  EXPECT_EQ(report.record.evidence.rejections["wrong-result"], 2);
  store = cache::makeMemoryStore();
  world.full = [&](const PlanGenome& g) -> std::optional<Rejection> {
    if (g == base) return std::nullopt;
    return wrong();
  };
  report = tuneOne(linearGraph(64, 64));
  EXPECT_EQ(report.record.decision, cache::Decision::kDefault);
  EXPECT_EQ(report.record.genome, base);
  EXPECT_EQ(report.record.evidence.rejections["wrong-result"], 3);
  EXPECT_GE(report.record.evidence.points[0].samples, 10);
}

TEST_F(TunerTest, CrashesAndFailedCompilesAreCounted) {
  auto byHash = [](const char* reason, uint64_t one) {
    return [=](const PlanGenome& g) -> std::optional<Rejection> {
      if (g.digest().low % 5 == one) return Rejection{reason, "x"};
      return std::nullopt;
    };
  };
  uint64_t mine = base.digest().low % 5;
  world.compile = byHash("compile-error", (mine + 1) % 5);
  world.load = byHash("load-failed", (mine + 2) % 5);
  world.run = byHash("run-crash", (mine + 3) % 5);
  options.budget.candidates = 150;
  UnitReport report = tuneOne(linearGraph(64, 64));
  ASSERT_EQ(report.outcome, UnitOutcome::kTuned);
  const cache::Evidence& e = report.record.evidence;
  int64_t rejected = 0;
  for (const char* reason : {"compile-error", "load-failed", "run-crash"}) {
    ASSERT_TRUE(e.rejections.contains(reason)) << reason;
    EXPECT_GT(e.rejections.at(reason), 5) << reason;
    rejected += e.rejections.at(reason);
  }
  EXPECT_EQ(e.candidates, 150);
  EXPECT_LE(e.measured, 150 - rejected);
  EXPECT_EQ(report.record.decision, cache::Decision::kTuned);
}

TEST_F(TunerTest, EqualCodeIsMeasuredOnce) {
  // Prefetch and unroll make no difference to the code: a genome's score is its first twin's.
  world.codeOf = [](PlanGenome g) {
    for (schedule::KernelSchedule& k : g.kernels) k.prefetch = 0, k.unroll = 1;
    return g;
  };
  options.budget.candidates = 200;
  UnitReport report = tuneOne(linearGraph(64, 64));
  ASSERT_EQ(report.outcome, UnitOutcome::kTuned);
  std::set<std::string> codes;
  for (const PlanGenome& g : world.order) codes.insert(world.codeOf(g).text());
  EXPECT_LT(codes.size(), 195u);
  EXPECT_LE(report.record.evidence.measured, static_cast<int64_t>(codes.size()));
  // Screened once per code (the default is proven instead), plus the finalist again in the duel's worker.
  EXPECT_LE(world.screens, static_cast<int64_t>(codes.size()));
}

TEST_F(TunerTest, AWrongDefaultIsReplacedByTheBestThatIsRight) {
  world.full = [&](const PlanGenome& g) -> std::optional<Rejection> {
    if (g == base) return wrong();
    return std::nullopt;
  };
  UnitReport report = tuneOne(linearGraph(64, 64));
  ASSERT_EQ(report.outcome, UnitOutcome::kTuned);
  EXPECT_EQ(report.record.decision, cache::Decision::kTuned);
  EXPECT_NE(report.record.genome, base);
  EXPECT_LT(costOf(report.record.genome), costOf(base));
  EXPECT_EQ(report.record.evidence.rejections["wrong-result"], 1);
  EXPECT_EQ(report.record.evidence.points[0].defaultMedianNs, 0);
  EXPECT_GT(report.record.evidence.points[0].medianNs, 0);
}

TEST_F(TunerTest, NothingRightMeansFallback) {
  world.screen = [&](const PlanGenome&) -> std::optional<Rejection> { return wrong(); };
  UnitReport report = tuneOne(linearGraph(64, 64));
  ASSERT_EQ(report.outcome, UnitOutcome::kTuned);
  EXPECT_EQ(report.record.decision, cache::Decision::kUseFallback);
  EXPECT_TRUE(report.record.plan.launches.empty());
  EXPECT_EQ(report.record.evidence.rejections["wrong-result"], 60);
  EXPECT_EQ(report.record.evidence.candidates, 60);
  EXPECT_EQ(tuneOne(linearGraph(64, 64)).outcome, UnitOutcome::kHit);

  // The same when nothing compiles at all.
  store = cache::makeMemoryStore();
  world.compile = [&](const PlanGenome&) -> std::optional<Rejection> { return Rejection{"compile-error", "x"}; };
  report = tuneOne(linearGraph(64, 64));
  EXPECT_EQ(report.record.decision, cache::Decision::kUseFallback);
  EXPECT_EQ(report.record.evidence.rejections["compile-error"], 60);
}

TEST_F(TunerTest, ADefaultThatCrashesLaterIsNotPublished) {
  int64_t runs = 0;
  world.run = [&](const PlanGenome& g) -> std::optional<Rejection> {
    if (g == base && ++runs > 40) return Rejection{"run-crash", "SIGSEGV"};
    return std::nullopt;
  };
  UnitReport report = tuneOne(linearGraph(64, 64));
  ASSERT_EQ(report.outcome, UnitOutcome::kTuned);
  EXPECT_EQ(report.record.decision, cache::Decision::kTuned);
  EXPECT_NE(report.record.genome, base);
  EXPECT_EQ(report.record.evidence.rejections["run-crash"], 1);
}

TEST_F(TunerTest, SecondsAreKeptAndEveryUnitIsServed) {
  world.compileSeconds = 0.02;
  world.checkSeconds = 0.03;
  world.openSeconds = 0.01;
  world.sleepInSamples = true;
  options.budget = {.seconds = 1.6, .candidates = 1 << 30};
  std::vector<Unit> units{{.graph = linearGraph(64, 64), .weight = 3},
                          {.graph = normGraph(), .weight = 1},
                          {.graph = addGraph(), .weight = 1},
                          {.graph = linearGraph(16, 16), .weight = 1}};
  double before = monotonicSeconds();
  std::vector<UnitReport> reports = tune(units);
  double spent = monotonicSeconds() - before;
  EXPECT_LT(spent, 1.6 + 0.5);
  EXPECT_GT(spent, 0.8);
  for (const UnitReport& report : reports) EXPECT_EQ(report.outcome, UnitOutcome::kTuned) << report.status.toString();
  EXPECT_GT(reports[0].seconds, reports[1].seconds);
  EXPECT_GT(reports[0].record.evidence.candidates, reports[1].record.evidence.candidates);
}

TEST_F(TunerTest, ScarceSecondsProveDefaults) {
  // Ten units at about 70 ms for a default alone: hardly anything is left for searching, yet all are served.
  world.compileSeconds = 0.02;
  world.checkSeconds = 0.03;
  world.openSeconds = 0.01;
  options.budget = {.seconds = 1.2, .candidates = 1 << 30};
  std::vector<Unit> units;
  for (int64_t m = 1; m <= 10; ++m) units.push_back({.graph = normGraph(m, m)});
  double before = monotonicSeconds();
  std::vector<UnitReport> reports = tune(units);
  EXPECT_LT(monotonicSeconds() - before, 1.7);
  for (const UnitReport& report : reports) EXPECT_EQ(report.outcome, UnitOutcome::kTuned);

  // Not even time for all defaults: the first are served, the rest say so.
  store = cache::makeMemoryStore();
  options.budget.seconds = 0.2;
  reports = tune(units);
  EXPECT_EQ(reports.front().outcome, UnitOutcome::kTuned);
  EXPECT_EQ(reports.back().outcome, UnitOutcome::kNotReached);
  EXPECT_EQ(reports.back().status.code(), StatusCode::kDeadlineExceeded);
}

TEST_F(TunerTest, CancellationBeforeTheProofPublishesNothing) {
  CancellationFlag flag;
  options.cancellation = &flag;
  options.onProgress = [&](const Progress& p) {
    if (p.phase == "compile") flag.raise();
  };
  std::vector<UnitReport> reports = tune({{.graph = linearGraph(64, 64)}, {.graph = normGraph()}});
  for (const UnitReport& report : reports) {
    EXPECT_EQ(report.outcome, UnitOutcome::kNotReached);
    EXPECT_EQ(report.status.code(), StatusCode::kCancelled);
  }
  EXPECT_EQ(store->stats().records, 0);
  EXPECT_EQ(world.compiled, 1);
}

TEST_F(TunerTest, CancellationAfterTheProofPublishesTheDefault) {
  CancellationFlag flag;
  options.cancellation = &flag;
  options.onProgress = [&](const Progress& p) {
    if (p.phase == "race") flag.raise();
  };
  std::vector<size_t> told;
  options.onUnit = [&](size_t unit, const UnitReport&) { told.push_back(unit); };
  std::vector<UnitReport> reports = tune({{.graph = linearGraph(64, 64)}, {.graph = normGraph()}});
  EXPECT_EQ(reports[0].outcome, UnitOutcome::kTuned);
  EXPECT_EQ(reports[0].record.decision, cache::Decision::kDefault);
  EXPECT_GT(reports[0].record.evidence.points[0].samples, 0);
  EXPECT_EQ(reports[1].outcome, UnitOutcome::kNotReached);
  EXPECT_EQ(told, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(store->stats().records, 1);
}

TEST_F(TunerTest, AFailureOfOneUnitSparesTheOthers) {
  struct Narrow : FakeMeasurer {
    using FakeMeasurer::FakeMeasurer;
    Result<MeasureFacts> open(const Problem& problem, const MeasureOptions& o, Deadline d) override {
      if (problem.primitives.inputs.size() == 2 && problem.primitives.nodes.size() == 1 &&
          problem.primitives.nodes[0].op == "add")
        return resourceExhausted("needs 123 bytes");
      return FakeMeasurer::open(problem, o, d);
    }
  } narrow(world);
  Result<std::vector<UnitReport>> reports =
      tuneUnits({{.graph = addGraph()}, {.graph = linearGraph(64, 64)}, {.graph = normGraph(), .bucketIndex = 5}},
                options, compiler, narrow, *store, counters);
  ASSERT_TRUE(reports.has_value());
  EXPECT_EQ((*reports)[0].outcome, UnitOutcome::kFailed);
  EXPECT_EQ((*reports)[0].status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ((*reports)[1].outcome, UnitOutcome::kTuned);
  EXPECT_EQ((*reports)[2].outcome, UnitOutcome::kFailed);
  EXPECT_EQ((*reports)[2].status.code(), StatusCode::kInvalidArgument);
}

TEST_F(TunerTest, ADeviceOfItsOwnIsMeasuredWhileTheNextBatchCompiles) {
  options.target = schedule::cudaTarget("sm_90a");
  options.budget = {.seconds = 20, .candidates = 200};
  world.compileSeconds = 0.004;
  world.checkSeconds = 0.02;
  useBowl(linearGraph(64, 64), 0.05);
  const UnitReport report = tuneOne(linearGraph(64, 64));
  ASSERT_EQ(report.outcome, UnitOutcome::kTuned) << report.status.toString();
  EXPECT_TRUE(world.overlapped);
  EXPECT_EQ(report.record.decision, cache::Decision::kTuned);
  // Nobody is counted twice or lost: every genome compiled once.
  EXPECT_EQ(
      static_cast<int64_t>(world.compiledGenomes.size()),
      static_cast<int64_t>(std::set<std::string>(world.compiledGenomes.begin(), world.compiledGenomes.end()).size()));
  EXPECT_LE(counters.compiles, 200);
  EXPECT_EQ(report.record.evidence.candidates, counters.compiles);
  EXPECT_GE(counters.waitSeconds, counters.starvedSeconds);
}

TEST_F(TunerTest, FinalistsAreMeasuredAgainWhileCompilersAreBehind) {
  options.target = schedule::cudaTarget("sm_90a");
  options.budget = {.seconds = 4, .candidates = 1000};
  world.compileSeconds = 0.12;
  world.sleepInSamples = true;
  world.noise = 0.05;
  useBowl(linearGraph(64, 64), 0.05);
  const UnitReport report = tuneOne(linearGraph(64, 64));
  ASSERT_EQ(report.outcome, UnitOutcome::kTuned) << report.status.toString();
  EXPECT_EQ(report.record.decision, cache::Decision::kTuned);
  // 17 candidates a second compile, 200 could be measured: the rest of the time goes to those that lead.
  EXPECT_GT(counters.refineSeconds, 0.5);
  EXPECT_LT(counters.refineSeconds, counters.measureSeconds);
  EXPECT_LT(counters.starvedSeconds, 0.05 * counters.measureSeconds);
  const int64_t winners = world.sampledCodes[report.record.genome.text()];
  EXPECT_GT(winners, 40);
  EXPECT_LE(report.seconds, 4.5);
}

TEST_F(TunerTest, ALeaderThatFallsOutWhileOthersCompileIsRejected) {
  options.target = schedule::cudaTarget("sm_90a");
  options.budget = {.seconds = 3, .candidates = 1000};
  world.compileSeconds = 0.04;
  world.sleepInSamples = true;
  useBowl(linearGraph(64, 64), 0.05);
  std::map<std::string, int> runs;
  world.run = [&](const PlanGenome& genome) -> std::optional<Rejection> {
    if (genome.text() == base.text() || ++runs[genome.text()] < 40) return std::nullopt;
    return Rejection{"run-crash", "after forty calls"};
  };
  const UnitReport report = tuneOne(linearGraph(64, 64));
  ASSERT_EQ(report.outcome, UnitOutcome::kTuned) << report.status.toString();
  EXPECT_GT(report.record.evidence.rejections.at("run-crash"), 0);
}

TEST_F(TunerTest, SharedCoresNeverCompileWhileTheyMeasure) {
  tuneOne(linearGraph(64, 64));
  EXPECT_FALSE(world.overlapped);
  EXPECT_EQ(counters.refineSeconds, 0);
}

TEST_F(TunerTest, WhatNoCandidateCanBeIsRefusedBeforeAnyIsTried) {
  options.target.kind = schedule::DeviceKind::kCpu;
  const op::Graph graph = *op::makeAdd({"M", 1, 16, {16}}, 64, op::DType::kBF16);
  const UnitReport report = tuneOne(graph);
  EXPECT_EQ(report.outcome, UnitOutcome::kFailed);
  EXPECT_EQ(report.status.code(), StatusCode::kUnsupported);
  EXPECT_NE(report.status.message().find("bf16"), std::string::npos) << report.status.message();
  EXPECT_EQ(counters.compiles, 0);
}

TEST_F(TunerTest, NoWorkerAtAllIsAnError) {
  world.openFailure = unavailable("cannot start a worker");
  auto reports = tuneUnits({{.graph = linearGraph(64, 64)}}, options, compiler, measurer, *store, counters);
  ASSERT_FALSE(reports.has_value());
  EXPECT_EQ(reports.error().code(), StatusCode::kUnavailable);
  world.compileFailure = unavailable("cannot start a compiler");
  reports = tuneUnits({{.graph = linearGraph(64, 64)}}, options, compiler, measurer, *store, counters);
  ASSERT_FALSE(reports.has_value());
  ASSERT_TRUE(store->close().isOk());
  world = FakeWorld();
  reports = tuneUnits({{.graph = linearGraph(64, 64)}}, options, compiler, measurer, *store, counters);
  EXPECT_FALSE(reports.has_value());
}

TEST_F(TunerTest, WithoutAWorkerForTheDuelTheProvenDefaultIsPublished) {
  for (const schedule::Target& target : {schedule::fakeTarget(), schedule::cudaTarget("sm_90a")}) {
    options.target = target;
    world.openFailure = Status();
    world.beforeOpen = [&] {
      if (world.opens == 1) world.openFailure = unavailable("the GPU is used by process 7");
    };
    world.opens = 0;
    store = cache::makeMemoryStore();
    useBowl(linearGraph(64, 64), 0.05);
    const UnitReport report = tuneOne(linearGraph(64, 64));
    ASSERT_EQ(report.outcome, UnitOutcome::kTuned) << report.status.toString();
    EXPECT_EQ(report.record.decision, cache::Decision::kDefault);
    EXPECT_GT(report.record.evidence.points.at(0).samples, 0);
  }
}

TEST_F(TunerTest, AWorkerLostMidwayFailsTheUnit) {
  options.onProgress = [&](const Progress& p) {
    if (p.phase == "race") world.sampleFailure = unavailable("the worker died twice");
  };
  std::vector<UnitReport> reports = tune({{.graph = linearGraph(64, 64)}});
  EXPECT_EQ(reports[0].outcome, UnitOutcome::kFailed);
  EXPECT_EQ(reports[0].status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(store->stats().records, 0);
}

TEST_F(TunerTest, SameSeedSameCandidates) {
  // With a candidate budget that fits the first batches, whose sizes depend on no clock.
  options.budget.candidates = 16;
  tuneOne(linearGraph(64, 64));
  std::vector<PlanGenome> first = world.order;
  world.order.clear();
  store = cache::makeMemoryStore();
  tuneOne(linearGraph(64, 64));
  EXPECT_EQ(world.order, first);
  world.order.clear();
  store = cache::makeMemoryStore();
  options.seed = 2;
  tuneOne(linearGraph(64, 64));
  EXPECT_NE(world.order, first);
}

TEST_F(TunerTest, ProgressTellsThePhases) {
  std::vector<std::string> phases;
  options.onProgress = [&](const Progress& p) {
    EXPECT_EQ(p.unitCount, 1u);
    EXPECT_FALSE(p.label.empty());
    EXPECT_LE(p.bestRatio, 1);
    if (phases.empty() || phases.back() != p.phase) phases.push_back(p.phase);
  };
  tuneOne(linearGraph(64, 64));
  ASSERT_GE(phases.size(), 6u);
  EXPECT_EQ(phases[0], "compile");
  EXPECT_EQ(phases[1], "check");
  EXPECT_EQ(phases.back(), "published");
  EXPECT_NE(std::find(phases.begin(), phases.end(), "race"), phases.end());
  EXPECT_NE(std::find(phases.begin(), phases.end(), "duel"), phases.end());
  phases.clear();
  tuneOne(linearGraph(64, 64));
  EXPECT_EQ(phases, std::vector<std::string>{"hit"});
}

TEST_F(TunerTest, WorkerKeepsOnlyTheFinalists) {
  options.budget.candidates = 400;
  size_t most = 0;
  options.onProgress = [&](const Progress& p) {
    if (p.phase == "compile") most = std::max(most, measurer.loadedCount());
  };
  tuneOne(linearGraph(64, 64));
  EXPECT_LE(most, 9u);
}

}  // namespace
}  // namespace ktune::search
