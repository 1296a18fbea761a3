// A device that runs CUDA plans whose artefact is source text, on the CPU (see cuda_emulation.h).
#pragma once

#include <memory>
#include <span>
#include <string>

#include "runtime/launch/Device.h"

namespace ktune::test {

/// Errors: kUnavailable when there is no host compiler. TEMPDIRECTORY holds what is compiled.
[[nodiscard]] Result<std::unique_ptr<runtime::Device>> makeEmulatedCuda(const std::string& architecture,
                                                                        const std::string& tempDirectory);
/// Kernels of 64-bit arguments in one source, on the CPU.
class EmulatedKernels {
 public:
  /// Errors: kUnavailable when there is no host compiler; kInternal with what it says. STEM: path of its files.
  [[nodiscard]] static Result<std::unique_ptr<EmulatedKernels>> compile(const std::string& source,
                                                                        const std::string& stem);
  ~EmulatedKernels();
  EmulatedKernels(const EmulatedKernels&) = delete;
  EmulatedKernels& operator=(const EmulatedKernels&) = delete;
  /// Errors: kNotFound.
  Status launch(const std::string& name, std::span<const unsigned, 3> grid, unsigned threads, unsigned sharedBytes,
                std::span<const uint64_t> arguments) const;

 private:
  explicit EmulatedKernels(void* library) : library_(library) {}
  void* library_;
};

/// PLAN with TEXT as its artefact.
[[nodiscard]] cache::Plan withSource(cache::Plan plan, const std::string& text);

}  // namespace ktune::test
