// The archive, the bandit and the budget.
#include <gtest/gtest.h>

#include <numeric>

#include "search/Archive.h"
#include "search/Bandit.h"
#include "search/Budget.h"
#include "search/SearchProblems.h"

namespace ktune::search {
namespace {

using schedule::PlanGenome;

PlanGenome rowGenome(int32_t tileRows, int32_t registerRows, int32_t unroll = 2) {
  PlanGenome genome;
  genome.fuse = {1};
  schedule::KernelSchedule kernel;
  kernel.generator = schedule::Generator::kRow;
  kernel.tileRows = tileRows;
  kernel.registerRows = registerRows;
  kernel.unroll = unroll;
  genome.kernels = {kernel};
  return genome;
}

TEST(Archive, DistanceCountsDifferences) {
  PlanGenome a = rowGenome(8, 2);
  EXPECT_EQ(distance(a, a), 0);
  EXPECT_EQ(distance(a, rowGenome(16, 2)), 1);
  EXPECT_EQ(distance(a, rowGenome(16, 4)), 2);
  PlanGenome inactive = a;
  inactive.kernels[0].blockK = 512;  // a row kernel has none
  EXPECT_EQ(distance(a, inactive), 0);
  PlanGenome split = a;
  split.fuse = {0};
  split.kernels.push_back(a.kernels[0]);
  int active = 0;
  for (const schedule::ParameterDef& def : schedule::parameterTable())
    active += def.activeFor(schedule::Generator::kRow, schedule::DeviceFamily::kHost) ? 1 : 0;
  EXPECT_EQ(distance(a, split), 1 + active);
  EXPECT_EQ(distance(a, split), distance(split, a));
}

TEST(Archive, KeepsTheBestAndTheDifferent) {
  Archive archive(4);
  EXPECT_TRUE(archive.insert(rowGenome(8, 1), 1.0));
  EXPECT_TRUE(archive.insert(rowGenome(64, 8), 3.0));  // far away, and the worst
  EXPECT_TRUE(archive.insert(rowGenome(16, 1), 0.9));
  EXPECT_TRUE(archive.insert(rowGenome(24, 1), 0.95));
  // Full. A neighbour of the crowd competes with the crowd, not with the loner.
  EXPECT_TRUE(archive.insert(rowGenome(32, 1), 0.8));
  ASSERT_EQ(archive.entries().size(), 4u);
  EXPECT_TRUE(archive.contains(rowGenome(64, 8)));
  EXPECT_FALSE(archive.contains(rowGenome(8, 1)));
  EXPECT_DOUBLE_EQ(archive.entries()[0].score, 0.8);
  EXPECT_FALSE(archive.insert(rowGenome(48, 1), 2.0));    // worse than its niche
  EXPECT_TRUE(archive.insert(rowGenome(12, 4, 8), 2.5));  // a new niche replaces the worst
  EXPECT_FALSE(archive.contains(rowGenome(64, 8)));
  // Measured again: the newer score holds.
  EXPECT_TRUE(archive.insert(rowGenome(32, 1), 1.5));
  EXPECT_EQ(archive.entries().size(), 4u);
  EXPECT_DOUBLE_EQ(archive.entries()[0].score, 0.9);
  EXPECT_FALSE(Archive(0).insert(rowGenome(1, 1), 1));
}

TEST(Bandit, SharesByGainWithAFloor) {
  Bandit bandit(2);
  auto first = bandit.share(9);
  EXPECT_EQ(first[0] + first[1], 9);
  EXPECT_LE(std::abs(first[0] - first[1]), 1);
  for (int i = 0; i < 10; ++i) {
    bandit.reward(0, 10, 0);
    bandit.reward(1, 10, 0.2);
  }
  auto later = bandit.share(40);
  EXPECT_EQ(later[0] + later[1], 40);
  EXPECT_GT(later[1], 25);
  EXPECT_GE(later[0], 6);  // the floor
  // The leader dries up, the other starts to gain: shares follow.
  for (int i = 0; i < 15; ++i) {
    bandit.reward(0, 10, 0.1);
    bandit.reward(1, 10, 0);
  }
  EXPECT_GT(bandit.share(40)[0], 25);
  for (int n : {0, 1, 2, 3, 7, 100}) {
    auto shares = bandit.share(n);
    EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), 0), n);
  }
  EXPECT_TRUE(Bandit(0).share(5).empty());
}

TEST(Budget, DividesByWeightAndReserves) {
  BudgetKeeper keeper(100, {{.weight = 1}, {.weight = 3}, {.weight = 1, .work = 1, .settled = true}});
  keeper.begin(0);
  // (100 - 2 * 0.5) / 4 + 0.5
  EXPECT_NEAR(keeper.deadlineOf(0).remainingSeconds(), 25.25, 0.1);
  keeper.learn(0, 4.0);  // half fixed, half with the work: 1.5 * 4 each
  EXPECT_NEAR(keeper.reserveOf(1), 6.0, 1e-9);
  EXPECT_NEAR(keeper.deadlineOf(0).remainingSeconds(), (100 - 12) / 4.0 + 6, 0.1);
  keeper.finish(0);
  keeper.begin(1);
  EXPECT_NEAR(keeper.deadlineOf(1).remainingSeconds(), 100, 0.2);
  EXPECT_LE(keeper.deadlineOf(1).remainingSeconds(), keeper.total().remainingSeconds() + 1e-3);
}

TEST(Budget, ReserveFollowsWork) {
  BudgetKeeper keeper(1000, {{.weight = 1, .work = 10}, {.weight = 1, .work = 1000}, {.weight = 1, .work = 500}});
  keeper.begin(0);
  keeper.learn(0, 1.0);
  keeper.finish(0);
  keeper.begin(1);
  keeper.learn(1, 11.0);
  // fixed 1, slope (11 - 1) / 1000: 1.5 * (1 + 5)
  EXPECT_NEAR(keeper.reserveOf(2), 9.0, 1e-9);
}

TEST(Budget, ScarceTimeGoesToReserves) {
  BudgetKeeper keeper(1.0, std::vector<BudgetKeeper::Unit>(5));
  keeper.begin(0);
  keeper.learn(0, 0.4);
  // Reserves (5 * 0.6) exceed what is left: nothing is free for searching beyond the unit's own reserve.
  EXPECT_NEAR(keeper.deadlineOf(0).remainingSeconds(), 0.6, 0.05);
  BudgetKeeper zero(0, {{.weight = 0}});
  zero.begin(0);
  EXPECT_TRUE(zero.total().passed());
  EXPECT_LE(zero.deadlineOf(0).remainingSeconds(), 0.01);
}

}  // namespace
}  // namespace ktune::search
