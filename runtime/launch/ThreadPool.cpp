#include "runtime/launch/ThreadPool.h"

#include <algorithm>
#include <exception>

#include "base/Deadline.h"
#include "base/Log.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ktune::runtime {

namespace {

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until WORD differs from OLD: spinning first, then asleep. The acquire load pairs with the writer's release.
void awaitChange(const std::atomic<uint32_t>& word, uint32_t old) {
  const double start = monotonicSeconds();
  do {
    for (int i = 0; i < 32; ++i) {
      if (word.load(std::memory_order_acquire) != old) return;
      pause();
    }
  } while (monotonicSeconds() - start < ThreadPool::kSpinSeconds);
  word.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  const int wanted = std::max(1, threads) - 1;
  helpers_.reserve(static_cast<size_t>(wanted));
  // A helper sees its index only: how many there are is settled after the last could be started, and read in run().
  for (int i = 0; i < wanted; ++i) {
    try {
      helpers_.emplace_back([this, i] { help(i + 1); });
    } catch (const std::exception& e) {
      logWarning("thread pool: " + std::to_string(i + 1) + " of " + std::to_string(wanted + 1) +
                 " threads only: " + e.what());
      break;
    }
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::runPiece(int index) const {
  const int64_t pieces = static_cast<int64_t>(helpers_.size()) + 1;
  const int64_t base = job_.count / pieces;
  const int64_t longer = job_.count % pieces;  // The first LONGER pieces have one more.
  const int64_t first = index * base + std::min<int64_t>(index, longer);
  const int64_t last = first + base + (index < longer ? 1 : 0);
  if (first < last) job_.body(job_.context, first, last);
}

void ThreadPool::help(int index) {
  for (uint32_t seen = 0;;) {
    awaitChange(generation_, seen);
    // The caller starts no loop before every helper has finished the last one, so exactly one step was made.
    ++seen;
    if (stopping_.load(std::memory_order_relaxed)) return;
    runPiece(index);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

void ThreadPool::run(int64_t count, Body body, void* context) {
  if (count <= 0) return;
  if (count == 1 || helpers_.empty()) return body(context, 0, count);
  job_ = {body, context, count};
  running_.store(static_cast<uint32_t>(helpers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();  // No system call unless somebody sleeps.
  runPiece(0);
  for (uint32_t left; (left = running_.load(std::memory_order_acquire)) != 0;) awaitChange(running_, left);
}

void ThreadPool::parallelFor(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(1, grain);
  struct Loop {
    const std::function<void(int64_t, int64_t)>& body;
    int64_t count, piece;
    std::atomic<int64_t> next{0};
  };
  // Eight pieces a thread keep the threads busy to the end at little cost.
  const int64_t share = count / (int64_t{8} * threads());
  Loop loop{body, count, std::max(grain, share / grain * grain)};
  if (loop.piece >= count) return body(0, count);
  run(
      threads(),
      [](void* context, int64_t, int64_t) {
        Loop& l = *static_cast<Loop*>(context);
        for (;;) {
          const int64_t first = l.next.fetch_add(l.piece, std::memory_order_relaxed);
          if (first >= l.count) return;
          l.body(first, std::min(l.count, first + l.piece));
        }
      },
      &loop);
}

}  // namespace ktune::runtime
