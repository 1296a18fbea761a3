// The race (who of a batch is fast?) and the duel (is the winner really faster than the default?). Both sample a
// candidate beside the default in the same call and keep only the ratio, so that drift of the clock cancels.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "search/Services.h"
#include "search/Statistics.h"
#include "search/Tuner.h"

namespace ktune::search {

/// Shortest believable time of one call at each scoring point, in nanoseconds: see docs/search.md ("Impossible
/// times").
[[nodiscard]] std::vector<double> shortestBelievableNs(const schedule::Problem& problem, const schedule::Target& target,
                                                       const MeasureFacts& facts);

/// True when STATUS only says that DEADLINE passed or somebody cancelled: an end, not a failure.
[[nodiscard]] bool endedByCaller(const Status& status, Deadline deadline);

/// What a race knows of one candidate.
struct RaceEntry {
  int64_t id = 0;
  double logScore = 0;  ///< log of time / default's time, mean over points; infinity when unknown.
  int64_t samples = 0;
  double lastNs = 0;                   ///< Median at the last scoring point; 0 unknown.
  std::optional<Rejection> rejection;  ///< It fell out while running, or claims an impossible time.
};

struct RaceOptions {
  int points = 1;
  int64_t anchor = 0;  ///< The default's id: in every call.
  double sampleSeconds = 1e-3;
  std::vector<double> anchorNs;    ///< Rough time of one call of the anchor per point, to plan by; empty = unknown.
  std::vector<double> shortestNs;  ///< shortestBelievableNs().
  uint64_t seed = 1;
  const CancellationFlag* cancellation = nullptr;
};

/// Races batches of one unit in one worker. Remembers the samples of the anchor and of whoever is named best, since
/// those take part in every round of every batch.
class Race {
 public:
  Race(Measurer& measurer, Counters& counters, RaceOptions options);

  struct Rounds {
    int samples = 3;  ///< Of each candidate in round 0, all points together; each round takes twice as many.
    int rounds = 3;
    bool keepAll = false;  ///< No halving: everybody runs every round (finals).
  };
  /// Successive halving of ENTRIES (distinct ids, loaded; the anchor and BEST excepted): each round keeps the better
  /// half, and those the noise cannot tell from it. Stops early at DEADLINE or when cancelled; entries that were never
  /// sampled then keep an infinite logScore. The anchor's falling out ends the race: see anchorRejection().
  /// Errors: as Measurer::sample, except kDeadlineExceeded at the deadline.
  [[nodiscard]] Status run(std::vector<RaceEntry>& entries, std::optional<int64_t> best, const Rounds& rounds,
                           Deadline deadline);

  /// BEST's standing over all races so far.
  [[nodiscard]] RaceEntry standing(int64_t id) const;
  [[nodiscard]] const std::optional<Rejection>& anchorRejection() const { return anchorRejection_; }
  /// Median time of the anchor at POINT over its latest samples; 0 when it has none.
  [[nodiscard]] double anchorNs(int point) const;
  /// The noise of one ratio: sigma of its log, from the differences of the anchor's neighbouring samples.
  [[nodiscard]] double noise() const;
  void forget(int64_t id) { lanes_.erase(id); }

 private:
  struct Lane {
    std::vector<std::vector<double>> logRatios, ns;  ///< Per point.
    std::optional<Rejection> rejection;
    int64_t samples = 0;
  };
  Lane& lane(int64_t id);
  Status sampleAll(std::vector<int64_t> ids, std::optional<int64_t> best, int point, Deadline deadline, bool& stopped);
  [[nodiscard]] double expectedSeconds(int64_t id, int point) const;
  [[nodiscard]] double logScoreOf(const Lane& lane) const;
  void refuseImpossible(Lane& lane) const;

  Measurer& measurer_;
  Counters& counters_;
  RaceOptions options_;
  Random random_;
  std::map<int64_t, Lane> lanes_;
  std::optional<Rejection> anchorRejection_;
};

struct DuelOptions {
  int points = 1;
  int64_t anchor = 0, challenger = 1;  ///< Ids, both loaded.
  double sampleSeconds = 1e-3;
  std::vector<double> anchorNs;  ///< Rough time of one call per point, to plan by; empty = unknown.
  int64_t tried = 1;             ///< Candidates measured: the interval is corrected for them.
  double confidence = 0.99;      ///< Before correction.
  StoppingRule::Parameters stop{.minSamples = 10, .maxSamples = 60, .maxRelativeError = 0.001};
  uint64_t seed = 1;
  std::vector<double> shortestNs;  ///< shortestBelievableNs().
  const CancellationFlag* cancellation = nullptr;
};
struct DuelResult {
  bool decided = false;      ///< Enough rounds were played for an interval.
  bool significant = false;  ///< The interval lies entirely below 0: the challenger is faster.
  Interval logRatio;         ///< Challenger / anchor, mean over points.
  int64_t rounds = 0;
  std::vector<std::vector<double>> anchorNs, challengerNs;  ///< Per point.
  std::optional<Rejection> anchorRejection, challengerRejection;
};
/// Paired rounds over all points, order shuffled, until the interval is clear of 0 or the rule or DEADLINE or a
/// cancellation ends it. Looks at the interval only after fixed numbers of rounds: every look is a chance to be fooled.
[[nodiscard]] Result<DuelResult> duel(Measurer& measurer, Counters& counters, const DuelOptions& options,
                                      Deadline deadline);

struct AloneResult {
  std::vector<std::vector<double>> ns;  ///< Per point.
  std::optional<Rejection> rejection;
};
/// Samples one id alone at every point until STOP is satisfied or DEADLINE passes.
[[nodiscard]] Result<AloneResult> timeAlone(Measurer& measurer, Counters& counters, int64_t id, int points,
                                            double sampleSeconds, StoppingRule::Parameters stop, Deadline deadline);

}  // namespace ktune::search
