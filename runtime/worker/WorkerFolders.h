// Private to runtime/worker: the children's temporary folders.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/Subprocess.h"

namespace ktune::runtime {

/// A folder PARENT/ktune-PID-XXXXXX of this process, in which every child gets a folder of its own as TMPDIR. The
/// parent removes them, so that what a killed child left goes, too; what a killed parent left goes when the next one
/// starts. Thread-safe.
class WorkerFolders {
 public:
  /// Sweeps PARENT of folders whose process is dead first. A folder is known dead only when no process has its pid
  /// and nobody holds the lock on its "lock" file, which also works across pid namespaces that share PARENT.
  /// Errors: kPermissionDenied, kResourceExhausted, kNotFound.
  [[nodiscard]] static Result<std::unique_ptr<WorkerFolders>> create(const std::string& parent);
  WorkerFolders(const WorkerFolders&) = delete;
  WorkerFolders& operator=(const WorkerFolders&) = delete;
  ~WorkerFolders();

  /// A new folder for a child.
  [[nodiscard]] Result<std::string> makeFolder();
  /// Removes what makeFolder() gave.
  void removeFolder(const std::string& path);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  WorkerFolders(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  UniqueFd lock_;
};

/// Removes PARENT's folders of dead tuners of this user.
void sweepWorkerFolders(const std::string& parent);

}  // namespace ktune::runtime
