// SIGINT and SIGTERM while tuning: the first asks to stop, the second kills.
#pragma once

#include "base/Deadline.h"

namespace ktune::tools {

/// While it lives, the first SIGINT or SIGTERM raises FLAG and gives both signals their default action back, so that
/// the next one ends the process at once. One at a time in a process. The destructor restores the default action.
class SignalGuard {
 public:
  explicit SignalGuard(CancellationFlag& flag);
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  /// The signal that came, or 0.
  [[nodiscard]] int received() const;
};

}  // namespace ktune::tools
