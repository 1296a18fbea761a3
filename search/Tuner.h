// The tuner: key, look up, propose, compile, check, race, publish.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/Deadline.h"
#include "cache/store/Store.h"
#include "ir/schedule/Target.h"
#include "search/Services.h"

namespace ktune::search {

/// What tuning may cost, in all.
struct Budget {
  double seconds = 60;           ///< Wall clock for all units together.
  int64_t candidates = 1 << 30;  ///< Compiled candidates per unit, the default included.
};

/// One (description, bucket) to tune.
struct Unit {
  op::Graph graph;
  int32_t bucketIndex = 0;
  double weight = 1;  ///< Its share of the time budget, relative to the others (e.g. by estimated share of a step).
};

enum class UnitOutcome : uint8_t {
  kHit = 0,         ///< The cache had a valid record with the present stamp.
  kTuned = 1,       ///< A new record was published.
  kNotReached = 2,  ///< Budget or cancellation came first: nothing was published.
  kFailed = 3,      ///< Something of the machine's failed (status says what); nothing was published.
};

struct UnitReport {
  UnitOutcome outcome = UnitOutcome::kNotReached;
  cache::Record record;  ///< Valid for kHit and kTuned.
  Status status;
  double seconds = 0;
};

struct Counters {
  int64_t compiles = 0;      ///< Candidates sent to a compiler.
  int64_t measurements = 0;  ///< Samples taken.
  int64_t checks = 0;        ///< Guard checks run.
  int64_t hits = 0;
  int64_t tuned = 0;
  double compileSeconds = 0, checkSeconds = 0, measureSeconds = 0;  ///< Wall time spent in each.
  double preparationSeconds = 0;  ///< Of checkSeconds: references and inputs that later checks find ready.
  double waitSeconds = 0;         ///< In which nothing was measured because compilers were not ready.
  double starvedSeconds = 0;      ///< Of these, for batches that were compiled ahead: not a unit's first.
  /// In which finalists were measured again because compilers were not ready with anything new. In measureSeconds.
  double refineSeconds = 0;
};

/// Told to the caller while tuning goes on; drives the progress display.
struct Progress {
  size_t unit = 0, unitCount = 0;
  std::string label;       ///< "linear_f32_Mx6144x4096 M=2..16"
  std::string phase;       ///< "compile", "check", "race", "duel", "published", "hit"
  int64_t candidates = 0;  ///< Tried so far in this unit.
  double bestRatio = 1;    ///< Best time / default time so far.
  double bestNs = 0;       ///< At the last scoring point.
  double secondsLeft = 0;  ///< Of the whole budget.
};

struct TunerOptions {
  Budget budget;
  uint64_t seed = 1;
  bool retune = false;  ///< Tune even what the cache has (its winner races as the incumbent).
  cache::Stamp stamp;
  schedule::Target target;
  std::function<void(const Progress&)> onProgress;             ///< May be empty; called from the tuning thread.
  std::function<void(size_t unit, const UnitReport&)> onUnit;  ///< After each unit, record already durable.
  const CancellationFlag* cancellation = nullptr;
};

/// Tunes UNITS in order, publishing each as it is done; a unit in flight when the budget ends or CANCELLATION is
/// raised is published if its default was already proven right (with the best proven so far), else reported
/// kNotReached. Reports come in the order of units. Time left over by one unit goes to the later ones; every unit is
/// guaranteed enough to prove its default as long as the budget has anything left.
/// Errors: only what makes tuning impossible at all (no worker can be started; the store is gone).
[[nodiscard]] Result<std::vector<UnitReport>> tuneUnits(const std::vector<Unit>& units, const TunerOptions& options,
                                                        Compiler& compiler, Measurer& measurer, cache::Store& store,
                                                        Counters& counters);

}  // namespace ktune::search
