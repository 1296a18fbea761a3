// Devices: identity, loading an artefact, running a plan.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/format/Plan.h"
#include "ir/op/Reference.h"
#include "ir/schedule/Target.h"
#include "runtime/launch/Inspector.h"

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
  /// Runs every launch in order: waits for the end on a device that shares the host's memory, else only queues them on
  /// the device's stream (Device::synchronize() waits). TENSORS: one device address per tensor of the plan (inputs,
  /// then outputs). Never allocates, loads, locks or calls the system on the calling thread beyond waking the pool.
  /// WORKSPACE: workspaceBytes() bytes aligned to kWorkspaceAlignment; may be null when there are none.
  /// REQUIRES: the plan's preconditions hold (see checkPreconditions).
  /// Errors: the driver's, when a launch is refused (kInvalidArgument, kResourceExhausted, kUnavailable). What goes
  /// wrong on the device later shows at synchronize().
  virtual Status run(std::span<void* const> tensors, std::span<const int64_t> symbolValues, void* workspace) = 0;
};

/// ok, or kInvalidArgument naming the precondition of PLAN that does not hold.
[[nodiscard]] Status checkPreconditions(const cache::Plan& plan, std::span<void* const> tensors,
                                        std::span<const int64_t> symbolValues);

/// Memory of a device, freed with the object.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  [[nodiscard]] virtual char* data() const = 0;  ///< A device address, aligned to kWorkspaceAlignment.
  [[nodiscard]] virtual size_t bytes() const = 0;
};

/// Calls of one plan over rotating buffers, prepared so that they can be timed again and again (on cuda one graph).
/// Belongs to the device; must not outlive the plan or the buffers.
class TimedCalls {
 public:
  virtual ~TimedCalls() = default;
  /// Runs for about SECONDS: on the host's threads calls, each on the set after the last one's (at least one call); on
  /// a device with a queue whole rounds over the sets (at least one). Returns nanoseconds per call by the device's
  /// clock. Errors: kUnavailable (it has failed), kInternal (it works on after its end); as LoadedPlan::run.
  [[nodiscard]] virtual Result<double> nanosecondsPerCall(double seconds) = 0;
};

/// What a device says of itself while it works; unknown figures are 0.
struct DeviceConditions {
  double clockMhz = 0;
  double powerWatts = 0;
  double temperatureC = 0;
  std::string throttle;  ///< Why clocks are held down at present ("power cap, thermal"), empty when they are not.
};

/// True when heat or the hardware holds the clocks down ("thermal", "hardware" or "brake" is in THROTTLE, as in
/// DeviceConditions): what is timed meanwhile says little of the kernel. A power cap is no such reason: it is how large
/// kernels run.
[[nodiscard]] bool isHeldBack(const std::string& throttle);

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

  // --- Memory, for those who check and measure plans. By default a device works on the host's memory.

  /// True when the host may read and write device addresses.
  [[nodiscard]] virtual bool sharesHostMemory() const { return true; }
  /// Errors: kResourceExhausted naming the bytes.
  [[nodiscard]] virtual Result<std::unique_ptr<DeviceMemory>> allocate(size_t bytes);
  /// Each waits for what was queued before and for the copy itself. Errors: kUnavailable when the device has failed (an
  /// illegal access of an earlier launch, say): it has to be opened again, in a new process.
  [[nodiscard]] virtual Status copyToDevice(void* to, const void* from, size_t bytes);
  [[nodiscard]] virtual Status copyFromDevice(void* to, const void* from, size_t bytes);
  [[nodiscard]] virtual Status copyOnDevice(void* to, const void* from, size_t bytes);
  /// Waits for everything queued. Errors: as the copies.
  [[nodiscard]] virtual Status synchronize() { return Status::ok(); }

  // --- Timing.

  /// SETS: the tensors of consecutive calls, one device address each (at least one set).
  /// Errors: as LoadedPlan::run; kResourceExhausted.
  [[nodiscard]] virtual Result<std::unique_ptr<TimedCalls>> prepareTimedCalls(LoadedPlan& plan,
                                                                              std::vector<std::vector<void*>> sets,
                                                                              std::vector<int64_t> symbolValues,
                                                                              void* workspace);
  /// Bytes read and written per second by copies of BYTES between two blocks of device memory (each of that size), past
  /// the caches where they are larger; the best of a few. Errors: as the copies.
  [[nodiscard]] virtual Result<double> copyBytesPerSecond(void* to, const void* from, size_t bytes);
  /// The least that a call can take, by the same clock as TimedCalls: a launch of one thread that does nothing.
  [[nodiscard]] virtual Result<double> emptyLaunchNanoseconds();
  /// "2 threads", "one CUDA graph of 8 calls, events": how TimedCalls measures, for the evidence.
  [[nodiscard]] virtual std::string timingMethod() const;
  [[nodiscard]] virtual DeviceConditions conditions() { return {}; }
  /// Their throttle alone, for whoever asks after every sample: the other figures may take longer than the sample.
  [[nodiscard]] virtual std::string throttle() { return conditions().throttle; }
  /// Who else has come to use the device since it was leased, in words: what was timed meanwhile is void. Empty:
  /// nobody, or that can't be known.
  [[nodiscard]] virtual std::string foreignActivity() { return {}; }

  // --- Checks.

  /// What looks at the device's memory where it is; null where the host does (it can address it, or memory has to come
  /// back). Belongs to the device.
  [[nodiscard]] virtual Inspector* inspector() { return nullptr; }

  /// What sums large fp64 references faster than the host can; null when there is nothing. Belongs to the device.
  [[nodiscard]] virtual op::DotEngine* dotEngine() { return nullptr; }

 private:
  friend class HostTimedCalls;
  size_t nextSet_ = 0;  ///< Of the host's timed calls. All share it, so that one plan never starts on the warm sets of
                        ///< another.
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
  int threads = 0;     ///< cpu: threads that run a plan, the caller's included (1 starts none); 0 = usableCores().
  bool lease = false;  ///< cuda: take the device's lease, for measuring. Who only runs plans takes none.
  bool shareDevice = false;  ///< cuda: take the lease although others use the device (never a second ktune).
  uint64_t memoryBytes = 0;  ///< cuda: allocate() gives no more than this in all; 0: no cap.
  /// cuda: compiles CUDA C++ (source, architecture) to a cubin, for kernels of the device's own: inspector() and
  /// dotEngine() need it.
  std::function<Result<std::string>(const std::string& source, const std::string& architecture)> compileKernel;
};
/// Opens "cpu", "fake", "cuda:N" ("cuda" is "cuda:0"). Errors: kNotFound listing what there is; kUnsupported for one
/// this build lacks; kUnavailable for one that does not work or that can't be leased, with the reason.
[[nodiscard]] Result<std::unique_ptr<Device>> openDevice(const std::string& name, const DeviceOptions& options = {});

/// Offsets of a plan's workspace slots at given symbol values: in order, each at a multiple of its alignment.
[[nodiscard]] std::vector<WorkspaceSlot> layOutWorkspace(const std::vector<cache::Workspace>& workspaces,
                                                         const std::vector<int64_t>& symbolValues);
/// The same without allocating: the offsets alone, into OFFSETS (one per workspace). Returns where the last slot ends.
size_t layOutWorkspace(const std::vector<cache::Workspace>& workspaces, const std::vector<int64_t>& symbolValues,
                       std::span<size_t> offsets);
/// Where the last slot ends.
[[nodiscard]] size_t workspaceEnd(std::span<const WorkspaceSlot> slots);

}  // namespace ktune::runtime
