#include "search/Race.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/op/Graph.h"

namespace ktune::search {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Candidates of one call beside the anchor and the best: few enough that drift within a call does not matter, many
/// enough that the anchors cost little.
constexpr size_t kChunk = 12;
/// After its first sample a candidate this much slower than the default is not sampled again.
constexpr double kHopelessRatio = 3;
/// A timer's glitch must not refuse an honest kernel: the limits apply to a median of at least this many.
constexpr size_t kSamplesToRefuse = 3;
/// The anchor's latest samples that noise() and anchorNs() look at.
constexpr size_t kNoiseWindow = 64;
/// Rounds after which the duel looks at its interval.
constexpr int kLooks[] = {10, 15, 20, 30, 40, 60};

// The fastest machine that the cpu limits allow for: what no core reaches, and none will for years.
constexpr double kMaxGhz = 7;
constexpr double kMaxFmaPerCycle = 4;     // vector multiply-adds
constexpr double kMaxAccessPerCycle = 4;  // vector loads and stores
constexpr double kMaxOverCopyRate = 4;    // memory faster than a copy by this factor is a cache

/// Samples IDS once; counts; a deadline that passes meanwhile is STOPPED, no error.
Result<std::vector<Sample>> sampleOnce(Measurer& measurer, Counters& counters, std::span<const int64_t> ids, int point,
                                       double sampleSeconds, Deadline deadline, bool& stopped) {
  double before = monotonicSeconds();
  Result<std::vector<Sample>> samples = measurer.sample(ids, point, sampleSeconds, deadline);
  counters.measureSeconds += monotonicSeconds() - before;
  if (samples) {
    counters.measurements += static_cast<int64_t>(samples->size());
    if (samples->size() != ids.size()) return internalError("the measurer returned a wrong number of samples");
  } else if (endedByCaller(samples.error(), deadline)) {
    stopped = true;
    return std::vector<Sample>();
  }
  return samples;
}

/// The rejection for medians (of the latest samples, TIMES per point) below SHORTEST.
std::optional<Rejection> impossible(std::span<const std::vector<double>> times, std::span<const double> shortest) {
  for (size_t point = 0; point < std::min(times.size(), shortest.size()); ++point) {
    std::span<const double> latest = times[point];
    if (latest.size() < kSamplesToRefuse) continue;
    double ns = median(latest.size() > kNoiseWindow ? latest.last(kNoiseWindow) : latest);
    if (ns >= shortest[point]) continue;
    return Rejection{"impossible-time", "claims " + std::to_string(ns) + " ns where no honest kernel takes less than " +
                                            std::to_string(shortest[point])};
  }
  return std::nullopt;
}

bool cancelled(const CancellationFlag* flag) {
  return flag != nullptr && flag->raised();
}

}  // namespace

bool endedByCaller(const Status& status, Deadline deadline) {
  constexpr double kEarlySeconds = 0.25;  // a service may give up a little before its deadline
  return status.code() == StatusCode::kCancelled ||
         (status.code() == StatusCode::kDeadlineExceeded && deadline.remainingSeconds() < kEarlySeconds);
}

std::vector<double> shortestBelievableNs(const schedule::Problem& problem, const schedule::Target& target,
                                         const MeasureFacts& facts) {
  std::vector<double> limits;
  double caches =
      static_cast<double>(target.l3Bytes) +
      static_cast<double>(target.l2Bytes) * (target.kind == schedule::DeviceKind::kCpu ? std::max(1, target.cores) : 1);
  for (const std::vector<int64_t>& point : op::scoringPoints(problem.bucket)) {
    op::Work work = op::workOf(problem.source, point);
    double ns = facts.emptyLaunchNs / 2;
    if (target.kind == schedule::DeviceKind::kCpu) {
      double lanes = std::max(1.0, target.vectorBytes / 4.0);  // of f32
      double perNs = std::max(1, target.cores) * kMaxGhz;      // cycles of all cores
      ns = std::max(ns, work.operations / (2 * lanes * kMaxFmaPerCycle * perNs));
      ns = std::max(ns, work.bytes / (target.vectorBytes * kMaxAccessPerCycle * perNs));
    }
    // A fake device's clock obeys no physics. Elsewhere, what cannot have stayed in the caches came from memory.
    if (target.kind != schedule::DeviceKind::kFake && facts.copyBytesPerSecond > 0 && work.bytes > 4 * caches)
      ns = std::max(ns, work.bytes / (kMaxOverCopyRate * facts.copyBytesPerSecond) * 1e9);
    limits.push_back(ns);
  }
  return limits;
}

Race::Race(Measurer& measurer, Counters& counters, RaceOptions options)
    : measurer_(measurer), counters_(counters), options_(std::move(options)), random_(options_.seed) {}

Race::Lane& Race::lane(int64_t id) {
  Lane& lane = lanes_[id];
  lane.logRatios.resize(static_cast<size_t>(options_.points));
  lane.ns.resize(static_cast<size_t>(options_.points));
  return lane;
}

double Race::anchorNs(int point) const {
  auto it = lanes_.find(options_.anchor);
  if (it == lanes_.end() || it->second.ns[static_cast<size_t>(point)].empty()) return 0;
  std::span<const double> ns = it->second.ns[static_cast<size_t>(point)];
  return median(ns.size() > kNoiseWindow ? ns.last(kNoiseWindow) : ns);
}

double Race::noise() const {
  std::vector<double> steps;
  if (auto it = lanes_.find(options_.anchor); it != lanes_.end()) {
    for (const std::vector<double>& ns : it->second.ns) {
      size_t from = ns.size() > kNoiseWindow ? ns.size() - kNoiseWindow : 0;
      for (size_t i = from + 1; i < ns.size(); ++i) steps.push_back(std::log(ns[i] / ns[i - 1]));
    }
  }
  // The step between two samples of one kernel has the variance of a ratio of two kernels' samples.
  constexpr double kLeast = 0.002, kMost = 0.2, kUnknown = 0.05;
  return steps.size() < 4 ? kUnknown : std::clamp(1.4826 * medianAbsoluteDeviation(steps), kLeast, kMost);
}

double Race::logScoreOf(const Lane& lane) const {
  double sum = 0;
  int points = 0;
  for (const std::vector<double>& ratios : lane.logRatios) {
    if (ratios.empty()) continue;
    sum += median(ratios);
    ++points;
  }
  return points == 0 ? kInfinity : sum / points;
}

RaceEntry Race::standing(int64_t id) const {
  RaceEntry entry{.id = id, .logScore = kInfinity, .samples = 0, .lastNs = 0, .rejection = {}};
  auto it = lanes_.find(id);
  if (it == lanes_.end()) return entry;
  const Lane& lane = it->second;
  entry.logScore = lane.rejection ? kInfinity : logScoreOf(lane);
  entry.samples = lane.samples;
  entry.lastNs = lane.ns.back().empty() ? 0 : median(lane.ns.back());
  entry.rejection = lane.rejection;
  return entry;
}

double Race::expectedSeconds(int64_t id, int point) const {
  auto at = static_cast<size_t>(point);
  double ns = at < options_.anchorNs.size() ? options_.anchorNs[at] : 0;
  if (auto it = lanes_.find(id); it != lanes_.end()) {
    const std::vector<double>& known = it->second.ns[at];
    if (!known.empty()) ns = known.back();
  }
  return std::max(options_.sampleSeconds, ns * 1e-9);
}

void Race::refuseImpossible(Lane& lane) const {
  if (!lane.rejection) lane.rejection = impossible(lane.ns, options_.shortestNs);
}

/// One sample of each of IDS (order shuffled), in calls of a few, each with the anchor and BEST.
Status Race::sampleAll(std::vector<int64_t> ids, std::optional<int64_t> best, int point, Deadline deadline,
                       bool& stopped) {
  shuffle(ids, random_);
  auto at = static_cast<size_t>(point);
  for (size_t begin = 0; begin < ids.size() && !stopped;) {
    if (cancelled(options_.cancellation)) {
      stopped = true;
      break;
    }
    std::vector<int64_t> call{options_.anchor};
    double seconds = expectedSeconds(options_.anchor, point);
    if (best && !lane(*best).rejection) {
      call.push_back(*best);
      seconds += expectedSeconds(*best, point);
    }
    size_t anchors = call.size(), end = begin;
    double left = deadline.remainingSeconds();
    while (end < ids.size() && end - begin < kChunk) {
      seconds += expectedSeconds(ids[end], point);
      if (seconds > left) break;
      call.push_back(ids[end++]);
    }
    if (call.size() == anchors) {  // not even one fits
      stopped = true;
      break;
    }
    begin = end;
    shuffle(call, random_);
    KTUNE_ASSIGN(std::vector<Sample> samples,
                 sampleOnce(measurer_, counters_, call, point, options_.sampleSeconds, deadline, stopped));
    if (stopped) break;

    double anchorNs = 0;
    for (size_t i = 0; i < call.size(); ++i) {
      Lane& l = lane(call[i]);
      if (samples[i].rejection) {
        l.rejection = samples[i].rejection;
        if (call[i] == options_.anchor) anchorRejection_ = l.rejection;
      } else if (!(samples[i].ns > 0)) {
        return internalError("the measurer returned a time that is not positive");
      } else if (call[i] == options_.anchor) {
        anchorNs = samples[i].ns;
      }
    }
    if (anchorRejection_) return Status::ok();
    for (size_t i = 0; i < call.size(); ++i) {
      if (samples[i].rejection) continue;
      Lane& l = lane(call[i]);
      ++l.samples;
      l.ns[at].push_back(samples[i].ns);
      l.logRatios[at].push_back(std::log(samples[i].ns / anchorNs));
      refuseImpossible(l);
    }
    if (lane(options_.anchor).rejection) {
      anchorRejection_ = lane(options_.anchor).rejection;
      return Status::ok();
    }
  }
  return Status::ok();
}

Status Race::run(std::vector<RaceEntry>& entries, std::optional<int64_t> best, const Rounds& rounds,
                 Deadline deadline) {
  std::vector<int64_t> alive;
  for (const RaceEntry& entry : entries) {
    lanes_.erase(entry.id);
    alive.push_back(entry.id);
  }
  bool stopped = false;
  for (int round = 0; round < rounds.rounds && !alive.empty() && !stopped && !anchorRejection_; ++round) {
    int perPoint = std::max(1, (rounds.samples << round) / options_.points);
    // With little time left a bucket is judged by its high end alone at first.
    double cost = 0;
    for (int point = 0; point < options_.points; ++point)
      cost += static_cast<double>(alive.size()) * expectedSeconds(options_.anchor, point);
    int firstPoint =
        round == 0 && !rounds.keepAll && cost > 0.1 * deadline.remainingSeconds() ? options_.points - 1 : 0;
    for (int sample = 0; sample < perPoint && !stopped && !anchorRejection_; ++sample) {
      for (int point = options_.points - 1; point >= firstPoint && !stopped && !anchorRejection_; --point) {
        KTUNE_TRY(sampleAll(alive, best, point, deadline, stopped));
        std::erase_if(alive, [&](int64_t id) {
          const Lane& l = lane(id);
          return l.rejection.has_value() ||
                 (l.samples > 0 && logScoreOf(l) > std::log(kHopelessRatio) && !rounds.keepAll);
        });
      }
    }
    if (rounds.keepAll || round + 1 == rounds.rounds || alive.size() < 2) continue;
    std::stable_sort(alive.begin(), alive.end(),
                     [&](int64_t a, int64_t b) { return logScoreOf(lane(a)) < logScoreOf(lane(b)); });
    size_t half = (alive.size() + 1) / 2, most = std::max(half, alive.size() * 3 / 4);
    double cut = logScoreOf(lane(alive[half - 1])) +
                 noise() / std::sqrt(std::max(1.0, static_cast<double>(lane(alive[half - 1]).samples)));
    size_t keep = half;
    while (keep < most && logScoreOf(lane(alive[keep])) <= cut) ++keep;
    alive.resize(keep);
  }
  for (RaceEntry& entry : entries) entry = standing(entry.id);
  return Status::ok();
}

Result<DuelResult> duel(Measurer& measurer, Counters& counters, const DuelOptions& options, Deadline deadline) {
  Random random(options.seed);
  DuelResult result;
  auto points = static_cast<size_t>(options.points);
  result.anchorNs.resize(points);
  result.challengerNs.resize(points);
  std::vector<std::vector<double>> logRatios(points);
  StoppingRule rule(options.stop);
  // The duel's samples are fresh, so that a union bound over its own looks would do; the number of candidates tried
  // is the larger correction, and keeps a hair's breadth from being reported as a gain.
  double comparisons = std::max<double>(static_cast<double>(std::size(kLooks)), static_cast<double>(options.tried));
  BootstrapOptions bootstrap{.confidence = 1 - (1 - options.confidence) / comparisons,
                             .seed = mixSeed(options.seed, 1)};

  auto look = [&] {
    result.decided = true;
    result.logRatio = bootstrapInterval(logRatios, Statistic::kMidmean, bootstrap);
    result.significant = result.logRatio.high < 0;
  };
  int64_t lookedAt = 0;
  bool stopped = false;
  while (!stopped) {
    double expected = 0;
    for (size_t point = 0; point < points; ++point) {
      double ns = point < options.anchorNs.size() ? options.anchorNs[point] : 0;
      expected += 2 * std::max(options.sampleSeconds, ns * 1e-9);
    }
    if (cancelled(options.cancellation) || deadline.remainingSeconds() < expected) break;
    double roundLogs = 0;
    for (size_t point = 0; point < points && !stopped; ++point) {
      std::vector<int64_t> call{options.anchor, options.challenger};
      shuffle(call, random);
      KTUNE_ASSIGN(std::vector<Sample> samples, sampleOnce(measurer, counters, call, static_cast<int>(point),
                                                           options.sampleSeconds, deadline, stopped));
      if (stopped) break;
      size_t anchorAt = call[0] == options.anchor ? 0 : 1;
      result.anchorRejection = samples[anchorAt].rejection;
      result.challengerRejection = samples[1 - anchorAt].rejection;
      if (result.anchorRejection || result.challengerRejection) return result;
      double anchorNs = samples[anchorAt].ns, challengerNs = samples[1 - anchorAt].ns;
      if (!(anchorNs > 0 && challengerNs > 0))
        return internalError("the measurer returned a time that is not positive");
      result.anchorNs[point].push_back(anchorNs);
      result.challengerNs[point].push_back(challengerNs);
      logRatios[point].push_back(std::log(challengerNs / anchorNs));
      roundLogs += logRatios[point].back() / static_cast<double>(points);
    }
    if (stopped) break;
    ++result.rounds;
    rule.add(std::exp(roundLogs));
    if (std::find(std::begin(kLooks), std::end(kLooks), static_cast<int>(result.rounds)) == std::end(kLooks)) continue;
    if (result.rounds < options.stop.minSamples) continue;
    look();
    lookedAt = result.rounds;
    if (result.significant || result.logRatio.low > 0 || rule.verdict() != StoppingRule::Verdict::kContinue) break;
  }
  result.challengerRejection = impossible(result.challengerNs, options.shortestNs);
  // Ended between two looks: the last look is made now, in place of those that are not.
  if (result.rounds >= options.stop.minSamples && result.rounds != lookedAt) look();
  return result;
}

namespace {
constexpr double kLongEnoughSeconds = 0.2;  ///< Of sampling one plan alone at one point.
}  // namespace

Result<AloneResult> timeAlone(Measurer& measurer, Counters& counters, int64_t id, int points, double sampleSeconds,
                              StoppingRule::Parameters stop, Deadline deadline) {
  AloneResult result;
  result.ns.resize(static_cast<size_t>(points));
  for (int point = 0; point < points; ++point) {
    StoppingRule rule(stop);
    double last = sampleSeconds;
    bool stopped = false;
    double began = monotonicSeconds();
    // Calls of a tenth of a second and more are steady: two say enough, and more would take the search's time.
    auto enough = [&] {
      return result.ns[static_cast<size_t>(point)].size() >= 2 && monotonicSeconds() - began > kLongEnoughSeconds;
    };
    while (!enough() && rule.verdict() == StoppingRule::Verdict::kContinue && deadline.remainingSeconds() > last) {
      int64_t call[] = {id};
      KTUNE_ASSIGN(std::vector<Sample> samples,
                   sampleOnce(measurer, counters, call, point, sampleSeconds, deadline, stopped));
      if (stopped) return result;
      result.rejection = samples[0].rejection;
      if (result.rejection) return result;
      last = std::max(sampleSeconds, samples[0].ns * 1e-9);
      result.ns[static_cast<size_t>(point)].push_back(samples[0].ns);
      rule.add(samples[0].ns);
    }
  }
  return result;
}

}  // namespace ktune::search
