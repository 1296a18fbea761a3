// Devices: identity, loading an artefact, running a plan.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/format/Plan.h"
#include "ir/schedule/Target.h"

namespace ktune::runtime {

/// Alignment of the workspace that a caller hands to LoadedPlan::run, in bytes.
inline constexpr size_t kWorkspaceAlignment = 4096;

/// One slot of a plan's workspace.
struct WorkspaceSlot {
  size_t offset = 0;  ///< From the workspace's start.
  size_t bytes = 0;
  cache::WorkspaceKind kind = cache::WorkspaceKind::kScratch;
};

/// A plan loaded on a device: symbols resolved, workspaces laid out. Thread-compatible (one run at a time).
class LoadedPlan {
 public:
  virtual ~LoadedPlan() = default;
  /// Bytes of scratch that run() needs at these symbol values (the gaps between slots included).
  [[nodiscard]] virtual size_t workspaceBytes(const std::vector<int64_t>& symbolValues) const = 0;
  /// Where the slots lie. Whoever owns the workspace zeroes the kZeroed ones before a plan's first run in it.
  [[nodiscard]] virtual std::vector<WorkspaceSlot> workspaceSlots(const std::vector<int64_t>& symbolValues) const {
    (void)symbolValues;
    return {};
  }
  /// Runs every launch in order and waits (cpu). TENSORS: one address per tensor of the plan (inputs, then outputs).
  /// Never allocates, loads, locks or calls the system on the calling thread beyond waking the pool.
  /// WORKSPACE: workspaceBytes() bytes aligned to kWorkspaceAlignment; may be null when there are none.
  /// REQUIRES: the plan's preconditions hold (see checkPreconditions).
  virtual void run(std::span<void* const> tensors, std::span<const int64_t> symbolValues, void* workspace) = 0;
  /// A device without a clock of its own (the fake one) says what a run takes; others return nothing.
  [[nodiscard]] virtual std::optional<double> virtualNs(const std::vector<int64_t>&) const { return std::nullopt; }
};

/// ok, or kInvalidArgument naming the precondition of PLAN that does not hold.
[[nodiscard]] Status checkPreconditions(const cache::Plan& plan, std::span<void* const> tensors,
                                        std::span<const int64_t> symbolValues);

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual const schedule::Target& target() const = 0;
  /// "cpu", "cuda:0", "fake".
  [[nodiscard]] virtual const std::string& name() const = 0;
  /// One line for people: "Intel(R) Xeon(R) ..., 2 cores, AVX-512".
  [[nodiscard]] virtual std::string description() const = 0;
  /// Driver part of the stamp ("Linux 6.1").
  [[nodiscard]] virtual std::string driver() const = 0;
  /// Errors: kCorrupt (digest mismatch; an object that links to something, keeps state between calls or runs code when
  /// loaded), kNotFound (symbol missing), kUnsupported (artefact kind, parameter kind, workspace alignment).
  [[nodiscard]] virtual Result<std::unique_ptr<LoadedPlan>> load(const cache::Plan& plan) = 0;
  /// Runs BODY(begin, end) in pieces over [0, count) on the device's host threads.
  virtual void parallelFor(int64_t count, const std::function<void(int64_t, int64_t)>& body) = 0;
};

struct DeviceInfo {
  std::string name;
  std::string description;
  schedule::Target target;
  std::string driver;
};

/// The devices of this build on this machine, best first.
[[nodiscard]] std::vector<DeviceInfo> listDevices();

struct DeviceOptions {
  int threads = 0;  ///< cpu: threads that run a plan, the caller's included (1 starts none); 0 = usableCores().
};
/// Opens "cpu", "fake", "cuda:N". Errors: kNotFound listing what there is; kUnsupported for one this build lacks.
[[nodiscard]] Result<std::unique_ptr<Device>> openDevice(const std::string& name, const DeviceOptions& options = {});

/// Offsets of a plan's workspace slots at given symbol values: in order, each at a multiple of its alignment.
[[nodiscard]] std::vector<WorkspaceSlot> layOutWorkspace(const std::vector<cache::Workspace>& workspaces,
                                                         const std::vector<int64_t>& symbolValues);
/// Where the last slot ends.
[[nodiscard]] size_t workspaceEnd(std::span<const WorkspaceSlot> slots);

}  // namespace ktune::runtime
