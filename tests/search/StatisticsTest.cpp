#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "search/Statistics.h"

namespace ktune::search {
namespace {

// Expected values below are from numpy 2 and scipy 1 (median, median_abs_deviation, trim_mean, sem, t.ppf, norm.ppf,
// bootstrap(method='percentile')).
const std::vector<double> kOdd{3.1, 2.7, 9.5, 3.3, 2.9, 3.0, 3.2};
const std::vector<double> kEven{1.0, 4.0, 2.0, 8.0};

/// ((37 i mod 101) / 100)^2: skewed, no repeats.
std::vector<double> skewed() {
  std::vector<double> values;
  for (int i = 0; i < 101; ++i) values.push_back(std::pow((i * 37 % 101) / 100.0, 2));
  return values;
}

TEST(Statistics, LocationAndSpread) {
  EXPECT_DOUBLE_EQ(median(kOdd), 3.1);
  EXPECT_DOUBLE_EQ(median(kEven), 3.0);
  EXPECT_TRUE(std::isnan(median({})));
  EXPECT_NEAR(medianAbsoluteDeviation(kOdd), 0.2, 1e-12);
  EXPECT_DOUBLE_EQ(medianAbsoluteDeviation(kEven), 1.5);
  EXPECT_NEAR(trimmedMean(kOdd, 0.25), 3.1, 1e-12);
  EXPECT_DOUBLE_EQ(trimmedMean(kEven, 0.25), 3.0);
  EXPECT_NEAR(trimmedMean(skewed(), 0.25), 0.27166666666666667, 1e-12);
  EXPECT_NEAR(relativeStandardError(kOdd), 0.23421229723189305, 1e-12);
  EXPECT_NEAR(relativeStandardError(kEven), 0.4127594582445936, 1e-12);
  EXPECT_TRUE(std::isinf(relativeStandardError(std::vector<double>{1})));
}

TEST(Statistics, Quantiles) {
  struct Row {
    double probability, degrees, expected;
  };
  for (const Row& row :
       {Row{0.975, 9, 2.262157162798205}, Row{0.995, 59, 2.6617587521629673}, Row{0.999975, 59, 4.376117544145047},
        Row{0.999975, 9, 7.2152692544504875}, Row{0.9, 1, 3.0776835371752544}, Row{0.025, 4, -2.7764451051977943},
        Row{0.5, 7, 0}, Row{0.99999, 1e6, 4.264911254070676}})
    EXPECT_NEAR(studentQuantile(row.probability, row.degrees), row.expected, 1e-6)
        << row.probability << " " << row.degrees;
  EXPECT_NEAR(normalQuantile(0.975), 1.959963984540054, 1e-9);
  EXPECT_NEAR(normalQuantile(0.9), 1.2815515655446004, 1e-9);
  EXPECT_NEAR(normalQuantile(1e-5), -4.264890793922825, 1e-8);
  EXPECT_EQ(normalQuantile(0.5), 0);
}

TEST(Statistics, BootstrapAgreesWithScipy) {
  struct Row {
    Statistic statistic;
    double confidence, estimate, low, high;
  };
  std::vector<std::vector<double>> groups{skewed()};
  for (const Row& row :
       {Row{Statistic::kMean, 0.95, 0.335, 0.2768, 0.3944}, Row{Statistic::kMean, 0.99, 0.335, 0.2596, 0.4136},
        Row{Statistic::kMedian, 0.95, 0.25, 0.16, 0.36}, Row{Statistic::kMidmean, 0.95, 0.27167, 0.1972, 0.3578},
        Row{Statistic::kMidmean, 0.99, 0.27167, 0.1761, 0.3859}}) {
    Interval interval =
        bootstrapInterval(groups, row.statistic, {.confidence = row.confidence, .resamples = 20000, .seed = 7});
    EXPECT_NEAR(interval.estimate, row.estimate, 1e-5);
    // Student's correction widens the interval by 2 % at this size.
    double width = row.high - row.low;
    EXPECT_NEAR(interval.low, row.low, 0.06 * width);
    EXPECT_NEAR(interval.high, row.high, 0.06 * width);
    EXPECT_EQ(bootstrapInterval(groups, row.statistic, {.confidence = 0.9, .resamples = 100, .seed = 3}).low,
              bootstrapInterval(groups, row.statistic, {.confidence = 0.9, .resamples = 100, .seed = 3}).low);
  }
}

TEST(Statistics, BootstrapEdges) {
  std::vector<std::vector<double>> same{std::vector<double>(10, -0.1), std::vector<double>(10, -0.3)};
  Interval interval = bootstrapInterval(same, Statistic::kMidmean, {});
  EXPECT_DOUBLE_EQ(interval.estimate, -0.2);
  EXPECT_NEAR(interval.low, -0.2, 1e-12);
  EXPECT_NEAR(interval.high, -0.2, 1e-12);
  std::vector<std::vector<double>> one{{-0.1}};
  EXPECT_TRUE(std::isinf(bootstrapInterval(one, Statistic::kMidmean, {}).high));
  EXPECT_TRUE(std::isinf(bootstrapInterval({}, Statistic::kMidmean, {}).high));
  // Stricter confidence, wider interval; also beyond what the resamples can resolve.
  std::vector<std::vector<double>> groups{skewed()};
  double width = 0;
  for (double confidence : {0.9, 0.99, 0.999, 0.99999, 0.9999999}) {
    Interval i = bootstrapInterval(groups, Statistic::kMean, {.confidence = confidence, .seed = 5});
    EXPECT_GT(i.high - i.low, width * 1.05);
    width = i.high - i.low;
  }
}

TEST(Statistics, BootstrapCovers) {
  // Of 400 intervals at 95 % for the centre of a normal sample of 12, about 380 must hold it.
  Random random(11);
  int covered = 0;
  for (int run = 0; run < 400; ++run) {
    std::vector<std::vector<double>> groups(1);
    for (int i = 0; i < 12; ++i) {
      double sum = 0;
      for (int k = 0; k < 12; ++k) sum += unitRandom(random);
      groups[0].push_back(sum - 6);
    }
    Interval interval = bootstrapInterval(groups, Statistic::kMidmean,
                                          {.confidence = 0.95, .resamples = 1000, .seed = static_cast<uint64_t>(run)});
    covered += interval.low <= 0 && 0 <= interval.high ? 1 : 0;
  }
  EXPECT_GE(covered, 366);
  EXPECT_LE(covered, 396);
}

TEST(Statistics, RandomIsBoundedEvenAndRepeatable) {
  Random random(1), again(1);
  std::vector<int> counts(7);
  for (int i = 0; i < 70000; ++i) {
    uint64_t v = boundedRandom(random, 7);
    EXPECT_EQ(v, boundedRandom(again, 7));
    ASSERT_LT(v, 7u);
    ++counts[v];
  }
  for (int count : counts) EXPECT_NEAR(count, 10000, 400);
  EXPECT_EQ(boundedRandom(random, 1), 0u);
  for (int i = 0; i < 100; ++i) EXPECT_LT(boundedRandom(random, (uint64_t{1} << 63) + 1), (uint64_t{1} << 63) + 1);
  EXPECT_NE(mixSeed(1, 0), mixSeed(1, 1));
  EXPECT_NE(mixSeed(1, 0), mixSeed(2, 0));
  std::vector<int> values(20);
  std::iota(values.begin(), values.end(), 0);
  std::vector<int> shuffled = values;
  shuffle(shuffled, random);
  EXPECT_NE(shuffled, values);
  std::sort(shuffled.begin(), shuffled.end());
  EXPECT_EQ(shuffled, values);
}

TEST(StoppingRule, PreciseLateOrNotYet) {
  StoppingRule steady({.minSamples = 5, .maxSamples = 20, .maxRelativeError = 0.01});
  for (int i = 0; i < 4; ++i) steady.add(100);
  EXPECT_EQ(steady.verdict(), StoppingRule::Verdict::kContinue);
  steady.add(100);
  EXPECT_EQ(steady.verdict(), StoppingRule::Verdict::kPrecise);
  StoppingRule noisy({.minSamples = 5, .maxSamples = 20, .maxRelativeError = 0.01});
  for (int i = 0; i < 19; ++i) noisy.add(i % 2 == 0 ? 100 : 200);
  EXPECT_EQ(noisy.verdict(), StoppingRule::Verdict::kContinue);
  noisy.add(100);
  EXPECT_EQ(noisy.verdict(), StoppingRule::Verdict::kMaxSamples);
}

}  // namespace
}  // namespace ktune::search
