// Records for people and for scripts: what list, show, verify and warm-cache print of them.
#pragma once

#include <string>
#include <vector>

#include "base/Json.h"
#include "cache/format/Record.h"
#include "runtime/launch/Device.h"

namespace ktune::tools {

/// Is a record's evidence valid here?
enum class Freshness {
  kFresh,        ///< Made by this build for a device of this machine.
  kStale,        ///< For a device of this machine, by another build, compiler, driver or verifier.
  kOtherDevice,  ///< For a device that this machine does not have.
};
/// "fresh", "stale", "other-device".
[[nodiscard]] std::string_view freshnessName(Freshness freshness);

/// The devices here and their stamps, read once.
class StampJudge {
 public:
  StampJudge();
  [[nodiscard]] Freshness judge(const cache::Record& record) const;
  /// The device here that RECORD was made for, or nullptr.
  [[nodiscard]] const runtime::DeviceInfo* deviceOf(const cache::Record& record) const;

 private:
  std::vector<runtime::DeviceInfo> devices_;
  std::vector<cache::Stamp> stamps_;
};

/// Which fields of the stamp differ, one text each ("driver: record \"Linux 6.1\", here \"Linux 6.5\"").
[[nodiscard]] std::vector<std::string> stampDifferences(const cache::Stamp& record, const cache::Stamp& here);

/// What the record says of its operator. Errors: kCorrupt when the stored description does not decode.
[[nodiscard]] Result<op::Graph> graphOf(const cache::Record& record);
/// op::label of it, or "?" when it does not decode.
[[nodiscard]] std::string labelOf(const cache::Record& record);
/// op::Bucket::describe, or "?".
[[nodiscard]] std::string bucketText(const cache::Record& record);
/// Default's time / winner's: "1.31x"; "-" without a plan.
[[nodiscard]] std::string speedUpText(const cache::Record& record);
/// The winner's and the default's times, each the geometric mean over the scoring points, as the ratio is; 0 unknown.
struct TypicalTimes {
  double ns = 0;
  double defaultNs = 0;
};
[[nodiscard]] TypicalTimes typicalTimes(const cache::Record& record);
/// The winner's throughput at the last scoring point: "87 % of copy" where memory binds and the copy rate is known,
/// otherwise "12.3 GFLOP/s" or "9.1 GB/s"; "-" when unknown.
[[nodiscard]] std::string throughputText(const cache::Record& record);
/// "1980 MHz, 612 W, 54 C, held down by power cap": what is known of the device's conditions; empty when nothing is.
[[nodiscard]] std::string conditionsText(const cache::Evidence& evidence);
[[nodiscard]] int64_t rejectedCount(const cache::Evidence& evidence);
/// "2026-01-31 12:00:00 UTC"; "-" when unknown.
[[nodiscard]] std::string timeText(int64_t unixTime);

/// Key, label, bucket, decision, times: one line of list and warm-cache.
[[nodiscard]] Json recordSummaryJson(const cache::Record& record);
/// Everything but the artefacts' bytes.
[[nodiscard]] Json recordJson(const cache::Record& record);

}  // namespace ktune::tools
