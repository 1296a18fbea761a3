// Private to runtime/worker: the frames between the tuner and its children. docs/workers.md describes them.
//
// A frame is a u8 kind and that kind's fields, little-endian (base/Bytes.h). Both ends are the same program, so there
// is no version; every decoder still checks what it reads, as a child that ran a bad kernel may send anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/Bytes.h"
#include "base/Subprocess.h"
#include "ir/schedule/Problem.h"
#include "search/Services.h"

namespace ktune::runtime {

/// Exit codes of a child beyond what the program itself uses.
inline constexpr int kExitOutOfMemory = 77;
inline constexpr int kExitDeviceFault = 78;  ///< A candidate made the device fail; the last words say how.

enum class FrameKind : uint8_t {
  // From the tuner.
  kProblem = 1,     ///< blob canonical, u32 bucket index, target: the problem of the compiles that follow. No answer.
  kCompile = 2,     ///< genome. Answer: kCompiled or kRejected.
  kOpen = 3,        ///< blob canonical, u32 bucket index, u64 seed, u64 memory bytes, bool final, bool measure: when
                    ///< false the facts may be zeros (a restart, they are known). Answer: kFacts or kFailed.
  kLoad = 4,        ///< i64 id, blob plan. Answer: kLoaded or kRejected.
  kDrop = 5,        ///< i64 id. No answer.
  kCheck = 6,       ///< i64 id, u8 level. Answer: any number of kPhase, then kChecked, kRejected or kFailed.
  kSample = 7,      ///< i64 id, u32 point, f64 seconds. Answer: kSampled, kRejected or kFailed.
  kConditions = 8,  ///< Nothing. Answer: kState.
  // From a child.
  kReady = 64,     ///< Nothing: the child has started.
  kFailed = 65,    ///< i32 status code, text message: not the candidate's fault.
  kRejected = 66,  ///< text class, text detail.
  kCompiled = 67,  ///< f64 seconds, blob plan.
  kFacts = 68,     ///< f64 copy bytes per second, f64 empty launch ns, text regime.
  kLoaded = 69,    ///< Nothing.
  kPhase = 70,     ///< u8: 1 the candidate runs from now on, 0 it has ended. The watchdog starts anew.
  kChecked = 71,   ///< f64 worst error share, f64 seconds of preparations, f64 of the first case, u32 count, that
                   ///< many texts: the checks passed.
  kSampled = 72,   ///< f64 ns per call.
  kState = 73,     ///< f64 clock in MHz, f64 watts, f64 degrees Celsius, text throttle: Device::conditions().
};

/// A frame of KIND with fields to be appended.
[[nodiscard]] ByteWriter startFrame(FrameKind kind);

/// A description and one of its buckets.
void encodeProblem(ByteWriter& writer, const schedule::Problem& problem);
/// Errors: kCorrupt; as Problem::create.
[[nodiscard]] Result<schedule::Problem> decodeProblem(ByteReader& reader);

[[nodiscard]] std::string rejectedFrame(const std::string& reason, const std::string& detail);
[[nodiscard]] std::string failedFrame(const Status& status);

/// A received frame, read field by field.
struct Frame {
  std::string bytes;
  FrameKind kind = FrameKind::kReady;
  /// The fields after the kind.
  [[nodiscard]] ByteReader fields() const { return ByteReader(std::string_view(bytes).substr(1)); }
};
/// Errors: as FrameChannel::receive; kCorrupt for an empty frame.
[[nodiscard]] Result<Frame> receiveFrame(FrameChannel& channel, Deadline deadline = {});
/// The Status of a kFailed frame.
[[nodiscard]] Status failureOf(const Frame& frame);
/// The Rejection of a kRejected frame. Errors: kCorrupt.
[[nodiscard]] Result<search::Rejection> rejectionOf(const Frame& frame);

/// What to say of a dead child: how it ended and its last line of standard error; for kExitDeviceFault that it lost its
/// device, and how.
[[nodiscard]] std::string deathText(const ExitInfo& exit, const std::string& standardError);

}  // namespace ktune::runtime
