// Tuning a workload: what warm-cache and tune share.
#pragma once

#include <string>

#include "runtime/worker/Workers.h"
#include "tools/Shell.h"
#include "tools/Workload.h"

namespace ktune::tools {

/// Options of both commands, as written by the user.
struct TuneOptions {
  std::string tokens = "1,16";
  std::string budget;
  int64_t candidates = 0;  ///< 0: no limit.
  uint64_t seed = 1;
  bool retune = false;
  bool quiet = false;
};

/// Adds them, and the common ones, to a command. BUDGET is the default budget.
void addTuneOptions(CLI::App& app, Shell& shell, TuneOptions& options, const std::string& budget);

/// Tunes WORKLOAD into the cache, with progress, table or JSON. Returns the program's exit code.
[[nodiscard]] ExitCode tuneWorkload(const Shell& shell, const TuneOptions& options, const Workload& workload);

/// The options that workers are started with. Errors: as currentProgramPath().
[[nodiscard]] Result<runtime::WorkerOptions> workerOptions(const Shell& shell, const runtime::DeviceInfo& device);

}  // namespace ktune::tools
