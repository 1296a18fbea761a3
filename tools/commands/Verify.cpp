// ktune verify: proves records again from nothing: key, plan, guard, and the win against a freshly compiled default.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <map>

#include "base/Log.h"
#include "ir/schedule/Vary.h"
#include "search/Statistics.h"
#include "tools/Backends.h"
#include "tools/Commands.h"
#include "tools/Lookup.h"
#include "tools/RecordText.h"
#include "tools/Tuning.h"

namespace ktune::tools {

namespace {

constexpr int kRounds = 20;  // Pairs at each scoring point.
constexpr double kSampleSeconds = 0.01;
constexpr double kStepSeconds = 300;  // For one request to a worker; it has shorter limits of its own.
// Two loads of the same code differ by where their pages happen to lie; a loss below this is no finding.
constexpr double kSlack = 1.02;

struct VerifyOptions {
  std::string key;
  bool all = false;
  bool keep = false;
  uint64_t seed = 0;
};

enum class Verdict { kHolds, kWrong, kSlower, kSkipped, kNotChecked };

std::string_view verdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kHolds:
      return "holds";
    case Verdict::kWrong:
      return "wrong";
    case Verdict::kSlower:
      return "slower";
    case Verdict::kSkipped:
      return "skipped";
    case Verdict::kNotChecked:
      return "not-checked";
  }
  return "?";
}

struct Finding {
  Verdict verdict = Verdict::kHolds;
  std::string detail;                    ///< Why, for people.
  std::vector<std::string> differences;  ///< From the record's stamp.
  std::vector<std::string> checks;
  double worstErrorShare = 0;
  search::Interval ratio;  ///< This time: record's / default's. All 0 when it was not timed.
  bool removed = false;
};

/// Workers of one device.
struct Bench {
  const runtime::DeviceInfo* device = nullptr;
  std::unique_ptr<search::Compiler> compiler;
  std::unique_ptr<search::Measurer> measurer;
};

Result<Bench> makeBench(const Shell& shell, const runtime::DeviceInfo& device) {
  Bench bench;
  bench.device = &device;
  KTUNE_ASSIGN(const runtime::WorkerOptions options, workerOptions(shell, device));
  KTUNE_ASSIGN(bench.compiler, runtime::makeCompilePool(options, device.target));
  KTUNE_ASSIGN(bench.measurer, runtime::makeMeasureClient(options, device.target));
  return bench;
}

Finding wrong(Finding finding, std::string why) {
  finding.verdict = Verdict::kWrong;
  finding.detail = std::move(why);
  return finding;
}

std::string rejectionText(const search::Rejection& rejection) {
  return rejection.reason + ": " + rejection.detail;
}

/// Times plan 1 against plan 2 in pairs. Errors: those of the measurer; an empty result when a plan fell out.
Result<std::optional<search::Interval>> duel(search::Measurer& measurer, size_t points, uint64_t seed) {
  std::vector<std::vector<double>> logRatios(points);
  for (int round = 0; round < kRounds; ++round)
    for (size_t point = 0; point < points; ++point) {
      // Who goes first alternates, so that what the first does to caches and clocks cancels.
      const bool recordFirst = (round + static_cast<int>(point)) % 2 == 0;
      const std::vector<int64_t> ids = recordFirst ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{2, 1};
      KTUNE_ASSIGN(const std::vector<search::Sample> samples,
                   measurer.sample(ids, static_cast<int>(point), kSampleSeconds, Deadline::after(kStepSeconds)));
      if (samples.size() != 2) return internalError("the measure worker returned too few samples");
      const search::Sample& record = samples[recordFirst ? 0 : 1];
      const search::Sample& fallback = samples[recordFirst ? 1 : 0];
      if (record.rejection || fallback.rejection || !(record.ns > 0) || !(fallback.ns > 0))
        return std::optional<search::Interval>();
      logRatios[point].push_back(std::log(record.ns / fallback.ns));
    }
  search::BootstrapOptions options;
  options.seed = seed;
  search::Interval interval = search::bootstrapInterval(logRatios, search::Statistic::kMidmean, options);
  interval.estimate = std::exp(interval.estimate);
  interval.low = std::exp(interval.low);
  interval.high = std::exp(interval.high);
  return std::optional<search::Interval>(interval);
}

/// Errors: the machine's, not the record's.
Result<Finding> verifyRecord(const cache::Record& record, Bench& bench, uint64_t seed) {
  Finding finding;
  finding.differences = stampDifferences(record.stamp, stampFor(*bench.device));
  const Result<op::Graph> graph = graphOf(record);
  if (!graph) return wrong(finding, "the stored description does not decode: " + graph.error().message());
  if (op::keyOf(*graph, record.hardware) != record.key)
    return wrong(finding, "the key does not follow from the stored description and hardware");
  const std::vector<op::Bucket> buckets = op::bucketsOf(*graph);
  if (record.bucketIndex < 0 || static_cast<size_t>(record.bucketIndex) >= buckets.size() ||
      buckets[static_cast<size_t>(record.bucketIndex)] != record.bucket)
    return wrong(finding, "the bucket is none of the description's");
  if (record.decision == cache::Decision::kUseFallback) {
    finding.detail = "says use the fallback: there is no kernel to prove";
    return finding;
  }
  if (const Status valid = record.plan.validate(); !valid.isOk()) return wrong(finding, valid.message());
  if (record.plan.digest() != record.evidence.planDigest)
    return wrong(finding, "the stored plan is not the one that was timed");

  KTUNE_ASSIGN(const schedule::Problem problem, schedule::Problem::create(*graph, record.bucket));
  search::MeasureOptions measure;
  measure.seed = seed;
  measure.final = true;
  search::Measurer& measurer = *bench.measurer;
  KTUNE_TRY(measurer.open(problem, measure, Deadline::after(kStepSeconds)).status());
  KTUNE_ASSIGN(const std::optional<search::Rejection> refused,
               measurer.load(1, record.plan, Deadline::after(kStepSeconds)));
  if (refused) return wrong(finding, rejectionText(*refused));
  KTUNE_ASSIGN(search::CheckOutcome proof, measurer.check(1, search::CheckLevel::kFull, Deadline::after(kStepSeconds)));
  finding.checks = std::move(proof.checks);
  finding.worstErrorShare = proof.worstErrorShare;
  if (proof.rejection) return wrong(finding, rejectionText(*proof.rejection));

  const search::CompileRequest request{0, schedule::defaultGenome(problem, bench.device->target)};
  KTUNE_ASSIGN(const std::vector<search::CompileOutcome> compiled,
               bench.compiler->compile(problem, {&request, 1}, Deadline::after(kStepSeconds)));
  if (compiled.empty() || compiled[0].rejection) {
    finding.detail = "right; not timed, because the default could not be compiled: " +
                     (compiled.empty() ? std::string("out of time") : rejectionText(*compiled[0].rejection));
    return finding;
  }
  if (compiled[0].plan.digest() == record.plan.digest()) {
    finding.detail = "right; the same code as the default of today";
    return finding;
  }
  KTUNE_ASSIGN(const std::optional<search::Rejection> defaultRefused,
               measurer.load(2, compiled[0].plan, Deadline::after(kStepSeconds)));
  search::CheckOutcome screen;
  if (!defaultRefused) {
    KTUNE_ASSIGN(screen, measurer.check(2, search::CheckLevel::kScreen, Deadline::after(kStepSeconds)));
  }
  if (defaultRefused || screen.rejection) {
    finding.detail = "right; not timed, because the default is not: " +
                     rejectionText(defaultRefused ? *defaultRefused : *screen.rejection);
    return finding;
  }
  KTUNE_ASSIGN(const std::optional<search::Interval> ratio,
               duel(measurer, op::scoringPoints(record.bucket).size(), seed));
  if (!ratio) return wrong(finding, "a kernel failed while it was timed");
  finding.ratio = *ratio;
  const std::string speed = format("%.2fx the default's speed (%.2fx to %.2fx; the record says %.2fx)",
                                   1 / ratio->estimate, 1 / ratio->high, 1 / ratio->low, 1 / record.evidence.ratio);
  if (ratio->low > kSlack) {
    finding.verdict = Verdict::kSlower;
    finding.detail = "right, but slower than the default: " + speed + "; tune it again with --retune";
  } else {
    finding.detail = "right; " + speed;
  }
  return finding;
}

Json findingJson(const cache::Record& record, const Finding& finding) {
  Json json = {{"key", record.key.hex()},
               {"bucket", record.bucketIndex},
               {"range", bucketText(record)},
               {"label", labelOf(record)},
               {"verdict", std::string(verdictName(finding.verdict))},
               {"detail", finding.detail},
               {"differences", finding.differences},
               {"checks", finding.checks},
               {"worst_error_share", finding.worstErrorShare},
               {"removed", finding.removed}};
  if (finding.ratio.estimate > 0)
    json["ratio"] = {{"now", finding.ratio.estimate},
                     {"low", finding.ratio.low},
                     {"high", finding.ratio.high},
                     {"record", record.evidence.ratio}};
  return json;
}

std::string findingText(const cache::Record& record, const Finding& finding) {
  std::string text = format("%-11s %s %s %s: %s\n", std::string(verdictName(finding.verdict)).c_str(),
                            record.key.hex().substr(0, 12).c_str(), labelOf(record).c_str(), bucketText(record).c_str(),
                            finding.detail.c_str());
  for (const std::string& difference : finding.differences) text += "            made elsewhere: " + difference + "\n";
  return text;
}

Result<std::vector<cache::Record>> selectRecords(cache::Store& store, const VerifyOptions& options) {
  if (!options.all) return findRecords(store, options.key);
  std::vector<cache::Record> records;
  KTUNE_TRY(store.forEach([&](const cache::Record& record) {
    records.push_back(record);
    return true;
  }));
  return records;
}

ExitCode run(const Shell& shell, VerifyOptions options) {
  if (options.all == !options.key.empty())
    return shell.fail(ExitCode::kUsage, invalidArgument(options.all ? "give a key or --all, not both"
                                                                    : "say what to verify: a key or --all"));
  if (options.seed == 0)  // Never the seed that a record was tuned with.
    options.seed = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  // Only reads while it proves: it may take long, and another process may own the cache.
  Result<std::unique_ptr<cache::Store>> store = shell.openCache(/*readOnly=*/true);
  if (!store) return shell.fail(cacheExitCode(store.error()), store.error());
  const Result<std::vector<cache::Record>> records = selectRecords(**store, options);
  if (!records) {
    const bool usage =
        records.error().code() == StatusCode::kInvalidArgument || records.error().code() == StatusCode::kNotFound;
    return shell.fail(usage ? ExitCode::kUsage : ExitCode::kCache, records.error());
  }
  const Status closed = (*store)->close();
  if (!closed.isOk()) logWarning(closed.message());

  const StampJudge judge;
  std::map<std::string, Bench> benches;
  std::vector<Finding> findings;
  Status trouble;  // The machine's first failure.
  for (const cache::Record& record : *records) {
    Finding finding;
    const runtime::DeviceInfo* device = judge.deviceOf(record);
    if (device == nullptr || !canCompileFor(device->target.kind).isOk()) {
      finding.verdict = Verdict::kSkipped;
      finding.detail = "made for other hardware: " + record.hardware;
    } else {
      auto bench = benches.find(device->name);
      if (bench == benches.end()) {
        Result<Bench> made = makeBench(shell, *device);
        if (!made) return shell.fail(ExitCode::kDevice, made.error());
        bench = benches.emplace(device->name, std::move(*made)).first;
      }
      Result<Finding> verified = verifyRecord(record, bench->second, options.seed);
      if (verified) {
        finding = std::move(*verified);
      } else {
        finding.verdict = Verdict::kNotChecked;
        finding.detail = verified.error().message();
        if (trouble.isOk()) trouble = verified.error();
      }
    }
    findings.push_back(std::move(finding));
    if (!shell.common.json) printText(findingText(record, findings.back()));
  }

  std::map<Verdict, int64_t> counts;
  for (const Finding& finding : findings) ++counts[finding.verdict];
  Status notRemoved;
  if (counts[Verdict::kWrong] > 0 && !options.keep) {
    Result<std::unique_ptr<cache::Store>> writable = shell.openCache(/*readOnly=*/false);
    notRemoved = writable.status();
    for (size_t i = 0; i < findings.size() && notRemoved.isOk(); ++i) {
      if (findings[i].verdict != Verdict::kWrong) continue;
      notRemoved = (*writable)->remove((*records)[i].key, (*records)[i].bucketIndex);
      findings[i].removed = notRemoved.isOk();
    }
    if (notRemoved.isOk()) notRemoved = (*writable)->close();
  }

  ExitCode code = ExitCode::kOk;
  Status error;
  if (counts[Verdict::kWrong] + counts[Verdict::kSlower] > 0) {
    code = ExitCode::kVerificationFailed;
    std::string removal = "; they were removed from the cache, and the next warm-cache tunes them again";
    if (counts[Verdict::kWrong] == 0)
      removal = "; tune them again with --retune";
    else if (options.keep)
      removal = "; they were kept, as asked";
    else if (!notRemoved.isOk())
      removal = "; they could not be removed: " + notRemoved.message();
    error = corrupt(format("%lld of %zu records do not hold (%lld wrong, %lld slower than the default)",
                           static_cast<long long>(counts[Verdict::kWrong] + counts[Verdict::kSlower]), findings.size(),
                           static_cast<long long>(counts[Verdict::kWrong]),
                           static_cast<long long>(counts[Verdict::kSlower])) +
                    removal);
  } else if (!trouble.isOk()) {
    code = ExitCode::kDevice;
    error = trouble.withPrefix(std::to_string(counts[Verdict::kNotChecked]) + " records could not be checked");
  } else if (!options.all && counts[Verdict::kSkipped] > 0) {
    code = ExitCode::kDevice;
    error = unavailable("this machine cannot verify the record: it was made for other hardware: " +
                        records->front().hardware);
  }
  if (shell.common.json) {
    Json list = Json::array();
    for (size_t i = 0; i < findings.size(); ++i) list.push_back(findingJson((*records)[i], findings[i]));
    Json json = {{"records", std::move(list)},           {"holds", counts[Verdict::kHolds]},
                 {"wrong", counts[Verdict::kWrong]},     {"slower", counts[Verdict::kSlower]},
                 {"skipped", counts[Verdict::kSkipped]}, {"not_checked", counts[Verdict::kNotChecked]}};
    if (!error.isOk()) json["error"] = errorJson(code, error.code(), error.message());
    printJson(json);
  } else if (error.isOk()) {
    printText(format("%lld records hold", static_cast<long long>(counts[Verdict::kHolds])) +
              (counts[Verdict::kSkipped] > 0
                   ? format(", %lld skipped\n", static_cast<long long>(counts[Verdict::kSkipped]))
                   : "\n"));
  }
  if (error.isOk()) return ExitCode::kOk;
  Shell plain = shell;
  plain.common.json = false;  // The JSON above carries the error already.
  return plain.fail(code, error);
}

}  // namespace

Command declareVerify(CLI::App& root, Shell& shell) {
  CLI::App* app = root.add_subcommand("verify", "Prove records again, from nothing, in fresh processes");
  auto o = std::make_shared<VerifyOptions>();
  app->add_option("key", o->key, "The key, or as many of its first digits as make it unique");
  app->add_flag("--all", o->all, "Every record of the cache");
  app->add_flag("--keep", o->keep, "Keep records that turn out wrong (default: they are removed)");
  app->add_option("--seed", o->seed, "Seed of the inputs (default: from the clock)")->type_name("N");
  addCommonOptions(*app, shell, kJsonOption | kCacheOption | kJobsOption);
  app->footer(
      "Examples:\n  ktune verify 3f2a9c\n  ktune verify --all --json\n\n"
      "Exit code 0: everything holds. 6: a record is wrong, or slower than the default.");
  return {app, [&shell, o] { return run(shell, *o); }};
}

}  // namespace ktune::tools
