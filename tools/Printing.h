// Printing the IR of a record: in a child, because LLVM may abort.
#pragma once

#include <string>

#include "base/Subprocess.h"
#include "cache/format/Record.h"
#include "ir/schedule/Target.h"
#include "tools/Shell.h"

namespace ktune::tools {

/// "linalg, decomposed, tiles, vector, llvm, assembly, cuda"
[[nodiscard]] std::string stageNames();
/// Errors: kInvalidArgument listing the stages.
[[nodiscard]] Status checkStage(const std::string& stage);

/// The text of one stage of RECORD's kernels, made for TARGET by a child `ktune worker print`.
/// Errors: kUnsupported in a build without MLIR; kInvalidArgument for a stage that its device does not have;
/// kUnavailable when the child died (its last words are in the message).
[[nodiscard]] Result<std::string> printStage(const Shell& shell, const cache::Record& record,
                                             const schedule::Target& target, const std::string& stage);

/// The child's side: one request from CHANNEL, one answer. Returns the exit code.
[[nodiscard]] int runPrintWorker(FrameChannel channel, const std::string& tempDirectory);

}  // namespace ktune::tools
