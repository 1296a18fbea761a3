// Generated kernels to machine code, and what is not worth measuring.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/nvrtc/Nvrtc.h"

namespace ktune::nvrtc {

/// Bytes of registers that one thread may spill (stores and loads counted apart) before its kernel is refused: a few
/// happen outside of loops, more are a slow kernel.
inline constexpr int kMostSpillBytes = 64;

struct KernelProgram {
  std::string name;
  std::string source;
  std::string architecture;                                  ///< "sm_90a"
  std::vector<std::pair<std::string, std::string>> headers;  ///< Name as included, text.
};

/// The cubin. Errors: as Nvrtc::compile; kUnsupported for a kernel that spills more than kMostSpillBytes, or one that
/// the assembler warns of with a number C75xx (a slow kernel, whatever it computes), with that line.
[[nodiscard]] Result<std::string> compileKernels(const Nvrtc& nvrtc, const KernelProgram& program);

/// ok, or why the compiler's log speaks against the kernels: the rule of compileKernels(). For tests.
[[nodiscard]] Status judgeLog(const std::string& log);

}  // namespace ktune::nvrtc
