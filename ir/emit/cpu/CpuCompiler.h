// The cpu device's compiler: description + genome -> tile IR -> vector and scf -> LLVM -> shared object -> plan.
// Runs in compile workers only: LLVM may abort, and lld keeps global state. No MLIR type in this header.
#pragma once

#include <memory>
#include <string>

#include "cache/format/Plan.h"
#include "ir/schedule/Genome.h"
#include "ir/schedule/Problem.h"
#include "ir/schedule/Target.h"

namespace ktune::emit {

/// Which form print() shows.
enum class Stage { kLinalg, kDecomposed, kTiles, kVector, kLlvm, kAssembly };

class CpuCompiler {
 public:
  /// TEMPDIRECTORY holds the object and the shared object for the moment of linking.
  explicit CpuCompiler(std::string tempDirectory);
  ~CpuCompiler();
  CpuCompiler(const CpuCompiler&) = delete;
  CpuCompiler& operator=(const CpuCompiler&) = delete;

  /// Compiles for the machine it runs on. Not thread-safe.
  /// Errors: kInvalidArgument (the genome is illegal: schedule::check's reason), kInternal (a pass or the linker
  /// failed).
  [[nodiscard]] Result<cache::Plan> compile(const schedule::Problem& problem, const schedule::PlanGenome& genome,
                                            const schedule::Target& target);
  /// The text of one stage, for `ktune show` and tests.
  [[nodiscard]] Result<std::string> print(const schedule::Problem& problem, const schedule::PlanGenome& genome,
                                          const schedule::Target& target, Stage stage);
  /// "LLVM 22.1.8".
  [[nodiscard]] static std::string version();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ktune::emit
