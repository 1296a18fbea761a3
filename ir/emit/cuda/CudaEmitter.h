// The cuda devices' emitter: description + genome -> tile IR -> readable CUDA C++ and the plan that launches it. What
// the source calls is the device library under include/ktune/device, whose files go to the compiler as they are.
// No MLIR and no CUDA type in this header; NVRTC is called elsewhere (runtime/nvrtc).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/format/Plan.h"
#include "ir/schedule/Genome.h"
#include "ir/schedule/Problem.h"
#include "ir/schedule/Target.h"

namespace ktune::emit {

struct CudaSource {
  std::string text;  ///< One translation unit with every kernel of the plan, extern "C".
  cache::Plan plan;  ///< Whole but for its one artefact, number 0: the cubin of TEXT.
};

/// Which form print() shows.
enum class CudaStage { kTiles, kSource };

class CudaEmitter {
 public:
  CudaEmitter();
  ~CudaEmitter();
  CudaEmitter(const CudaEmitter&) = delete;
  CudaEmitter& operator=(const CudaEmitter&) = delete;

  /// Not thread-safe. Errors: kInvalidArgument (the genome is illegal: schedule::check's reason), kUnsupported (as
  /// schedule::supported), kInternal (a pass failed).
  [[nodiscard]] Result<CudaSource> emit(const schedule::Problem& problem, const schedule::PlanGenome& genome,
                                        const schedule::Target& target);
  /// The text of one stage, for `ktune show` and tests. Errors: as emit().
  [[nodiscard]] Result<std::string> print(const schedule::Problem& problem, const schedule::PlanGenome& genome,
                                          const schedule::Target& target, CudaStage stage);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// (name in an #include, text) of every file of the device library.
[[nodiscard]] const std::vector<std::pair<std::string, std::string>>& deviceLibrary();

}  // namespace ktune::emit
