// Monotonic time, deadlines and cancellation.
#pragma once

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>

namespace ktune {

using MonotonicClock = std::chrono::steady_clock;

/// Seconds on the monotonic clock; only differences mean anything.
[[nodiscard]] inline double monotonicSeconds() {
  return std::chrono::duration<double>(MonotonicClock::now().time_since_epoch()).count();
}

/// A point in monotonic time by which something must have ended. Copyable value.
class Deadline {
 public:
  /// Never passes.
  Deadline() = default;
  [[nodiscard]] static Deadline never() { return {}; }
  [[nodiscard]] static Deadline after(double seconds) {
    Deadline d;
    d.at_ = monotonicSeconds() + seconds;
    return d;
  }
  [[nodiscard]] bool passed() const { return monotonicSeconds() >= at_; }
  /// Seconds left: 0 when passed, infinity for never().
  [[nodiscard]] double remainingSeconds() const { return std::fmax(0.0, at_ - monotonicSeconds()); }
  /// Milliseconds left for poll(2): -1 for never, capped at one hour.
  [[nodiscard]] int pollTimeoutMs() const {
    if (std::isinf(at_)) return -1;
    return static_cast<int>(std::fmin(std::ceil(remainingSeconds() * 1e3), 3.6e6));
  }
  [[nodiscard]] Deadline earlierOf(Deadline other) const { return at_ < other.at_ ? *this : other; }

 private:
  double at_ = std::numeric_limits<double>::infinity();
};

/// A flag that a signal handler or another thread may raise. Async-signal-safe.
class CancellationFlag {
 public:
  void raise() noexcept { raised_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool raised() const noexcept { return raised_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> raised_{false};
};

}  // namespace ktune
