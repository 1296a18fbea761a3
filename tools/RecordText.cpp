#include "tools/RecordText.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "ir/op/GraphJson.h"
#include "tools/Shell.h"

namespace ktune::tools {

namespace {

// Above this many operations a byte the arithmetic binds on every processor that ktune knows, and a share of the copy
// rate says nothing.
constexpr double kMemoryBoundOperationsPerByte = 4;

Json symbolsJson(const std::vector<int64_t>& values) {
  return Json(values);
}

Json stampJson(const cache::Stamp& stamp) {
  return {{"ktune", stamp.ktune}, {"compiler", stamp.compiler}, {"driver", stamp.driver}, {"verifier", stamp.verifier}};
}

Json pointJson(const cache::PointEvidence& point, double copyRate) {
  Json json = {{"symbols", symbolsJson(point.symbolValues)},
               {"median_ns", point.medianNs},
               {"default_median_ns", point.defaultMedianNs},
               {"samples", point.samples},
               {"bytes", point.bytes},
               {"operations", point.operations}};
  if (point.medianNs > 0) {
    json["gb_per_s"] = point.bytes / point.medianNs;
    json["gflop_per_s"] = point.operations / point.medianNs;
    if (copyRate > 0) json["copy_share"] = point.bytes / point.medianNs * 1e9 / copyRate;
  }
  return json;
}

}  // namespace

std::string_view freshnessName(Freshness freshness) {
  switch (freshness) {
    case Freshness::kFresh:
      return "fresh";
    case Freshness::kStale:
      return "stale";
    case Freshness::kOtherDevice:
      return "other-device";
  }
  return "?";
}

StampJudge::StampJudge() : devices_(runtime::listDevices()) {
  for (const runtime::DeviceInfo& device : devices_) stamps_.push_back(stampFor(device));
}

const runtime::DeviceInfo* StampJudge::deviceOf(const cache::Record& record) const {
  for (const runtime::DeviceInfo& device : devices_)
    if (device.target.hardware == record.hardware) return &device;
  return nullptr;
}

Freshness StampJudge::judge(const cache::Record& record) const {
  Freshness freshness = Freshness::kOtherDevice;
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].target.hardware != record.hardware) continue;
    if (stamps_[i] == record.stamp) return Freshness::kFresh;
    freshness = Freshness::kStale;
  }
  return freshness;
}

std::vector<std::string> stampDifferences(const cache::Stamp& record, const cache::Stamp& here) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* field, const std::string& then, const std::string& now) {
    if (then != now) differences.push_back(std::string(field) + ": record \"" + then + "\", here \"" + now + "\"");
  };
  compare("ktune", record.ktune, here.ktune);
  compare("compiler", record.compiler, here.compiler);
  compare("driver", record.driver, here.driver);
  compare("verifier", record.verifier, here.verifier);
  return differences;
}

Result<op::Graph> graphOf(const cache::Record& record) {
  return op::fromCanonicalBytes(record.canonical);
}

std::string labelOf(const cache::Record& record) {
  const Result<op::Graph> graph = graphOf(record);
  return graph ? op::label(*graph) : "?";
}

std::string bucketText(const cache::Record& record) {
  const Result<op::Graph> graph = graphOf(record);
  return graph ? record.bucket.describe(*graph) : "?";
}

std::string speedUpText(const cache::Record& record) {
  if (record.decision == cache::Decision::kUseFallback || !(record.evidence.ratio > 0)) return "-";
  return format("%.2fx", 1 / record.evidence.ratio);
}

TypicalTimes typicalTimes(const cache::Record& record) {
  const auto mean = [&record](double cache::PointEvidence::*field) {
    double logs = 0;
    for (const cache::PointEvidence& point : record.evidence.points) {
      if (!(point.*field > 0)) return 0.0;
      logs += std::log(point.*field);
    }
    return record.evidence.points.empty() ? 0 : std::exp(logs / static_cast<double>(record.evidence.points.size()));
  };
  return {mean(&cache::PointEvidence::medianNs), mean(&cache::PointEvidence::defaultMedianNs)};
}

std::string throughputText(const cache::Record& record) {
  if (record.evidence.points.empty()) return "-";
  const cache::PointEvidence& point = record.evidence.points.back();
  if (!(point.medianNs > 0) || !(point.bytes > 0)) return "-";
  if (point.operations > kMemoryBoundOperationsPerByte * point.bytes)
    return format("%.1f GFLOP/s", point.operations / point.medianNs);
  if (record.evidence.copyBytesPerSecond > 0)
    return format("%.0f %% of copy", 100 * point.bytes / point.medianNs * 1e9 / record.evidence.copyBytesPerSecond);
  return format("%.1f GB/s", point.bytes / point.medianNs);
}

std::string conditionsText(const cache::Evidence& evidence) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (evidence.clockMhz > 0) add(format("%.0f MHz", evidence.clockMhz));
  if (evidence.powerWatts > 0) add(format("%.0f W", evidence.powerWatts));
  if (evidence.temperatureC > 0) add(format("%.0f C", evidence.temperatureC));
  if (!evidence.throttle.empty()) add("held down by " + evidence.throttle);
  return text;
}

int64_t rejectedCount(const cache::Evidence& evidence) {
  int64_t count = 0;
  for (const auto& [reason, n] : evidence.rejections) count += n;
  return count;
}

std::string timeText(int64_t unixTime) {
  if (unixTime <= 0) return "-";
  const std::time_t time = unixTime;
  std::tm parts = {};
  ::gmtime_r(&time, &parts);
  char text[64];
  const size_t length = std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return std::string(text, length);
}

Json recordSummaryJson(const cache::Record& record) {
  const cache::Evidence& evidence = record.evidence;
  Json json = {{"key", record.key.hex()},
               {"bucket", record.bucketIndex},
               {"range", bucketText(record)},
               {"label", labelOf(record)},
               {"decision", std::string(cache::decisionName(record.decision))},
               {"ratio", evidence.ratio},
               {"ratio_low", evidence.ratioLow},
               {"ratio_high", evidence.ratioHigh},
               {"candidates", evidence.candidates},
               {"measured", evidence.measured},
               {"rejected", rejectedCount(evidence)},
               {"proposer", evidence.proposer}};
  Json points = Json::array();
  for (const cache::PointEvidence& point : evidence.points)
    points.push_back(pointJson(point, evidence.copyBytesPerSecond));
  json["points"] = std::move(points);
  return json;
}

Json recordJson(const cache::Record& record) {
  const cache::Evidence& evidence = record.evidence;
  Json json = recordSummaryJson(record);
  json["hardware"] = record.hardware;
  json["stamp"] = stampJson(record.stamp);
  if (const Result<op::Graph> graph = graphOf(record)) json["description"] = op::toJson(*graph);
  json["genome"] = record.genome.text();
  Json rejections = Json::object();
  for (const auto& [reason, count] : evidence.rejections) rejections[reason] = count;
  json["evidence"] = {{"seed", evidence.seed},
                      {"confidence", evidence.confidence},
                      {"rejections", std::move(rejections)},
                      {"checks", evidence.checks},
                      {"worst_error_share", evidence.worstErrorShare},
                      {"plan_digest", evidence.planDigest.hex()},
                      {"tuning_seconds", evidence.tuningSeconds},
                      {"copy_bytes_per_second", evidence.copyBytesPerSecond},
                      {"unix_time", evidence.unixTime},
                      {"regime", evidence.regime}};
  if (const std::string text = conditionsText(evidence); !text.empty())
    json["evidence"]["conditions"] = {{"clock_mhz", evidence.clockMhz},
                                      {"power_watts", evidence.powerWatts},
                                      {"temperature_c", evidence.temperatureC},
                                      {"throttle", evidence.throttle}};
  Json launches = Json::array();
  for (const cache::Launch& launch : record.plan.launches) launches.push_back(launch.symbol);
  Json artefacts = Json::array();
  for (const cache::Artefact& artefact : record.plan.artefacts)
    artefacts.push_back({{"bytes", artefact.bytes.size()}, {"digest", artefact.digest.hex()}});
  Json preconditions = Json::array();
  for (const cache::Precondition& precondition : record.plan.preconditions)
    preconditions.push_back(precondition.describe());
  json["plan"] = {{"digest", record.plan.digest().hex()},
                  {"launches", std::move(launches)},
                  {"artefacts", std::move(artefacts)},
                  {"preconditions", std::move(preconditions)}};
  return json;
}

}  // namespace ktune::tools
