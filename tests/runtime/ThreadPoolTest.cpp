#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

#include "runtime/launch/ThreadPool.h"

namespace ktune::runtime {
namespace {

struct Cells {
  std::vector<int> values;
  std::vector<int> thread;
};

TEST(ThreadPool, RunsEveryIndexOnceInContiguousPieces) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    for (int64_t count : {0, 1, 2, 3, 7, 8, 9, 1000}) {
      std::vector<int> hits(static_cast<size_t>(count));
      std::atomic<int> pieces{0};
      struct Context {
        std::vector<int>& hits;
        std::atomic<int>& pieces;
      } context{hits, pieces};
      pool.run(
          count,
          [](void* c, int64_t first, int64_t last) {
            auto& x = *static_cast<Context*>(c);
            ++x.pieces;
            for (int64_t i = first; i < last; ++i) ++x.hits[static_cast<size_t>(i)];
          },
          &context);
      EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), int64_t{0}), count);
      for (int h : hits) EXPECT_EQ(h, 1);
      EXPECT_LE(pieces.load(), threads);
    }
  }
}

TEST(ThreadPool, ParallelForCoversTheRangeInMultiplesOfTheGrain) {
  ThreadPool pool(3);
  for (int64_t count : {1, 5, 64, 1001}) {
    std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
    std::atomic<bool> odd{false};
    pool.parallelFor(count, 4, [&](int64_t begin, int64_t end) {
      if (begin % 4 != 0 || (end % 4 != 0 && end != count)) odd = true;
      for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
    });
    for (auto& h : hits) EXPECT_EQ(h.load(), 1);
    EXPECT_FALSE(odd.load());
  }
}

// Loops back to back, and loops after pauses long enough for the helpers to fall asleep: a lost wake-up hangs here,
// a missing barrier is a race under the thread sanitizer (the cells are plain ints).
TEST(ThreadPool, Stress) {
  ThreadPool pool(4);
  std::vector<int> cells(257);
  const auto body = [](void* c, int64_t first, int64_t last) {
    auto& v = *static_cast<std::vector<int>*>(c);
    for (int64_t i = first; i < last; ++i) ++v[static_cast<size_t>(i)];
  };
  constexpr int kRounds = 3000;
  for (int round = 0; round < kRounds; ++round) {
    pool.run(static_cast<int64_t>(cells.size()), body, &cells);
    if (round % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(round % 300 == 0 ? 300 : 60));
    ASSERT_EQ(cells[0], round + 1);
    ASSERT_EQ(cells.back(), round + 1);
  }
  for (int c : cells) EXPECT_EQ(c, kRounds);
}

TEST(ThreadPool, ManyPoolsComeAndGo) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(1 + i % 5);
    std::atomic<int64_t> sum{0};
    if (i % 3 != 0) pool.parallelFor(100, 1, [&](int64_t b, int64_t e) { sum += e - b; });
    EXPECT_EQ(sum.load(), i % 3 != 0 ? 100 : 0);
  }
}

}  // namespace
}  // namespace ktune::runtime
