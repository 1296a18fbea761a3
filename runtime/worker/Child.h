// Private to runtime/worker: one child process of the tuner.
#pragma once

#include <memory>
#include <string>

#include "runtime/worker/Protocol.h"
#include "runtime/worker/WorkerFolders.h"
#include "runtime/worker/Workers.h"

namespace ktune::runtime {

/// A running `PROGRAM worker KIND --device NAME` with its temporary folder. Killed, reaped and tidied up in the
/// destructor.
class Child {
 public:
  /// Starts one and waits until it says that it is ready; tries once more when it dies before that.
  /// FOLDERS must outlive the child. Errors: kUnavailable with the last attempt's end.
  [[nodiscard]] static Result<std::unique_ptr<Child>> start(const WorkerOptions& options, const std::string& kind,
                                                            const ProcessLimits& limits, WorkerFolders& folders);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

  [[nodiscard]] FrameChannel& channel() { return process_.channel(); }
  [[nodiscard]] pid_t pid() const { return process_.pid(); }
  /// Ends the child. Call it when the channel says that it is gone or when it took too long.
  /// GONE: it is dying by itself, so its own exit is waited for a moment.
  ExitInfo end(bool gone);
  [[nodiscard]] std::string standardError() { return process_.standardError(); }

 private:
  Child(Subprocess process, std::string folder, WorkerFolders& folders)
      : process_(std::move(process)), folder_(std::move(folder)), folders_(folders) {}
  Subprocess process_;
  std::string folder_;
  WorkerFolders& folders_;
};

}  // namespace ktune::runtime
