// NVIDIA's management library (libnvidia-ml.so.1), opened at run time: who uses a device, and how it feels. All of it
// is optional: without the library there are no conditions and no list of processes, and no error. Its few types are
// declared here, for its header does not come with the CUDA headers.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/launch/Device.h"

namespace ktune::runtime::cuda {

/// A process with a compute context on a device. In a container, its number may be that of another namespace.
struct GpuProcess {
  pid_t pid = 0;
  uint64_t memoryBytes = 0;  ///< 0: unknown.
  bool operator==(const GpuProcess&) const = default;
};

/// The library's functions and types, as nvml.h declares them (nvmlReturn_t, nvmlDevice_t, nvmlProcessInfo_t).
struct NvmlTable {
  using Return = int;
  using Handle = struct NvmlDevice*;
  struct Process {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
  };
  template <typename T>
  using Function = T;
#define KTUNE_NVML(member, symbol, ...) Function<__VA_ARGS__> member = nullptr;
#include "runtime/launch/devices/cuda/Nvml.def"
#undef KTUNE_NVML
};

/// One device as the management library sees it; every question may have no answer. Thread-compatible.
class NvmlDeviceView {
 public:
  /// Of the device with this UUID, or else at this PCI address. Opens the library at the first call in the process.
  [[nodiscard]] static NvmlDeviceView find(const std::string& uuid, const std::string& pciBusId);
  NvmlDeviceView() = default;

  [[nodiscard]] bool found() const { return device_ != nullptr; }
  /// Processes with a compute context; nothing when that can't be known.
  [[nodiscard]] std::optional<std::vector<GpuProcess>> processes() const;
  [[nodiscard]] DeviceConditions conditions() const;
  /// Their throttle alone.
  [[nodiscard]] std::string throttle() const;

 private:
  NvmlTable::Handle device_ = nullptr;
};

/// "580.65.06": the driver's full version, by the management library or the kernel module; empty when unknown.
[[nodiscard]] std::string driverRelease();
/// Whether the library is here and works, in words ("NVML of driver 580.65.06", "libnvidia-ml.so.1 is not here").
[[nodiscard]] std::string nvmlText();
[[nodiscard]] bool haveNvml();

/// "power cap, thermal" for a mask of nvmlClocksEventReason bits. Idle clocks, and clocks that someone set, hold
/// nothing down.
[[nodiscard]] std::string throttleText(unsigned long long reasons);

/// Instead of the library's functions, for tests; nullptr undoes it.
void overrideNvmlForTests(const NvmlTable* table);

}  // namespace ktune::runtime::cuda
