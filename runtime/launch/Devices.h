// Private to runtime/launch: what a kind of device offers to listDevices() and openDevice().
#pragma once

#include "runtime/launch/Device.h"

namespace ktune::runtime {

struct DeviceDriver {
  std::string_view kind;  ///< What names of its devices begin with, before a ':'.
  std::vector<DeviceInfo> (*list)();
  Result<std::unique_ptr<Device>> (*open)(const std::string& name, const DeviceOptions& options);
};

/// devices/cpu.
[[nodiscard]] std::vector<DeviceInfo> listCpuDevices();
[[nodiscard]] Result<std::unique_ptr<Device>> openCpuDevice(const std::string& name, const DeviceOptions& options);
constexpr DeviceDriver cpuDriver() {
  return {"cpu", listCpuDevices, openCpuDevice};
}

/// devices/cuda, in builds with KTUNE_WITH_CUDA.
[[nodiscard]] std::vector<DeviceInfo> listCudaDevices();
[[nodiscard]] Result<std::unique_ptr<Device>> openCudaDevice(const std::string& name, const DeviceOptions& options);
constexpr DeviceDriver cudaDriver() {
  return {"cuda", listCudaDevices, openCudaDevice};
}

/// devices/fake, in builds with KTUNE_FAKE_DEVICE.
[[nodiscard]] std::vector<DeviceInfo> listFakeDevices();
[[nodiscard]] Result<std::unique_ptr<Device>> openFakeDevice(const std::string& name, const DeviceOptions& options);
constexpr DeviceDriver fakeDriver() {
  return {"fake", listFakeDevices, openFakeDevice};
}

}  // namespace ktune::runtime
