#include "runtime/worker/Protocol.h"

#include <algorithm>

#include "ir/op/Canonical.h"

namespace ktune::runtime {

ByteWriter startFrame(FrameKind kind) {
  ByteWriter writer;
  writer.u8(static_cast<uint8_t>(kind));
  return writer;
}

void encodeProblem(ByteWriter& writer, const schedule::Problem& problem) {
  const std::vector<op::Bucket> buckets = op::bucketsOf(problem.source);
  const auto found = std::find(buckets.begin(), buckets.end(), problem.bucket);
  writer.blob(op::canonicalBytes(problem.source));
  writer.u32(static_cast<uint32_t>(found - buckets.begin()));
}

Result<schedule::Problem> decodeProblem(ByteReader& reader) {
  const std::string canonical = reader.blob();
  const uint32_t index = reader.u32();
  KTUNE_TRY(reader.status());
  KTUNE_ASSIGN(const op::Graph graph, op::fromCanonicalBytes(canonical));
  const std::vector<op::Bucket> buckets = op::bucketsOf(graph);
  if (index >= buckets.size()) return corrupt("the description has no bucket " + std::to_string(index));
  return schedule::Problem::create(graph, buckets[index]);
}

std::string rejectedFrame(const std::string& reason, const std::string& detail) {
  ByteWriter writer = startFrame(FrameKind::kRejected);
  writer.text(reason);
  writer.text(detail);
  return writer.take();
}

std::string failedFrame(const Status& status) {
  ByteWriter writer = startFrame(FrameKind::kFailed);
  writer.i32(static_cast<int32_t>(status.code()));
  writer.text(status.message());
  return writer.take();
}

Result<Frame> receiveFrame(FrameChannel& channel, Deadline deadline) {
  KTUNE_ASSIGN(std::string bytes, channel.receive(deadline));
  if (bytes.empty()) return corrupt("an empty frame");
  const auto kind = static_cast<FrameKind>(ByteReader(bytes).u8());
  return Frame{std::move(bytes), kind};
}

Status failureOf(const Frame& frame) {
  ByteReader reader = frame.fields();
  const int32_t code = reader.i32();
  const std::string message = reader.text();
  KTUNE_TRY(reader.finish());
  if (code <= 0 || code > static_cast<int32_t>(StatusCode::kInternal))
    return corrupt("a worker sent status " + std::to_string(code));
  return {static_cast<StatusCode>(code), message};
}

Result<search::Rejection> rejectionOf(const Frame& frame) {
  ByteReader reader = frame.fields();
  search::Rejection rejection;
  rejection.reason = reader.text();
  rejection.detail = reader.text();
  KTUNE_TRY(reader.finish());
  return rejection;
}

std::string deathText(const ExitInfo& exit, const std::string& standardError) {
  const bool device = exit.exited && exit.exitCode == kExitDeviceFault;
  std::string text = device ? "lost its device" : exit.describe();
  const size_t last = standardError.find_last_not_of("\r\n\t ");
  if (last == std::string::npos) return text;
  const size_t before = standardError.find_last_of("\r\n", last);
  std::string line = standardError.substr(before == std::string::npos ? 0 : before + 1,
                                          last - (before == std::string::npos ? 0 : before + 1) + 1);
  constexpr size_t kMaxLine = 300;
  if (line.size() > kMaxLine) line = line.substr(0, kMaxLine) + "...";
  // One line for people: whatever a dying process wrote, control characters are not repeated.
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text + (device ? ": " : "; it last said: ") + line;
}

}  // namespace ktune::runtime
