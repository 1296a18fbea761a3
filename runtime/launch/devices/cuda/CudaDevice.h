// The cuda devices: plans of cubins, run on NVIDIA GPUs through the driver opened at run time (docs/cuda.md). This
// header needs no CUDA headers.
#pragma once

#include <string>
#include <vector>

#include "runtime/launch/Device.h"

namespace ktune::runtime::cuda {

/// A GPU as the driver describes it, without opening it.
struct CudaFacts {
  std::string name;     ///< "cuda:0"
  std::string product;  ///< "NVIDIA H200", without a MIG profile.
  std::string mig;      ///< "1g.18gb", or "none".
  std::string uuid;     ///< "GPU-01234567-...", "MIG-..." for a MIG device.
  std::string pciBusId;
  int major = 0, minor = 0;  ///< Compute capability.
  int multiprocessors = 0;
  uint64_t memoryBytes = 0;
  uint64_t l2Bytes = 0;
  uint64_t sharedBytes = 0;  ///< The most that one block may have.
  int computeMode = 0;       ///< CUcomputemode.
};

/// The devices that the driver shows, in its order; none without a driver. Quick, and never an error.
[[nodiscard]] std::vector<CudaFacts> listCudaFacts();
/// "sm_90a": the architecture to compile for.
[[nodiscard]] std::string cudaArchitecture(int major, int minor);
[[nodiscard]] schedule::Target cudaTarget(const CudaFacts& facts);

/// What there is of CUDA on this machine, for `ktune doctor`.
struct CudaReport {
  Status driver;           ///< ok, or why there is none and what to do.
  std::string driverText;  ///< "CUDA driver 580.65.06 (13.0)"; empty without one.
  bool hardware = false;   ///< An NVIDIA GPU is plugged in, whatever the driver says.
  bool nvml = false;
  std::string nvmlText;
  struct Gpu {
    CudaFacts facts;
    Status lease;  ///< ok: free to be measured on; or why it is not.
  };
  std::vector<Gpu> gpus;
};
/// The CUDA version that the driver speaks, 12080 for 12.8; 0 without a driver.
[[nodiscard]] int cudaDriverVersion();
/// Takes and gives back each device's lease, without waiting. SHARE: as DeviceOptions::shareDevice.
[[nodiscard]] CudaReport reportCuda(bool share);

}  // namespace ktune::runtime::cuda
