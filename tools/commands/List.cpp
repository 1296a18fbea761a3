// ktune list: the records of a cache.
#include <CLI/CLI.hpp>

#include "tools/Commands.h"
#include "tools/RecordText.h"

namespace ktune::tools {

namespace {

// Long enough to be unique in any cache that a person lists, short enough to copy.
constexpr size_t kKeyPrefixDigits = 12;

ExitCode run(const Shell& shell) {
  Result<std::unique_ptr<cache::Store>> store = shell.openCache(/*readOnly=*/true);
  if (!store) return shell.fail(cacheExitCode(store.error()), store.error());
  const StampJudge judge;
  Json recordsJson = Json::array();
  std::vector<std::vector<std::string>> rows = {
      {"key", "operator", "bucket", "decision", "speed-up", "time", "stamp", "tuned at"}};
  const Status status = (*store)->forEach([&](const cache::Record& record) {
    const std::string freshness(freshnessName(judge.judge(record)));
    if (shell.common.json) {
      Json json = recordSummaryJson(record);
      json["stamp"] = freshness;
      json["unix_time"] = record.evidence.unixTime;
      recordsJson.push_back(std::move(json));
      return true;
    }
    rows.push_back({record.key.hex().substr(0, kKeyPrefixDigits), labelOf(record), bucketText(record),
                    std::string(cache::decisionName(record.decision)), speedUpText(record),
                    durationText(typicalTimes(record).ns), freshness, timeText(record.evidence.unixTime)});
    return true;
  });
  if (!status.isOk()) return shell.fail(ExitCode::kCache, status);
  const cache::StoreStats stats = (*store)->stats();
  if (shell.common.json) {
    printJson({{"cache", (*store)->location()},
               {"records", std::move(recordsJson)},
               {"bytes", stats.bytes},
               {"quarantined", stats.quarantined}});
    return ExitCode::kOk;
  }
  if (rows.size() > 1) printText(tableText(rows, {4, 5}));
  printText(format("%zu records in %s (%s)\n", rows.size() - 1, (*store)->location().c_str(),
                   bytesText(static_cast<double>(stats.bytes)).c_str()));
  return ExitCode::kOk;
}

}  // namespace

Command declareList(CLI::App& root, Shell& shell) {
  CLI::App* app = root.add_subcommand("list", "List the records of the cache");
  addCommonOptions(*app, shell, kJsonOption | kCacheOption);
  app->footer(
      "Example:\n  ktune list --cache /var/cache/ktune\n\n"
      "Only reads: works while another process tunes into the same cache.\n"
      "stamp: fresh, stale (another build, compiler, driver or verifier made it) or other-device.");
  return {app, [&shell] { return run(shell); }};
}

}  // namespace ktune::tools
