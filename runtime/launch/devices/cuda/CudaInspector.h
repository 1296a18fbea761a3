// Checks of device memory by kernels, so that it need not come back to the host. Private to devices/cuda.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "runtime/launch/Inspector.h"
#include "runtime/launch/devices/cuda/CudaContext.h"

namespace ktune::runtime::cuda {

/// CUDA C++ of the kernels ktune_inspect_*, whose arguments are 64-bit words each. They share no code with what they
/// check.
extern const char* const kInspectorSource;

/// The inspector whose kernels are in CUBIN (of kInspectorSource). DEVICE, on CONTEXT, must outlive it.
/// Errors: as CudaPlan::load.
[[nodiscard]] Result<std::unique_ptr<Inspector>> makeCudaInspector(std::shared_ptr<CudaContext> context, Device& device,
                                                                   const std::string& cubin);

/// Starts one kernel of kInspectorSource: NAME with BLOCKS blocks of kInspectorThreads threads. Results are there when
/// a later copy from the device returns.
using InspectorLaunch = std::function<Status(const char* name, unsigned blocks, std::span<const uint64_t> arguments)>;
inline constexpr unsigned kInspectorThreads = 256;

/// The inspector on top of any way to allocate, copy and launch: tests run the kernels elsewhere. DEVICE must outlive
/// it.
[[nodiscard]] std::unique_ptr<Inspector> makeKernelInspector(Device& device, InspectorLaunch launch);

}  // namespace ktune::runtime::cuda
