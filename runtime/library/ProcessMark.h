// Knows whether the process is still the one in which it was made.
#pragma once

#include <sys/types.h>

#include <atomic>

namespace ktune::library {

/// Made once per context. inSameProcess() is a load from memory (no system call), so that it may be asked on every run:
/// the mark lies on a page that the kernel replaces by zeros in a child (MADV_WIPEONFORK, Linux 4.14). Where that is
/// missing, the process id is compared. Needs no fork handler, which would outlive a library that is unloaded.
class ProcessMark {
 public:
  ProcessMark() noexcept;
  ~ProcessMark();
  ProcessMark(const ProcessMark&) = delete;
  ProcessMark& operator=(const ProcessMark&) = delete;
  [[nodiscard]] bool inSameProcess() const noexcept;
  /// The process in which it was made.
  [[nodiscard]] pid_t owner() const noexcept { return owner_; }

 private:
  pid_t owner_;
  size_t pageBytes_ = 0;
  std::atomic<int>* page_ = nullptr;  // Null: compare the process id.
};

}  // namespace ktune::library
