// A plan of cubins, loaded on a CUDA device. Private to devices/cuda.
#pragma once

#include <memory>
#include <vector>

#include "cache/format/Plan.h"
#include "runtime/launch/devices/cuda/CudaContext.h"

namespace ktune::runtime::cuda {

class CudaPlan final : public LoadedPlan {
 public:
  /// Errors: as Device::load; kInvalidArgument for a launch that the device can't do (threads, shared memory, cluster,
  /// parameters of other sizes than the kernel's); kUnavailable.
  [[nodiscard]] static Result<std::unique_ptr<CudaPlan>> load(std::shared_ptr<CudaContext> context,
                                                              const cache::Plan& plan);
  ~CudaPlan() override;
  CudaPlan(const CudaPlan&) = delete;
  CudaPlan& operator=(const CudaPlan&) = delete;

  [[nodiscard]] size_t workspaceBytes(const std::vector<int64_t>& symbolValues) const override {
    return workspaceEnd(workspaceSlots(symbolValues));
  }
  [[nodiscard]] std::vector<WorkspaceSlot> workspaceSlots(const std::vector<int64_t>& symbolValues) const override {
    return layOutWorkspace(workspaces_, symbolValues);
  }
  Status run(std::span<void* const> tensors, std::span<const int64_t> symbolValues, void* workspace) override {
    return launchAll(tensors, symbolValues, workspace, /*programmatic=*/true);
  }
  /// As run; without PROGRAMMATIC a launch waits for the end of the one before, whatever its attributes say, so that a
  /// call's time does not reach into the next call's.
  Status launchAll(std::span<void* const> tensors, std::span<const int64_t> symbolValues, void* workspace,
                   bool programmatic);
  [[nodiscard]] const std::shared_ptr<CudaContext>& context() const { return context_; }

 private:
  struct Argument;
  struct TensorMap;
  struct LoadedLaunch;

  CudaPlan(std::shared_ptr<CudaContext> context, const cache::Plan& plan);
  Status addLaunch(const cache::Launch& launch);
  Status addArgument(const cache::LaunchParameter& parameter, LoadedLaunch& launch);
  Status addAttributes(const cache::Launch& launch, LoadedLaunch& loaded);
  Status checkParameters(const LoadedLaunch& launch) const;
  Status prepareFunctions();
  Status encode(TensorMap& map, void* address);
  Status launchOne(LoadedLaunch& launch, std::span<void* const> tensors, char* workspace, bool programmatic);

  std::shared_ptr<CudaContext> context_;
  std::vector<CUmodule> modules_;
  std::vector<std::unique_ptr<LoadedLaunch>> launches_;
  std::vector<cache::Workspace> workspaces_;
  std::vector<int64_t> symbols_;
  std::vector<size_t> slotOffsets_;
};

}  // namespace ktune::runtime::cuda
