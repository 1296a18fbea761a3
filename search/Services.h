// What the search needs done elsewhere: compiling and measuring. runtime/worker implements both with killable
// children; tests implement them in memory. The search never sees a device, a clock of one, or a compiler.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/Deadline.h"
#include "cache/format/Plan.h"
#include "ir/schedule/Genome.h"
#include "ir/schedule/Problem.h"

namespace ktune::search {

/// Why a candidate was thrown out. Data, never an error. The class is one of the names in docs/errors.md:
///   illegal, compile-error, compile-crash, compile-timeout, compile-memory,
///   load-failed, run-crash, run-timeout,
///   wrong-result, unwritten-output, guard-band, input-overwritten, nondeterministic, impossible-time
struct Rejection {
  std::string reason;  ///< The class.
  std::string detail;  ///< One line for people.
};

struct CompileRequest {
  int64_t id = 0;
  schedule::PlanGenome genome;
};
struct CompileOutcome {
  int64_t id = 0;
  std::optional<Rejection> rejection;
  cache::Plan plan;    ///< Valid when there is no rejection.
  double seconds = 0;  ///< In the worker.
};

class Compiler {
 public:
  virtual ~Compiler() = default;
  /// How many requests run at the same time.
  [[nodiscard]] virtual int parallelism() const = 0;
  /// Compiles every request (order of outcomes = order of requests). A request not begun before DEADLINE, or after a
  /// cancellation, is missing from the result's end. Errors: kUnavailable when no worker can be started at all.
  [[nodiscard]] virtual Result<std::vector<CompileOutcome>> compile(const schedule::Problem& problem,
                                                                    std::span<const CompileRequest> requests,
                                                                    Deadline deadline) = 0;
};

enum class CheckLevel : uint8_t {
  kScreen = 0,  ///< One distribution at one size: enough to be allowed into the race.
  kFull = 1,    ///< Everything the guard knows: before a winner is published.
};
struct CheckOutcome {
  std::optional<Rejection> rejection;
  std::vector<std::string> checks;  ///< Names of the checks passed.
  double worstErrorShare = 0;       ///< Largest |error| / bound.
  double preparationSeconds = 0;    ///< Spent on what a later check of the same level finds ready.
  double firstCaseSeconds = 0;      ///< Of a screening in a fresh worker, which has nothing ready.
};

/// One timed sample: nanoseconds per call, or why the candidate fell out while running.
struct Sample {
  double ns = 0;
  std::optional<Rejection> rejection;
};

struct MeasureOptions {
  uint64_t seed = 1;  ///< Of inputs and buffer order.
  /// Whether the times are those that a record shows. A race of hundreds over tiny tensors may rotate over fewer
  /// buffers: every candidate pays for thousands of them.
  bool final = false;
};
struct MeasureFacts {
  double copyBytesPerSecond = 0;  ///< Reads and writes counted; 0 unknown.
  double emptyLaunchNs = 0;       ///< A plan that does nothing.
  std::string regime;             ///< "cold, rotating buffers, 2 threads"
};

/// What the device said of itself; unknown figures are 0.
struct Conditions {
  double clockMhz = 0;
  double powerWatts = 0;
  double temperatureC = 0;
  std::string throttle;  ///< Why clocks were held down, empty when they were not.
};

/// Measures plans of one problem at a time on one device. A worker that dies is restarted once per fault, with the
/// problem and the plans loaded again; only the guilty candidate is rejected. Not thread-safe.
class Measurer {
 public:
  virtual ~Measurer() = default;
  /// Prepares inputs, references and rotating buffers in a fresh worker. Call again for the final duel (fresh process,
  /// fresh inputs from another seed) or for another problem.
  /// Errors: kResourceExhausted (the buffers do not fit: says how many bytes are needed), kUnavailable.
  [[nodiscard]] virtual Result<MeasureFacts> open(const schedule::Problem& problem, const MeasureOptions& options,
                                                  Deadline deadline) = 0;
  /// Makes PLAN known as ID (kept until drop() or the next open()).
  [[nodiscard]] virtual Result<std::optional<Rejection>> load(int64_t id, const cache::Plan& plan,
                                                              Deadline deadline) = 0;
  virtual void drop(int64_t id) = 0;
  [[nodiscard]] virtual Result<CheckOutcome> check(int64_t id, CheckLevel level, Deadline deadline) = 0;
  /// One sample of each id, in the given order, at scoring point POINT (index into op::scoringPoints of the bucket).
  /// Each sample runs the plan often enough to last SAMPLESECONDS (at least once), over rotating cold buffers.
  [[nodiscard]] virtual Result<std::vector<Sample>> sample(std::span<const int64_t> ids, int point,
                                                           double sampleSeconds, Deadline deadline) = 0;
  /// The device's conditions now, for the evidence: right after samples they are those of the samples. A device that
  /// says nothing of itself has zeros.
  [[nodiscard]] virtual Result<Conditions> conditions(Deadline deadline) {
    (void)deadline;
    return Conditions{};
  }
};

}  // namespace ktune::search
