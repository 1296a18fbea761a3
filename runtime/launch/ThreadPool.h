// The pool that runs a plan's tiles: helper threads plus the caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace ktune::runtime {

/// Helper threads that wait for short parallel loops. A helper that has finished spins for kSpinSeconds, so that the
/// launches of one plan follow each other without a system call, and then sleeps on a futex.
///
/// Threads are not pinned. On a machine that is shared (a container, a laptop) a pinned thread queues behind its
/// core's other tenant while another core idles; the kernel's wake-up affinity keeps unpinned ones in place otherwise.
///
/// One loop at a time: run() and parallelFor() are called by one thread, and a body must not call them.
class ThreadPool {
 public:
  /// Runs [first, last) of a loop.
  using Body = void (*)(void* context, int64_t first, int64_t last);

  static constexpr double kSpinSeconds = 40e-6;

  /// THREADS in all, the caller included; at least 1. Threads that can't be started are done without.
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  /// Joins the helpers. REQUIRES: no loop is running.
  ~ThreadPool();

  [[nodiscard]] int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  /// Cuts [0, count) into one contiguous piece per thread (sizes differ by at most one) and returns when all are
  /// done: what BODY wrote is visible to the caller. The split depends on COUNT and threads() only, so a thread sees
  /// the same tiles, and its caches the same data, call after call. Never allocates or locks.
  void run(int64_t count, Body body, void* context);

  /// As run, in smaller pieces taken as threads become free: for loops whose pieces differ in cost. Pieces are
  /// multiples of GRAIN, the last one excepted.
  void parallelFor(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct Job {
    Body body = nullptr;
    void* context = nullptr;
    int64_t count = 0;
  };
  // On cache lines of their own: helpers poll one while the others are written.
  alignas(64) std::atomic<uint32_t> generation_{0};  ///< Raised once per loop; tells helpers to start.
  alignas(64) std::atomic<uint32_t> running_{0};     ///< Helpers that have not finished the present loop.
  alignas(64) Job job_;
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> helpers_;

  void help(int index);
  void runPiece(int index) const;
};

}  // namespace ktune::runtime
