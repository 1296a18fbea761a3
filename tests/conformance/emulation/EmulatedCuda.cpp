#include "conformance/emulation/EmulatedCuda.h"

#include <dlfcn.h>

#include <cstdlib>

#include "base/File.h"
#include "ir/emit/cuda/CudaEmitter.h"

namespace ktune::test {

namespace {

class EmulatedPlan final : public runtime::LoadedPlan {
 public:
  EmulatedPlan(cache::Plan plan, std::unique_ptr<EmulatedKernels> kernels)
      : plan_(std::move(plan)), kernels_(std::move(kernels)) {}
  [[nodiscard]] size_t workspaceBytes(const std::vector<int64_t>& symbols) const override {
    return runtime::workspaceEnd(runtime::layOutWorkspace(plan_.workspaces, symbols));
  }
  [[nodiscard]] std::vector<runtime::WorkspaceSlot> workspaceSlots(const std::vector<int64_t>& symbols) const override {
    return runtime::layOutWorkspace(plan_.workspaces, symbols);
  }
  Status run(std::span<void* const> tensors, std::span<const int64_t> symbolValues, void* workspace) override {
    const std::vector<int64_t> symbols(symbolValues.begin(), symbolValues.end());
    const std::vector<runtime::WorkspaceSlot> slots = workspaceSlots(symbols);
    for (const cache::Launch& launch : plan_.launches) {
      std::vector<uint64_t> arguments;
      for (const cache::LaunchParameter& parameter : launch.parameters) {
        if (const auto* p = std::get_if<cache::PointerParameter>(&parameter))
          arguments.push_back(reinterpret_cast<uint64_t>(tensors[static_cast<size_t>(p->tensor)]));
        if (const auto* p = std::get_if<cache::SymbolParameter>(&parameter))
          arguments.push_back(static_cast<uint64_t>(symbols[static_cast<size_t>(p->symbol)]));
        if (const auto* p = std::get_if<cache::WorkspaceParameter>(&parameter))
          arguments.push_back(reinterpret_cast<uint64_t>(workspace) + slots[static_cast<size_t>(p->slot)].offset);
      }
      unsigned grid[3];
      for (size_t d = 0; d < 3; ++d) grid[d] = static_cast<unsigned>(launch.grid[d].evaluate(symbols));
      KTUNE_TRY(kernels_->launch(launch.symbol, grid, static_cast<unsigned>(launch.block[0]),
                                 static_cast<unsigned>(launch.dynamicSharedBytes), arguments));
    }
    return Status::ok();
  }

 private:
  cache::Plan plan_;
  std::unique_ptr<EmulatedKernels> kernels_;
};

class EmulatedCuda final : public runtime::Device {
 public:
  EmulatedCuda(const std::string& architecture, std::string temp)
      : target_(schedule::cudaTarget(architecture)), temp_(std::move(temp)) {}
  [[nodiscard]] const schedule::Target& target() const override { return target_; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::string description() const override { return "CUDA on the CPU"; }
  [[nodiscard]] std::string driver() const override { return "none"; }
  void parallelFor(int64_t count, const std::function<void(int64_t, int64_t)>& body) override { body(0, count); }

  [[nodiscard]] Result<std::unique_ptr<runtime::LoadedPlan>> load(const cache::Plan& plan) override {
    KTUNE_ASSIGN(std::unique_ptr<EmulatedKernels> kernels,
                 EmulatedKernels::compile(plan.artefacts.at(0).bytes, temp_ + "/kernel" + std::to_string(serial_++)));
    return std::unique_ptr<runtime::LoadedPlan>(new EmulatedPlan(plan, std::move(kernels)));
  }

 private:
  schedule::Target target_;
  std::string name_ = "cuda:emulated";
  std::string temp_;
  int serial_ = 0;
};

bool haveCompiler() {
  return std::system("g++ --version > /dev/null 2>&1") == 0;  // NOLINT(cert-env33-c)
}

}  // namespace

Result<std::unique_ptr<EmulatedKernels>> EmulatedKernels::compile(const std::string& source, const std::string& stem) {
  if (!haveCompiler()) return unavailable("there is no g++ to compile kernels for the CPU with");
  KTUNE_TRY(writeFileAtomically(stem + ".cpp", "#include \"cuda_emulation.h\"\n" + source));
  const std::string command = "g++ -std=c++17 -O1 -w -shared -fPIC -fvisibility=hidden -I" KTUNE_EMULATION_FOLDER
                              " -I" KTUNE_DEVICE_FOLDER " " +
                              stem + ".cpp -o " + stem + ".so > " + stem + ".log 2>&1";
  if (std::system(command.c_str()) != 0) {  // NOLINT(cert-env33-c): a test, with paths of its own
    const Result<std::string> log = readFile(stem + ".log");
    return internalError("g++: " + (log ? log->substr(0, 3000) : ""));
  }
  void* library = ::dlopen((stem + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return internalError(::dlerror());
  return std::unique_ptr<EmulatedKernels>(new EmulatedKernels(library));
}

EmulatedKernels::~EmulatedKernels() {
  ::dlclose(library_);
}

Status EmulatedKernels::launch(const std::string& name, std::span<const unsigned, 3> grid, unsigned threads,
                               unsigned sharedBytes, std::span<const uint64_t> arguments) const {
  using Launcher = void (*)(void (*)(), const uint64_t*, int, const unsigned*, unsigned, unsigned);
  auto launcher = reinterpret_cast<Launcher>(::dlsym(library_, "emulated_launch"));
  auto kernel = reinterpret_cast<void (*)()>(::dlsym(library_, name.c_str()));
  if (kernel == nullptr || launcher == nullptr) return notFound("no symbol " + name);
  launcher(kernel, arguments.data(), static_cast<int>(arguments.size()), grid.data(), threads, sharedBytes);
  return Status::ok();
}

Result<std::unique_ptr<runtime::Device>> makeEmulatedCuda(const std::string& architecture, const std::string& temp) {
  if (!haveCompiler()) return unavailable("there is no g++ to compile kernels for the CPU with");
  return std::unique_ptr<runtime::Device>(std::make_unique<EmulatedCuda>(architecture, temp));
}

cache::Plan withSource(cache::Plan plan, const std::string& text) {
  cache::Artefact artefact{cache::ArtefactKind::kFake, text, {}};
  artefact.digest = digestOf(text);
  plan.artefacts.push_back(std::move(artefact));
  return plan;
}

}  // namespace ktune::test
