#include <gtest/gtest.h>

#include <set>

#include "ir/op/Buckets.h"

namespace ktune::op {
namespace {

Graph withSymbols(std::vector<Symbol> symbols) {
  Graph g;
  g.symbols = std::move(symbols);
  return g;
}

std::vector<std::string> described(const Graph& g) {
  std::vector<std::string> texts;
  for (const Bucket& b : bucketsOf(g)) texts.push_back(b.describe(g));
  return texts;
}

TEST(Buckets, EdgesCutTheRange) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(described(withSymbols({})), (Texts{"static"}));
  EXPECT_EQ(described(withSymbols({{"M", 1, 16, {}}})), (Texts{"M=1..16"}));
  EXPECT_EQ(described(withSymbols({{"M", 1, 16, {1, 16}}})), (Texts{"M=1", "M=2..16"}));
  EXPECT_EQ(described(withSymbols({{"M", 3, 9, {4, 5, 9}}})), (Texts{"M=3..4", "M=5", "M=6..9"}));
  EXPECT_EQ(described(withSymbols({{"M", 1, 2, {1, 2}}, {"B", 1, 8, {4, 8}}})),
            (Texts{"M=1,B=1..4", "M=1,B=5..8", "M=2,B=1..4", "M=2,B=5..8"}));
}

TEST(Buckets, EveryValueLiesInExactlyOneBucket) {
  const Graph g = withSymbols({{"M", 2, 23, {2, 7, 8, 23}}, {"B", 1, 5, {3, 5}}});
  const std::vector<Bucket> buckets = bucketsOf(g);
  for (int64_t m = 1; m <= 24; ++m) {
    for (int64_t b = 1; b <= 6; ++b) {
      int count = 0;
      for (const Bucket& bucket : buckets) count += bucket.contains({m, b}) ? 1 : 0;
      EXPECT_EQ(count, m >= 2 && m <= 23 && b <= 5 ? 1 : 0) << m << " " << b;
    }
  }
  EXPECT_FALSE(buckets[0].contains({2}));
}

TEST(Buckets, ScoringPoints) {
  using Points = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(scoringPoints({{}, {}}), (Points{{}}));
  EXPECT_EQ(scoringPoints({{7}, {7}}), (Points{{7}}));
  EXPECT_EQ(scoringPoints({{1}, {2}}), (Points{{1}, {2}}));
  EXPECT_EQ(scoringPoints({{2}, {16}}), (Points{{2}, {6}, {16}}));
  EXPECT_EQ(scoringPoints({{1}, {4096}}), (Points{{1}, {64}, {4096}}));
  EXPECT_EQ(scoringPoints({{1, 4}, {16, 4}}), (Points{{1, 4}, {4, 4}, {16, 4}}));
  const int64_t huge = int64_t{1} << 62;
  for (const auto& p : scoringPoints({{huge - 1}, {huge}})) EXPECT_TRUE(p[0] == huge - 1 || p[0] == huge);
}

TEST(Buckets, HeldOutPoints) {
  const Bucket bucket{{2}, {16}};
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto points = heldOutPoints(bucket, 5, seed);
    EXPECT_EQ(points.size(), 5u);
    const std::set<std::vector<int64_t>> distinct(points.begin(), points.end());
    EXPECT_EQ(distinct.size(), 5u);
    for (const auto& p : points) {
      EXPECT_TRUE(bucket.contains(p));
      EXPECT_TRUE(p[0] != 2 && p[0] != 6 && p[0] != 16);
    }
    EXPECT_EQ(points, heldOutPoints(bucket, 5, seed));
  }
  EXPECT_NE(heldOutPoints(bucket, 5, 1), heldOutPoints(bucket, 5, 2));
  EXPECT_EQ(heldOutPoints(bucket, 100, 1).size(), 12u);  // 15 values less 3 scoring points
  EXPECT_TRUE(heldOutPoints({{1}, {1}}, 3, 1).empty());
  EXPECT_TRUE(heldOutPoints({{1}, {2}}, 3, 1).empty());
  EXPECT_TRUE(heldOutPoints({{}, {}}, 3, 1).empty());
  EXPECT_TRUE(heldOutPoints(bucket, 0, 1).empty());
  const Bucket large{{1, 1}, {int64_t{1} << 62, 100000}};
  for (const auto& p : heldOutPoints(large, 20, 3)) EXPECT_TRUE(large.contains(p));
  EXPECT_EQ(heldOutPoints(large, 20, 3).size(), 20u);
}

}  // namespace
}  // namespace ktune::op
