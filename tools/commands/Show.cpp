// ktune show: one record with its evidence, or its kernels at one stage of lowering.
#include <CLI/CLI.hpp>

#include "base/File.h"
#include "tools/Commands.h"
#include "tools/Lookup.h"
#include "tools/Printing.h"
#include "tools/RecordText.h"

namespace ktune::tools {

namespace {

struct ShowOptions {
  std::string key;
  int bucket = -1;
  std::string stage;
  std::string exportPath;
};

std::string symbolsText(const cache::Record& record, const std::vector<int64_t>& values) {
  const Result<op::Graph> graph = graphOf(record);
  std::string text;
  for (size_t i = 0; i < values.size(); ++i)
    text += (i == 0 ? "" : ", ") + (graph && i < graph->symbols.size() ? graph->symbols[i].name : std::string("?")) +
            "=" + std::to_string(values[i]);
  return text.empty() ? "static" : text;
}

std::string recordText(const cache::Record& record, const StampJudge& judge) {
  const cache::Evidence& e = record.evidence;
  std::string text = record.key.hex() + "  " + labelOf(record) + "  " + bucketText(record) + " (bucket " +
                     std::to_string(record.bucketIndex) + ")\n";
  const auto field = [&text](const char* name, const std::string& value) {
    text += format("  %-12s %s\n", name, value.c_str());
  };
  field("decision", std::string(cache::decisionName(record.decision)));
  if (record.decision != cache::Decision::kUseFallback) {
    field("speed-up", speedUpText(record) + format(" over the default (time ratio %.4f, %.4f to %.4f at %.4g %%)",
                                                   e.ratio, e.ratioLow, e.ratioHigh, 100 * e.confidence));
    field("throughput", throughputText(record));
  }
  for (const cache::PointEvidence& point : e.points)
    field("point", symbolsText(record, point.symbolValues) + ": " + durationText(point.medianNs) + ", default " +
                       durationText(point.defaultMedianNs) + ", " + std::to_string(point.samples) + " samples");
  field("regime", e.regime);
  if (const std::string conditions = conditionsText(e); !conditions.empty()) field("conditions", conditions);
  field("tuned",
        timeText(e.unixTime) + format(", %.1f s, seed %llu", e.tuningSeconds, static_cast<unsigned long long>(e.seed)));
  std::string rejections;
  for (const auto& [reason, count] : e.rejections)
    rejections += (rejections.empty() ? "" : ", ") + reason + " " + std::to_string(count);
  field("candidates", std::to_string(e.candidates) + " tried, " + std::to_string(e.measured) +
                          " timed, rejected: " + (rejections.empty() ? "none" : rejections));
  std::string checks;
  for (const std::string& check : e.checks) checks += (checks.empty() ? "" : ", ") + check;
  field("checks", (checks.empty() ? "none" : checks) + format("; largest error %.3g of its bound", e.worstErrorShare));
  field("proposer", e.proposer);
  field("genome", record.genome.text());
  std::string symbols;
  for (const cache::Launch& launch : record.plan.launches) symbols += (symbols.empty() ? "" : ", ") + launch.symbol;
  size_t artefactBytes = 0;
  for (const cache::Artefact& artefact : record.plan.artefacts) artefactBytes += artefact.bytes.size();
  field("kernels", (symbols.empty() ? "none" : symbols) +
                       (artefactBytes > 0 ? " (" + bytesText(static_cast<double>(artefactBytes)) + ")" : ""));
  field("plan", record.plan.digest().hex());
  for (const cache::Precondition& precondition : record.plan.preconditions) field("requires", precondition.describe());
  field("hardware", record.hardware);
  field("made by", "ktune " + record.stamp.ktune + ", " + record.stamp.compiler + ", " + record.stamp.driver +
                       ", verifier " + record.stamp.verifier);
  field("stamp", std::string(freshnessName(judge.judge(record))));
  if (const runtime::DeviceInfo* device = judge.deviceOf(record))
    for (const std::string& difference : stampDifferences(record.stamp, stampFor(*device))) field("", difference);
  return text;
}

/// ok when RECORDS is one record, which is all that OPTION can take.
Status onlyOne(const std::vector<cache::Record>& records, const char* option) {
  if (records.size() == 1) return Status::ok();
  std::string choices;
  for (const cache::Record& record : records)
    choices += (choices.empty() ? "" : ", ") + std::to_string(record.bucketIndex) + " (" + bucketText(record) + ")";
  return invalidArgument(std::string(option) + " takes one bucket; add --bucket with one of " + choices);
}

ExitCode exportRecord(const Shell& shell, const ShowOptions& options, const std::vector<cache::Record>& records) {
  if (const Status status = onlyOne(records, "--export"); !status.isOk()) return shell.fail(ExitCode::kUsage, status);
  const cache::Record& record = records.front();
  const std::string bytes = record.bytes();
  if (const Status status = writeFileAtomically(options.exportPath, bytes); !status.isOk())
    return shell.fail(ExitCode::kUsage, status.withPrefix("--export"));
  if (shell.common.json)
    printJson({{"key", record.key.hex()},
               {"bucket", record.bucketIndex},
               {"file", options.exportPath},
               {"bytes", static_cast<int64_t>(bytes.size())}});
  else
    printText("wrote " + options.exportPath + " (" + bytesText(static_cast<double>(bytes.size())) + ")\n");
  return ExitCode::kOk;
}

ExitCode showStage(const Shell& shell, const ShowOptions& options, const std::vector<cache::Record>& records) {
  if (const Status status = onlyOne(records, "--stage"); !status.isOk()) return shell.fail(ExitCode::kUsage, status);
  const cache::Record& record = records.front();
  if (record.decision == cache::Decision::kUseFallback)
    return shell.fail(ExitCode::kUsage, invalidArgument("this record has no kernel: it says use the fallback"));
  const StampJudge judge;
  const runtime::DeviceInfo* device = judge.deviceOf(record);
  if (device == nullptr)
    return shell.fail(
        ExitCode::kDevice,
        unavailable("this record was made for other hardware, and only that machine can show its stages: " +
                    record.hardware));
  const Result<std::string> text = printStage(shell, record, device->target, options.stage);
  if (!text) {
    const bool here =
        text.error().code() == StatusCode::kUnsupported || text.error().code() == StatusCode::kUnavailable;
    return shell.fail(here ? ExitCode::kDevice : ExitCode::kInternal, text.error());
  }
  if (shell.common.json)
    printJson({{"key", record.key.hex()}, {"bucket", record.bucketIndex}, {"stage", options.stage}, {"text", *text}});
  else
    printText(text->ends_with('\n') ? *text : *text + "\n");
  return ExitCode::kOk;
}

ExitCode run(const Shell& shell, const ShowOptions& options) {
  if (!options.stage.empty())
    if (const Status status = checkStage(options.stage); !status.isOk()) return shell.fail(ExitCode::kUsage, status);
  Result<std::unique_ptr<cache::Store>> store = shell.openCache(/*readOnly=*/true);
  if (!store) return shell.fail(cacheExitCode(store.error()), store.error());
  Result<std::vector<cache::Record>> records = findRecords(**store, options.key);
  if (!records) {
    const bool usage =
        records.error().code() == StatusCode::kInvalidArgument || records.error().code() == StatusCode::kNotFound;
    return shell.fail(usage ? ExitCode::kUsage : ExitCode::kCache, records.error());
  }
  if (options.bucket >= 0) {
    std::erase_if(*records, [&](const cache::Record& record) { return record.bucketIndex != options.bucket; });
    if (records->empty())
      return shell.fail(ExitCode::kUsage,
                        notFound("this key has no record for bucket " + std::to_string(options.bucket)));
  }
  if (!options.exportPath.empty()) return exportRecord(shell, options, *records);
  if (!options.stage.empty()) return showStage(shell, options, *records);
  const StampJudge judge;
  if (shell.common.json) {
    Json list = Json::array();
    for (const cache::Record& record : *records) {
      Json json = recordJson(record);
      json["freshness"] = std::string(freshnessName(judge.judge(record)));
      list.push_back(std::move(json));
    }
    printJson({{"cache", (*store)->location()}, {"records", std::move(list)}});
  } else {
    for (const cache::Record& record : *records) printText(recordText(record, judge));
  }
  return ExitCode::kOk;
}

}  // namespace

Command declareShow(CLI::App& root, Shell& shell) {
  CLI::App* app = root.add_subcommand("show", "Show a record with its evidence, or its kernels");
  auto o = std::make_shared<ShowOptions>();
  app->add_option("key", o->key, "The key, or as many of its first digits as make it unique")->required();
  app->add_option("--bucket", o->bucket, "Only this bucket of the key")->type_name("N")->check(CLI::NonNegativeNumber);
  app->add_option("--stage", o->stage, "Show the kernels instead, at this stage: " + stageNames())->type_name("STAGE");
  app->add_option("--export", o->exportPath, "Write the record to this file, for libktune to load")->type_name("FILE");
  addCommonOptions(*app, shell, kJsonOption | kCacheOption);
  app->footer(
      "Examples:\n  ktune show 3f2a9c\n  ktune show 3f2a9c --bucket 0 --stage assembly\n"
      "  ktune show 3f2a9c --bucket 0 --export rms_norm.ktune");
  return {app, [&shell, o] { return run(shell, *o); }};
}

}  // namespace ktune::tools
