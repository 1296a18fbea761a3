#include "runtime/launch/devices/cuda/CudaKernels.h"

#include <vector>

#include "runtime/launch/devices/cuda/Cubin.h"

namespace ktune::runtime::cuda {

Result<std::unique_ptr<CudaKernels>> CudaKernels::load(std::shared_ptr<CudaContext> context, const std::string& cubin,
                                                       std::string owner, std::span<const char* const> names) {
  KTUNE_TRY(inspectCubin(cubin));
  CudaContext& c = *context;
  Current current(c);
  KTUNE_TRY(current.status());
  CUmodule module = nullptr;
  KTUNE_TRY(c.check(c.driver().moduleLoadData(&module, cubin.data()), ("loading " + owner).c_str()));
  std::unique_ptr<CudaKernels> kernels(new CudaKernels(std::move(context), std::move(owner), module));
  for (const char* name : names)
    KTUNE_TRY(c.check(c.driver().moduleGetFunction(&kernels->functions_[name], module, name),
                      ("finding " + kernels->owner_).c_str()));
  return kernels;
}

CudaKernels::~CudaKernels() {
  Current current(*context_);
  (void)context_->driver().moduleUnload(module_);
}

Status CudaKernels::launch(const char* name, unsigned gridX, unsigned gridY, unsigned threads,
                           std::span<const uint64_t> arguments) {
  Current current(*context_);
  KTUNE_TRY(current.status());
  std::vector<void*> addresses;
  for (const uint64_t& argument : arguments) addresses.push_back(const_cast<uint64_t*>(&argument));
  CUlaunchConfig config{};
  config.gridDimX = gridX;
  config.gridDimY = gridY;
  config.gridDimZ = 1;
  config.blockDimX = threads;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = context_->stream();
  return context_->check(
      context_->driver().launchKernelEx(&config, functions_.find(name)->second, addresses.data(), nullptr),
      ("launching " + owner_).c_str());
}

}  // namespace ktune::runtime::cuda
