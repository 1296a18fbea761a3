// The CUDA driver, opened at run time: a table of its functions, and what its errors mean. Private to devices/cuda.
#pragma once

#include <cuda.h>

#include <functional>
#include <string>

#include "base/Status.h"

namespace ktune::runtime::cuda {

using DeviceGetUuid = CUresult (*)(CUuuid* uuid, CUdevice device);
using CtxCreate = CUresult (*)(CUcontext* context, unsigned int flags, CUdevice device);
using FuncGetParamInfo = CUresult (*)(CUfunction function, size_t index, size_t* offset, size_t* size);
using FuncLoad = CUresult (*)(CUfunction function);

/// The driver's functions (DriverTable.def). Optional ones may be null. A table with other functions in it is how tests
/// make a device fail.
struct Driver {
#define KTUNE_CUDA(member, symbol, presence) decltype(&::symbol) member = nullptr;
#define KTUNE_CUDA_TYPED(member, symbol, type, presence) type member = nullptr;
#include "runtime/launch/devices/cuda/DriverTable.def"
#undef KTUNE_CUDA
#undef KTUNE_CUDA_TYPED
};

/// The table, filled by LOOKUP (null for what there is not).
/// Errors: kUnsupported naming the first required function that is missing and the driver's version.
[[nodiscard]] Result<Driver> resolveDriver(const std::function<void*(const char* symbol)>& lookup);

/// The driver of this machine, opened and initialised by the first call in the process. Thread-safe.
/// Errors: kNotFound (no libcuda.so.1, or no device that it can see), kUnsupported (too old), kUnavailable (present,
/// but does not work), each with what to do.
[[nodiscard]] Result<const Driver*> loadDriver();

/// From now on loadDriver() returns DRIVER (initialised, must stay alive) instead of this machine's; nullptr undoes it.
/// For tests, while no device is open.
void overrideDriverForTests(const Driver* driver);
/// From now on loadDriver() fails with STATUS.
void overrideDriverForTests(Status status);

/// "13.0" for 13000.
[[nodiscard]] std::string cudaVersionText(int version);

/// True for errors after which nothing can be done in this process's context any more: a kernel that crashed, a device
/// that is lost.
[[nodiscard]] bool isFatal(CUresult result);

/// ok, or RESULT of WHAT ("cuMemAlloc of 12 bytes") as a Status: kResourceExhausted (out of memory), kInvalidArgument
/// (invalid values, resources that a launch asks too much of), kNotFound, kUnsupported, kCorrupt (what is no module),
/// kUnavailable (fatal ones, and a driver or device that does not work), kInternal.
[[nodiscard]] Status statusOf(const Driver& driver, CUresult result, const std::string& what);

}  // namespace ktune::runtime::cuda
