// The device's own kernels: a loaded cubin and its functions, launched on the context's stream. Private to
// devices/cuda.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

#include "runtime/launch/devices/cuda/CudaContext.h"

namespace ktune::runtime::cuda {

class CudaKernels {
 public:
  /// The kernels NAMES of CUBIN. OWNER is whose they are, for messages. Errors: as CudaPlan::load.
  [[nodiscard]] static Result<std::unique_ptr<CudaKernels>> load(std::shared_ptr<CudaContext> context,
                                                                 const std::string& cubin, std::string owner,
                                                                 std::span<const char* const> names);
  ~CudaKernels();
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  /// Enqueues NAME, one that was loaded, on GRIDX x GRIDY blocks of THREADS; each argument is 8 bytes.
  [[nodiscard]] Status launch(const char* name, unsigned gridX, unsigned gridY, unsigned threads,
                              std::span<const uint64_t> arguments);
  [[nodiscard]] const std::shared_ptr<CudaContext>& context() const { return context_; }

 private:
  CudaKernels(std::shared_ptr<CudaContext> context, std::string owner, CUmodule module)
      : context_(std::move(context)), owner_(std::move(owner)), module_(module) {}

  std::shared_ptr<CudaContext> context_;
  std::string owner_;
  CUmodule module_;
  std::map<std::string, CUfunction, std::less<>> functions_;
};

}  // namespace ktune::runtime::cuda
