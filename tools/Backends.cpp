#include "tools/Backends.h"

#if KTUNE_WITH_MLIR
#include "ir/emit/cpu/CpuCompiler.h"
#include "ir/emit/cuda/CudaEmitter.h"
#endif
#if KTUNE_WITH_CUDA
#include "runtime/launch/devices/cuda/CudaDevice.h"
#include "runtime/nvrtc/KernelCompiler.h"
#endif
#if KTUNE_FAKE_DEVICE
#include "runtime/worker/FakeBackend.h"
#endif

namespace ktune::tools {

namespace {

#if KTUNE_WITH_MLIR
class CpuBackend : public runtime::CompileBackend {
 public:
  explicit CpuBackend(std::string tempDirectory) : compiler_(std::move(tempDirectory)) {}
  Result<cache::Plan> compile(const schedule::Problem& problem, const schedule::PlanGenome& genome,
                              const schedule::Target& target) override {
    return compiler_.compile(problem, genome, target);
  }

 private:
  emit::CpuCompiler compiler_;
};
#endif

#if KTUNE_WITH_MLIR && KTUNE_WITH_CUDA
class CudaBackend : public runtime::CompileBackend {
 public:
  explicit CudaBackend(const nvrtc::Nvrtc& nvrtc) : nvrtc_(nvrtc) {}
  Result<cache::Plan> compile(const schedule::Problem& problem, const schedule::PlanGenome& genome,
                              const schedule::Target& target) override {
    KTUNE_ASSIGN(emit::CudaSource source, emitter_.emit(problem, genome, target));
    const std::string name = source.plan.launches.empty() ? "kernel" : source.plan.launches[0].symbol;
    cache::Artefact artefact{cache::ArtefactKind::kCubin, {}, {}};
    Result<std::string> cubin =
        nvrtc::compileKernels(nvrtc_, {name, source.text, target.architecture, emit::deviceLibrary()});
    // The genome was legal: a source that does not compile is our mistake, and no reason to call it illegal.
    if (!cubin && cubin.error().code() == StatusCode::kInvalidArgument) return internalError(cubin.error().message());
    if (!cubin) return cubin.error();
    artefact.bytes = std::move(*cubin);
    artefact.digest = digestOf(artefact.bytes);
    source.plan.artefacts.push_back(std::move(artefact));
    KTUNE_TRY(source.plan.validate());
    return std::move(source.plan);
  }

 private:
  const nvrtc::Nvrtc& nvrtc_;
  emit::CudaEmitter emitter_;
};
#endif

constexpr const char* kNoMlir = "this build of ktune has no compiler; use one configured with KTUNE_WITH_MLIR=ON";

}  // namespace

Status canCompileFor(schedule::DeviceKind kind) {
  switch (kind) {
    case schedule::DeviceKind::kCpu:
#if KTUNE_WITH_MLIR
      return Status::ok();
#else
      return unsupported(kNoMlir);
#endif
    case schedule::DeviceKind::kFake:
#if KTUNE_FAKE_DEVICE
      return Status::ok();
#else
      return unsupported("this build of ktune has no fake device");
#endif
    case schedule::DeviceKind::kCuda:
#if KTUNE_WITH_MLIR && KTUNE_WITH_CUDA
    {
      // Refused here, and not by the loader candidate after candidate.
      KTUNE_ASSIGN(const nvrtc::Nvrtc* const nvrtc, nvrtc::Nvrtc::load());
      return nvrtc->fitsDriver(runtime::cuda::cudaDriverVersion());
    }
#elif KTUNE_WITH_MLIR
      return unsupported("this build of ktune was made without CUDA's headers");
#else
      return unsupported(kNoMlir);
#endif
  }
  return unsupported(kNoMlir);
}

std::string compilerVersion(schedule::DeviceKind kind) {
  if (kind == schedule::DeviceKind::kFake) return "fake";
  if (!canCompileFor(kind).isOk()) return "none";
#if KTUNE_WITH_MLIR
  if (kind == schedule::DeviceKind::kCpu) return emit::CpuCompiler::version();
#endif
#if KTUNE_WITH_MLIR && KTUNE_WITH_CUDA
  if (kind == schedule::DeviceKind::kCuda) return (*nvrtc::Nvrtc::load())->version();
#endif
  return "none";
}

Result<std::unique_ptr<runtime::CompileBackend>> makeBackend(const std::string& device,
                                                             [[maybe_unused]] const Settings& settings) {
  using Backend = std::unique_ptr<runtime::CompileBackend>;
  const std::string kind = device.substr(0, device.find(':'));
#if KTUNE_WITH_MLIR
  if (kind == "cpu") return Backend(std::make_unique<CpuBackend>(settings.tempDir));
#endif
#if KTUNE_WITH_MLIR && KTUNE_WITH_CUDA
  if (kind == "cuda") {
    KTUNE_ASSIGN(const nvrtc::Nvrtc* nvrtc, nvrtc::Nvrtc::load());
    return Backend(std::make_unique<CudaBackend>(*nvrtc));
  }
#endif
#if KTUNE_FAKE_DEVICE
  if (kind == "fake") {
    KTUNE_ASSIGN(runtime::FakeFaults faults, runtime::FakeFaults::parse(settings.fault));
    return Backend(std::make_unique<runtime::FakeBackend>(std::move(faults)));
  }
#endif
  return unsupported("this build of ktune has no compiler for device \"" + device + "\"");
}

std::function<Result<std::string>(const std::string& source, const std::string& architecture)> deviceKernelCompiler() {
#if KTUNE_WITH_CUDA
  return [](const std::string& source, const std::string& architecture) -> Result<std::string> {
    KTUNE_ASSIGN(const nvrtc::Nvrtc* nvrtc, nvrtc::Nvrtc::load());
    return nvrtc::compileKernels(*nvrtc, {"device_kernel", source, architecture, {}});
  };
#else
  return {};
#endif
}

}  // namespace ktune::tools
