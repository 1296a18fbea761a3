// The guard: is a plan right? Runs in the measure worker. See docs/guard.md.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ir/op/Reference.h"
#include "ir/schedule/Problem.h"
#include "runtime/launch/Device.h"
#include "runtime/launch/Elements.h"

namespace ktune::runtime {

/// Version of the guard; part of every record's stamp. Raise it when a check is added or changed.
inline constexpr const char* kGuardVersion = "2";

struct GuardVerdict {
  bool right = false;
  std::string reason;  ///< A rejection class (search/Services.h), empty when right.
  std::string detail;
  std::vector<std::string> checks;
  double worstErrorShare = 0;
  /// Time spent on references, and on inputs that the device has kept: a later check of as many cases finds them ready.
  double preparationSeconds = 0;
  double firstCaseSeconds = 0;  ///< Of the case that screen() has, preparations included.
  /// Not ok when the device failed. REASON is "run-crash" when that happened in the candidate's hands, and empty when
  /// no candidate ran. The device is of no more use then, nor is the guard.
  Status device;
};

/// Who is at work inside a check, so that a watchdog can be strict with candidates and patient with references.
enum class GuardPhase : uint8_t {
  kTrusted = 0,    ///< Making inputs, evaluating references, comparing.
  kCandidate = 1,  ///< The candidate runs.
};

struct GuardOptions {
  uint64_t seed = 1;
  uint64_t memoryBytes = 0;  ///< Cap for inputs, outputs and references; 0 = a third of what is available.
  /// Cap for inputs and outputs on a device with memory of its own; 0 = what it has.
  uint64_t deviceMemoryBytes = 0;
  std::function<void(GuardPhase)> onPhase;  ///< Called at each change; may be empty.
};

/// Checks plans of one problem on one device. References are computed once per case, on the device's host threads.
class Guard {
 public:
  /// The problem is copied; DEVICE must outlive the guard.
  /// Errors: kResourceExhausted naming the bytes needed; kUnsupported when an output of zeros or of one constant would
  /// pass as right on every distribution, so that nothing could be proven.
  [[nodiscard]] static Result<std::unique_ptr<Guard>> create(const schedule::Problem& problem, Device& device,
                                                             const GuardOptions& options);
  virtual ~Guard() = default;
  /// One case: the first distribution at the bucket's high end.
  virtual GuardVerdict screen(LoadedPlan& plan) = 0;
  /// All cases (fewer for a problem whose references are expensive, see docs/guard.md): distributions (normal, uniform
  /// positive, mixed magnitudes, cancellation, special values), scoring and held-out points, shifted buffers (minimum
  /// promised alignment), repeats compared bit for bit.
  virtual GuardVerdict prove(LoadedPlan& plan) = 0;

  /// True for weights so large that they are made once, at the least promised alignment, and kept for every case.
  [[nodiscard]] static bool keepsOneContent(const op::Input& input, const TensorView& view);
  /// Where the device has such weights, valid as long as the guard; null for every other input. Timed runs may read
  /// them: a second copy would cost gigabytes and the time to touch them. Errors: as Device::copyToDevice.
  [[nodiscard]] virtual Result<void*> keptWeights(size_t input) = 0;
};

}  // namespace ktune::runtime
