// Reference dot products on a CUDA device, in fp64. Private to devices/cuda.
#pragma once

#include <memory>
#include <string>

#include "ir/op/Reference.h"
#include "runtime/launch/devices/cuda/CudaContext.h"

namespace ktune::runtime::cuda {

/// CUDA C++ of the kernel: extern "C" ktune_reference_dots(const double* x, const double* w, double* sums,
/// double* reaches, long long rows, long long columns, long long k). It shares no code with what it checks.
extern const char* const kDotSource;

/// The engine whose kernel is in CUBIN (of kDotSource). Errors: as CudaPlan::load.
[[nodiscard]] Result<std::unique_ptr<op::DotEngine>> makeCudaDotEngine(std::shared_ptr<CudaContext> context,
                                                                       const std::string& cubin);

}  // namespace ktune::runtime::cuda
