#include "tools/Tuning.h"

#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/File.h"
#include "base/Log.h"
#include "base/System.h"
#include "tools/Display.h"
#include "tools/RecordText.h"
#include "tools/Signals.h"

namespace ktune::tools {

namespace {

// Less free space than this and the next flush of the database may fail: better to say so before tuning for minutes.
constexpr uint64_t kMinFreeDiskBytes = uint64_t{16} << 20;

/// A store that stops the tuning when it can keep nothing more: results that cannot be kept are not worth more time.
/// Several devices are tuned at once, each by a thread.
class WatchedStore : public cache::Store {
 public:
  WatchedStore(cache::Store& store, CancellationFlag& stop) : store_(store), stop_(stop) {}
  Result<std::optional<cache::Record>> get(const op::Key& key, int32_t bucketIndex) override {
    const std::lock_guard lock(mutex_);
    return store_.get(key, bucketIndex);
  }
  Status put(const cache::Record& record) override {
    const std::lock_guard lock(mutex_);
    Status status = store_.put(record);
    if (!status.isOk()) {
      if (failure_.isOk()) failure_ = status;
      stop_.raise();
    }
    return status;
  }
  Status remove(const op::Key& key, int32_t bucketIndex) override { return store_.remove(key, bucketIndex); }
  Status forEach(const std::function<bool(const cache::Record&)>& visit) override { return store_.forEach(visit); }
  cache::StoreStats stats() override { return store_.stats(); }
  Status close() override { return store_.close(); }
  const std::string& location() const override { return store_.location(); }

  /// The first put() that failed, or ok.
  [[nodiscard]] const Status& failure() const { return failure_; }

 private:
  std::mutex mutex_;
  cache::Store& store_;
  CancellationFlag& stop_;
  Status failure_;
};

bool allHits(cache::Store& store, const std::vector<PlannedUnit>& units, const cache::Stamp& stamp) {
  for (const PlannedUnit& unit : units) {
    const auto record = store.get(unit.key, unit.unit.bucketIndex);
    if (!record || !record->has_value() || (*record)->stamp != stamp) return false;
  }
  return true;
}

/// The cache, ready to be written; or, when it cannot be (read-only image, owned by another process) and everything
/// asked for is in it already, read-only.
Result<std::unique_ptr<cache::Store>> openForTuning(const Shell& shell, const TuneOptions& options,
                                                    const std::vector<PlannedUnit>& units, const cache::Stamp& stamp) {
  Result<std::unique_ptr<cache::Store>> store = shell.openCache(/*readOnly=*/false);
  if (store) {
    const uint64_t free = freeDiskBytes((*store)->location());
    if (free == 0 || free >= kMinFreeDiskBytes || (!options.retune && allHits(**store, units, stamp))) return store;
    return resourceExhausted("only " + bytesText(static_cast<double>(free)) + " are free where the cache lies (" +
                             (*store)->location() + "); free at least " + bytesText(kMinFreeDiskBytes) +
                             " or give another --cache");
  }
  const StatusCode code = store.error().code();
  if (options.retune || (code != StatusCode::kPermissionDenied && code != StatusCode::kUnavailable &&
                         code != StatusCode::kResourceExhausted))
    return store;
  Result<std::unique_ptr<cache::Store>> readOnly = shell.openCache(/*readOnly=*/true);
  if (readOnly && allHits(**readOnly, units, stamp)) return readOnly;
  return store;
}

struct Tally {
  int64_t hits = 0, tuned = 0, notReached = 0, failed = 0;
  int64_t defaultOnly = 0;  ///< Of the done ones: nothing but the default was tried.
  [[nodiscard]] int64_t done() const { return hits + tuned; }
};

Json unitJson(const PlannedUnit& unit, const search::UnitReport& report) {
  Json json = {{"key", unit.key.hex()},
               {"bucket", unit.unit.bucketIndex},
               {"range", unit.bucket.describe(unit.unit.graph)},
               {"label", unit.label},
               {"names", unit.names},
               {"count", unit.count},
               {"share", unit.share},
               {"outcome", std::string(outcomeName(report.outcome))},
               {"seconds", report.seconds}};
  if (report.outcome == search::UnitOutcome::kHit || report.outcome == search::UnitOutcome::kTuned) {
    const Json record = recordSummaryJson(report.record);
    for (const auto& [field, value] : record.items())
      if (!json.contains(field)) json[field] = value;
    Json rejections = Json::object();
    for (const auto& [reason, count] : report.record.evidence.rejections) rejections[reason] = count;
    json["rejections"] = std::move(rejections);
  } else if (!report.status.isOk()) {
    json["error"] = {{"code", std::string(statusCodeName(report.status.code()))}, {"message", report.status.message()}};
  }
  return json;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string unitsTable(const std::vector<PlannedUnit>& units, const std::vector<search::UnitReport>& reports) {
  std::vector<std::vector<std::string>> rows = {{"operator", "bucket", "decision", "default", "tuned", "speed-up",
                                                 "throughput", "candidates", "rejected", "used as"}};
  for (size_t i = 0; i < units.size(); ++i) {
    const search::UnitReport& report = reports[i];
    std::vector<std::string> row = {units[i].label, units[i].bucket.describe(units[i].unit.graph)};
    const bool hasRecord = report.outcome == search::UnitOutcome::kHit || report.outcome == search::UnitOutcome::kTuned;
    if (hasRecord) {
      const cache::Record& record = report.record;
      const TypicalTimes times = typicalTimes(record);
      row.insert(row.end(),
                 {std::string(cache::decisionName(record.decision)), durationText(times.defaultNs),
                  durationText(times.ns), speedUpText(record), throughputText(record),
                  std::to_string(record.evidence.candidates), std::to_string(rejectedCount(record.evidence))});
    } else {
      row.insert(row.end(), {std::string(outcomeName(report.outcome)), "-", "-", "-", "-", "-", "-"});
    }
    row.push_back(joined(units[i].names));
    rows.push_back(std::move(row));
  }
  return tableText(rows, {3, 4, 5, 6, 7, 8});
}

}  // namespace

void addTuneOptions(CLI::App& app, Shell& shell, TuneOptions& o, const std::string& budget) {
  o.budget = budget;
  app.add_option("--tokens", o.tokens, "Bucket edges of the number of tokens, ascending: 1,16 makes M=1 and M=2..16")
      ->type_name("N,N,...")
      ->capture_default_str();
  app.add_option("--budget", o.budget, "Time for everything together: 40s, 2m, 1h")
      ->type_name("TIME")
      ->capture_default_str();
  app.add_option("--candidates", o.candidates,
                 "At most this many candidates per operator and bucket (default: no limit)")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app.add_option("--seed", o.seed, "Seed of every random choice")->type_name("N")->capture_default_str();
  app.add_flag("--retune", o.retune, "Tune what the cache has too; its winner races along");
  app.add_flag("--quiet,-q", o.quiet, "No progress");
  addCommonOptions(app, shell, kJsonOption | kCacheOption | kDeviceOption | kJobsOption);
}

Result<runtime::WorkerOptions> workerOptions(const Shell& shell, const runtime::DeviceInfo& device) {
  runtime::WorkerOptions options;
  KTUNE_ASSIGN(options.program, currentProgramPath());
  options.device = device.name;
  options.shareDevice = shell.common.shareDevice;
  options.tempDirectory = shell.settings.tempDir;
  options.compileJobs = shell.jobs();
  return options;
}

namespace {

/// One device with its share of the units.
struct Shard {
  runtime::DeviceInfo device;
  std::unique_ptr<search::Compiler> compiler;
  std::unique_ptr<search::Measurer> measurer;
  std::vector<size_t> indices;  ///< Into the planned units.
  std::vector<search::Unit> units;
  search::Counters counters;
  Result<std::vector<search::UnitReport>> reports = std::vector<search::UnitReport>();
};

/// Deals the units out: the heaviest first, each to the device that has least to do.
void dealOut(const std::vector<PlannedUnit>& planned, std::vector<Shard>& shards) {
  std::vector<size_t> order(planned.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return planned[a].unit.weight > planned[b].unit.weight; });
  // A unit without weight still costs its proof.
  constexpr double kLeastWeight = 1e-3;
  std::vector<double> loads(shards.size(), 0);
  for (size_t unit : order) {
    const auto least = static_cast<size_t>(std::min_element(loads.begin(), loads.end()) - loads.begin());
    loads[least] += std::max(kLeastWeight, planned[unit].unit.weight);
    shards[least].indices.push_back(unit);
  }
  for (Shard& shard : shards) {
    std::sort(shard.indices.begin(), shard.indices.end());
    for (size_t unit : shard.indices) shard.units.push_back(planned[unit].unit);
  }
}

Result<std::vector<Shard>> makeShards(const Shell& shell, const std::vector<runtime::DeviceInfo>& devices) {
  std::vector<Shard> shards;
  for (const runtime::DeviceInfo& device : devices) {
    KTUNE_ASSIGN(runtime::WorkerOptions workers, workerOptions(shell, device));
    if (workers.compileJobs == 0 && device.target.kind == schedule::DeviceKind::kCuda) {
      // Kernels are compiled while others run: the threads that launch and check must not wait for a core.
      const int cores = std::max(1, usableCores() - static_cast<int>(devices.size()));
      workers.compileJobs = std::max(1, cores / static_cast<int>(devices.size()));
    }
    Shard shard;
    shard.device = device;
    KTUNE_ASSIGN(shard.compiler, runtime::makeCompilePool(workers, device.target));
    KTUNE_ASSIGN(shard.measurer, runtime::makeMeasureClient(workers, device.target));
    shards.push_back(std::move(shard));
  }
  return shards;
}

void add(search::Counters& to, const search::Counters& from) {
  to.compiles += from.compiles;
  to.measurements += from.measurements;
  to.checks += from.checks;
  to.hits += from.hits;
  to.tuned += from.tuned;
  to.compileSeconds += from.compileSeconds;
  to.checkSeconds += from.checkSeconds;
  to.measureSeconds += from.measureSeconds;
  to.preparationSeconds += from.preparationSeconds;
  to.waitSeconds += from.waitSeconds;
  to.starvedSeconds += from.starvedSeconds;
  to.refineSeconds += from.refineSeconds;
}

/// The part of the time in which the device was checked or timed rather than waiting for compilers, from a unit's
/// second batch on: before there is nothing that it could do.
double measuringShare(const search::Counters& counters) {
  const double busy = counters.checkSeconds + counters.measureSeconds;
  return busy > 0 ? busy / (busy + counters.starvedSeconds) : 0;
}

}  // namespace

ExitCode tuneWorkload(const Shell& shell, const TuneOptions& options, const Workload& workload) {
  const double startedAt = monotonicSeconds();
  const Result<double> budget = parseDuration(options.budget);
  if (!budget) return shell.fail(ExitCode::kUsage, budget.error().withPrefix("--budget"));
  const Result<std::vector<runtime::DeviceInfo>> devices = chooseDevices(shell.common.device);
  if (!devices) return shell.fail(ExitCode::kDevice, devices.error());
  const runtime::DeviceInfo& device = devices->front();
  const cache::Stamp stamp = stampFor(device);
  const std::vector<PlannedUnit> planned = planUnits(workload, device.target.hardware);

  Result<std::unique_ptr<cache::Store>> store = openForTuning(shell, options, planned, stamp);
  if (!store) return shell.fail(cacheExitCode(store.error()), store.error());

  Result<std::vector<Shard>> shards = makeShards(shell, *devices);
  if (!shards) return shell.fail(ExitCode::kDevice, shards.error());
  dealOut(planned, *shards);

  CancellationFlag stop;
  WatchedStore watched(**store, stop);
  search::Counters counters;
  search::TunerOptions tuner;
  tuner.budget.seconds = *budget;
  if (options.candidates > 0) tuner.budget.candidates = options.candidates;
  tuner.seed = options.seed;
  tuner.retune = options.retune;
  tuner.stamp = stamp;
  tuner.cancellation = &stop;

  std::vector<search::UnitReport> reports(planned.size());
  Status failure;
  int signal = 0;
  {
    const bool terminal = ::isatty(STDERR_FILENO) == 1;
    Display display(options.quiet       ? Display::Mode::kQuiet
                    : shell.common.json ? Display::Mode::kEvents
                    : terminal          ? Display::Mode::kLive
                                        : Display::Mode::kLines,
                    planned);
    for (const std::string& note : workload.notes) logInfo(note);
    const SignalGuard signals(stop);
    std::mutex displayMutex;
    const auto tuneShard = [&](Shard& shard) {
      search::TunerOptions own = tuner;
      own.target = shard.device.target;
      own.onProgress = [&](search::Progress progress) {
        const std::lock_guard lock(displayMutex);
        progress.unit = shard.indices[progress.unit];
        progress.unitCount = planned.size();
        display.progress(progress);
      };
      own.onUnit = [&](size_t unit, const search::UnitReport& report) {
        const std::lock_guard lock(displayMutex);
        display.unitDone(shard.indices[unit], report);
      };
      shard.reports = search::tuneUnits(shard.units, own, *shard.compiler, *shard.measurer, watched, shard.counters);
    };
    std::vector<std::thread> threads;
    for (size_t i = 1; i < shards->size(); ++i) threads.emplace_back(tuneShard, std::ref((*shards)[i]));
    tuneShard(shards->front());
    for (std::thread& thread : threads) thread.join();
    signal = signals.received();
  }
  for (Shard& shard : *shards) {
    add(counters, shard.counters);
    if (!shard.reports) {
      if (failure.isOk()) failure = shard.reports.error().withPrefix(shard.device.name);
      continue;
    }
    for (size_t i = 0; i < shard.indices.size(); ++i) reports[shard.indices[i]] = std::move((*shard.reports)[i]);
  }
  const Status closed = (*store)->close();

  // Why the run ends as it does, most important reason first.
  if (!watched.failure().isOk())
    return shell.fail(ExitCode::kCache,
                      watched.failure().withPrefix("the cache could not keep a result (what was done before is kept)"));
  if (!failure.isOk()) {
    const bool resources =
        failure.code() == StatusCode::kUnavailable || failure.code() == StatusCode::kResourceExhausted;
    return shell.fail(resources ? ExitCode::kDevice : ExitCode::kInternal, failure);
  }
  if (!closed.isOk()) return shell.fail(ExitCode::kCache, closed);

  Tally tally;
  const search::UnitReport* firstFailure = nullptr;
  for (const search::UnitReport& report : reports) {
    if (report.outcome == search::UnitOutcome::kHit) ++tally.hits;
    if (report.outcome == search::UnitOutcome::kTuned) ++tally.tuned;
    if (report.outcome == search::UnitOutcome::kNotReached) ++tally.notReached;
    if (report.outcome == search::UnitOutcome::kFailed && tally.failed++ == 0) firstFailure = &report;
    const bool hasRecord = report.outcome == search::UnitOutcome::kHit || report.outcome == search::UnitOutcome::kTuned;
    if (hasRecord && report.record.decision == cache::Decision::kDefault && report.record.evidence.candidates <= 1)
      ++tally.defaultOnly;
  }
  std::vector<std::string> notes = workload.notes;
  // These are hits from now on, so nobody would ever find out.
  if (tally.defaultOnly > 0 && options.candidates != 1)
    notes.push_back(std::to_string(tally.defaultOnly) + " of " + std::to_string(planned.size()) +
                    " units have had time for their default only; tune them with --retune and a larger --budget");
  const double seconds = monotonicSeconds() - startedAt;

  std::string names;
  for (const runtime::DeviceInfo& each : *devices) names += (names.empty() ? "" : ",") + each.name;
  ExitCode code = ExitCode::kOk;
  Status trouble;
  const std::string kept = std::to_string(tally.done()) + " of " + std::to_string(planned.size()) +
                           " units are done and kept; run the same command again to go on";
  if (signal != 0) {
    code = signal == SIGINT ? ExitCode::kInterrupted : ExitCode::kTerminated;
    trouble = cancelled("interrupted: " + kept);
  } else if (firstFailure != nullptr) {
    code = ExitCode::kNotTuned;
    trouble = firstFailure->status.withPrefix(std::to_string(tally.failed) + " of " + std::to_string(planned.size()) +
                                              " units failed");
  } else if (tally.notReached > 0) {
    code = ExitCode::kNotTuned;
    trouble =
        deadlineExceeded("the budget of " + options.budget + " ended first: " + kept + ", or give a larger --budget");
  }

  if (shell.common.json) {
    Json unitsJson = Json::array();
    for (size_t i = 0; i < planned.size(); ++i) unitsJson.push_back(unitJson(planned[i], reports[i]));
    Json outOfScope = Json::array();
    for (const OutOfScope& o : workload.outOfScope) outOfScope.push_back({{"operator", o.op}, {"why", o.why}});
    Json json = {{"source", workload.source},
                 {"device", names},
                 {"hardware", device.target.hardware},
                 {"cache", (*store)->location()},
                 {"units", std::move(unitsJson)},
                 {"counters",
                  {{"compiles", counters.compiles},
                   {"measurements", counters.measurements},
                   {"checks", counters.checks},
                   {"hits", tally.hits},
                   {"tuned", tally.tuned},
                   {"failed", tally.failed},
                   {"not_reached", tally.notReached},
                   {"compile_seconds", counters.compileSeconds},
                   {"check_seconds", counters.checkSeconds},
                   {"measure_seconds", counters.measureSeconds},
                   {"preparation_seconds", counters.preparationSeconds},
                   {"wait_seconds", counters.waitSeconds},
                   {"starved_seconds", counters.starvedSeconds},
                   {"refine_seconds", counters.refineSeconds},
                   {"measuring_share", measuringShare(counters)}}},
                 {"seconds", seconds},
                 {"interrupted", signal != 0},
                 {"out_of_scope", std::move(outOfScope)},
                 {"notes", notes}};
    if (!trouble.isOk()) json["error"] = errorJson(code, trouble.code(), trouble.message());
    printJson(json);
  } else {
    std::string text = unitsTable(planned, reports);
    if (!workload.outOfScope.empty()) {
      text += "not tuned yet (out of scope):";
      for (const OutOfScope& o : workload.outOfScope) text += (&o == &workload.outOfScope.front() ? " " : ", ") + o.op;
      text += "\n";
    }
    for (const std::string& note : notes) text += "note: " + note + "\n";
    text += format(
        "%zu units on %s: %lld in the cache, %lld tuned, %lld failed, %lld not reached; %lld compiles, %lld "
        "measurements; %.2f s\n",
        planned.size(), names.c_str(), static_cast<long long>(tally.hits), static_cast<long long>(tally.tuned),
        static_cast<long long>(tally.failed), static_cast<long long>(tally.notReached),
        static_cast<long long>(counters.compiles), static_cast<long long>(counters.measurements), seconds);
    printText(text);
  }
  if (!trouble.isOk()) {
    // Not fail(): the JSON above carries the error already.
    Shell plain = shell;
    plain.common.json = false;
    return plain.fail(code, trouble);
  }
  return code;
}

}  // namespace ktune::tools
