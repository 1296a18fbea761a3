// The compilers of this build, one per kind of device.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/Settings.h"
#include "runtime/launch/Device.h"
#include "runtime/worker/Workers.h"

namespace ktune::tools {

/// ok, or why this build, or this machine, cannot compile for devices of KIND and what to do.
[[nodiscard]] Status canCompileFor(schedule::DeviceKind kind);
/// "LLVM 22.1.8", "NVRTC 13.0": for a record's stamp. "none" when canCompileFor() is an error.
[[nodiscard]] std::string compilerVersion(schedule::DeviceKind kind);
/// What a compile worker for the device named DEVICE works with. Errors: as canCompileFor.
[[nodiscard]] Result<std::unique_ptr<runtime::CompileBackend>> makeBackend(const std::string& device,
                                                                           const Settings& settings);
/// DeviceOptions::compileKernel; empty where there is no such compiler.
[[nodiscard]] std::function<Result<std::string>(const std::string& source, const std::string& architecture)>
deviceKernelCompiler();

}  // namespace ktune::tools
