// The right to measure on a GPU: one ktune process at a time, and nobody else there.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/Status.h"
#include "base/Subprocess.h"
#include "runtime/launch/devices/cuda/Nvml.h"

namespace ktune::runtime::cuda {

/// CUdevice compute modes (CU_COMPUTEMODE_*).
enum class ComputeMode { kDefault = 0, kProhibited = 2, kExclusiveProcess = 3 };

/// What a lease looks at; tests put their own here.
struct LeaseProbes {
  std::string directory;  ///< Of the lock files.
  /// Processes on the device; nothing when that can't be known.
  std::function<std::optional<std::vector<GpuProcess>>()> processes;
  std::function<ComputeMode()> computeMode;
  /// The folder of an MPS control daemon that answers; empty when there is none.
  std::function<std::string()> activeMps;
  /// True for processes that do not count: this one, its process group, its children.
  std::function<bool(pid_t)> isOurs;
  /// A process that was killed is listed for a moment longer.
  double patienceSeconds = 3;
};

/// The lock directory: /run/lock, else $XDG_RUNTIME_DIR, else /tmp; the first that can be written.
[[nodiscard]] std::string lockDirectory();
/// The folder of a running MPS control daemon ($CUDA_MPS_PIPE_DIRECTORY, else /tmp/nvidia-mps), or empty. Looks at
/// DIRECTORY alone when it is given.
[[nodiscard]] std::string findActiveMps(const std::string& directory = {});
[[nodiscard]] bool isOurProcess(pid_t pid);

/// Holds a device as long as it lives. Move-only.
class Lease {
 public:
  Lease() = default;  ///< Holds nothing.

  /// Takes the device with this UUID. With SHARE, other processes, an exclusive mode and MPS are accepted, but never a
  /// second ktune.
  /// Errors: kUnavailable saying who has the device, or why it can't be measured on, and what to do.
  [[nodiscard]] static Result<Lease> take(const std::string& uuid, LeaseProbes probes, bool share);

  [[nodiscard]] bool held() const { return lock_.valid(); }
  /// To be called when this process has made its context: a process that is new since take(), when none of ours is
  /// listed, is this one under the number of another namespace.
  void noteOwnContext() { (void)foreignActivity(); }
  /// Who has come to the device since, in words; empty: nobody, or it is shared, or it can't be known.
  [[nodiscard]] std::string foreignActivity();

 private:
  UniqueFd lock_;
  LeaseProbes probes_;
  bool share_ = false;
  pid_t self_ = 0;  ///< As the driver numbers this process.
};

}  // namespace ktune::runtime::cuda
