// NVRTC, the compiler of CUDA C++ as a library: found and opened at run time (docs/cuda.md). Not part of libktune. This
// header needs no CUDA headers.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/Settings.h"
#include "base/Status.h"

namespace ktune::nvrtc {

struct Program {
  std::string name;                                          ///< In messages: "ktune_linear_bf16.cu".
  std::string source;                                        ///< CUDA C++.
  std::vector<std::pair<std::string, std::string>> headers;  ///< Name as included, text.
  std::vector<std::string> options;                          ///< As they are: "--gpu-architecture=sm_90a".
};
struct Compiled {
  std::string cubin;
  std::string log;  ///< Warnings.
};

class Nvrtc {
 public:
  /// NVRTC of this machine, looked for once in the process. Thread-safe.
  /// Errors: kNotFound (none; says where it was looked for, and what to do), kUnsupported (too old).
  [[nodiscard]] static Result<const Nvrtc*> load();
  ~Nvrtc();
  Nvrtc(const Nvrtc&) = delete;
  Nvrtc& operator=(const Nvrtc&) = delete;

  /// Errors: kUnsupported when a driver that speaks CUDA DRIVERVERSION (12080 for 12.8; 0: not known) can't load what
  /// this compiles, and what to do.
  [[nodiscard]] Status fitsDriver(int driverVersion) const;
  /// "NVRTC 13.0".
  [[nodiscard]] const std::string& version() const { return version_; }
  /// The library that was opened: "/usr/local/cuda/lib64/libnvrtc.so.13".
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Architectures it compiles for, ascending, times ten: 75, 80, ..., 90 stands for sm_90 and sm_90a.
  [[nodiscard]] const std::vector<int>& architectures() const { return architectures_; }

  /// Compiles to machine code; the options must name a real architecture (sm_..). Thread-safe; may take seconds, and
  /// may crash the process: workers call it.
  /// Errors: kInvalidArgument with the log (its first 4000 characters) when the source or an option is wrong;
  /// kUnsupported when the code uses a variable in the device's memory (see usedVariables); kResourceExhausted;
  /// kInternal.
  [[nodiscard]] Result<Compiled> compile(const Program& program) const;

 private:
  struct Table;
  Nvrtc();
  static Result<std::unique_ptr<Nvrtc>> open();
  std::unique_ptr<Table> table_;
  std::string version_, path_;
  int major_ = 0;
  std::vector<int> architectures_;
};

/// As Nvrtc::fitsDriver, for an NVRTC of this MAJOR version that is called NAME. Code of one major version runs with
/// the drivers of that version and later ones.
[[nodiscard]] Status nvrtcFitsDriver(const std::string& name, int major, int driverVersion);

/// The variables in the device's memory that PTX text declares and its code refers to: what a kernel could keep an
/// answer in from one call to the next. (NVRTC keeps every constexpr at namespace or class scope as such a variable,
/// although the code has its value and never refers to it; the cubin alone does not tell the two apart.)
[[nodiscard]] std::vector<std::string> usedVariables(std::string_view ptx);

/// Where NVRTC is looked for, in order: full paths of files that exist, and bare names for the loader. For tests and
/// messages.
[[nodiscard]] std::vector<std::string> nvrtcCandidates(const Settings& settings);

}  // namespace ktune::nvrtc
