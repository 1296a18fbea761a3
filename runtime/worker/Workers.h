// Compile and measure workers: the killable children, and the parent's side of them. docs/workers.md has the frames.
#pragma once

#include <memory>
#include <string>

#include "base/Subprocess.h"
#include "runtime/launch/Device.h"
#include "search/Services.h"

namespace ktune::runtime {

/// What a compile worker does with a candidate; one implementation per device kind (ir/emit/cpu, the fake one).
class CompileBackend {
 public:
  virtual ~CompileBackend() = default;
  /// Errors become rejections: kInvalidArgument -> illegal, anything else -> compile-error.
  [[nodiscard]] virtual Result<cache::Plan> compile(const schedule::Problem& problem,
                                                    const schedule::PlanGenome& genome,
                                                    const schedule::Target& target) = 0;
};

/// Main loops of the children: serve frames on CHANNEL until it closes. Return the process's exit code.
int runCompileWorker(FrameChannel channel, CompileBackend& backend);
int runMeasureWorker(FrameChannel channel, Device& device);

struct WorkerOptions {
  std::string program;        ///< The ktune program; children are started as `PROGRAM worker compile|measure ...`.
  std::string device;         ///< Device name given to both kinds.
  bool shareDevice = false;   ///< The measure worker takes its device although others use it (`--share-device`).
  std::string tempDirectory;  ///< Parent of the workers' private folders.
  int compileJobs = 0;        ///< 0 = min(cores, available memory / compileMemoryBytes), at least 1.
  uint64_t compileMemoryBytes = uint64_t{2} << 30;  ///< Per worker (address space limit).
  double compileTimeoutSeconds = 20;                ///< Per candidate.
  double measureTimeoutSeconds = 30;                ///< Per request: a kernel that runs longer is killed.
  uint64_t measureMemoryBytes = 0;  ///< Cap of the measure worker's buffers; 0 = half of what is available.
};

/// Compile workers scheduled by TBB tasks in an arena of their own.
[[nodiscard]] Result<std::unique_ptr<search::Compiler>> makeCompilePool(const WorkerOptions& options,
                                                                        const schedule::Target& target);
[[nodiscard]] Result<std::unique_ptr<search::Measurer>> makeMeasureClient(const WorkerOptions& options,
                                                                          const schedule::Target& target);

}  // namespace ktune::runtime
