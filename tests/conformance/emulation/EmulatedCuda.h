// A device that runs CUDA plans whose artefact is source text, on the CPU (see cuda_emulation.h).
#pragma once

#include <memory>
#include <string>

#include "runtime/launch/Device.h"

namespace ktune::test {

/// Errors: kUnavailable when there is no host compiler. TEMPDIRECTORY holds what is compiled.
[[nodiscard]] Result<std::unique_ptr<runtime::Device>> makeEmulatedCuda(const std::string& architecture,
                                                                        const std::string& tempDirectory);
/// PLAN with TEXT as its artefact.
[[nodiscard]] cache::Plan withSource(cache::Plan plan, const std::string& text);

}  // namespace ktune::test
