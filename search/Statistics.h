// Robust statistics for timings, with every random draw from an explicit seed. Nothing here uses the distributions of
// <random>: their output differs between standard libraries, and a seed must mean the same thing everywhere.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/schedule/Vary.h"

namespace ktune::search {

using Random = schedule::Random;

/// An independent seed for a numbered stream of SEED (splitmix64).
[[nodiscard]] uint64_t mixSeed(uint64_t seed, uint64_t stream);
/// Uniform in [0, bound), without modulo bias. REQUIRES: bound > 0.
[[nodiscard]] uint64_t boundedRandom(Random& random, uint64_t bound);
/// Uniform in [0, 1), 53 bits.
[[nodiscard]] double unitRandom(Random& random);
/// Fisher-Yates.
template <typename T>
void shuffle(std::vector<T>& values, Random& random) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[boundedRandom(random, i)]);
}

/// The middle value, or the mean of the two middle ones; NaN when there is none.
[[nodiscard]] double median(std::span<const double> values);
/// Median distance from the median, unscaled (multiply by 1.4826 for the sigma of a normal distribution).
[[nodiscard]] double medianAbsoluteDeviation(std::span<const double> values);
/// Mean of what is left after floor(share * n) values are cut off at each end. NaN when there is none.
[[nodiscard]] double trimmedMean(std::span<const double> values, double share);
/// Standard error of the mean over |mean|; infinity for fewer than two values.
[[nodiscard]] double relativeStandardError(std::span<const double> values);

/// Quantiles, for scaling tails: of the normal distribution, and of Student's t.
[[nodiscard]] double normalQuantile(double probability);
[[nodiscard]] double studentQuantile(double probability, double degreesOfFreedom);

enum class Statistic : uint8_t {
  kMean,
  kMedian,
  kMidmean,  ///< Mean of the middle half: as robust as timings need, and smooth under resampling.
};
[[nodiscard]] double evaluate(Statistic statistic, std::span<const double> values);

struct Interval {
  double estimate = 0, low = 0, high = 0;
};
struct BootstrapOptions {
  double confidence = 0.99;
  int resamples = 1000;
  uint64_t seed = 1;
};
/// Bootstrap interval for the mean over GROUPS of STATISTIC of each group; groups are resampled independently.
/// A percentile interval, with two corrections that matter for few samples and strict confidence: the tail that
/// RESAMPLES can resolve (25 of them outside) is read off and stretched to the tail asked for, by the ratio of
/// Student's quantile (degrees: size of the smallest group - 1) to the normal one.
/// A group of fewer than two values makes the interval infinite.
[[nodiscard]] Interval bootstrapInterval(std::span<const std::vector<double>> groups, Statistic statistic,
                                         const BootstrapOptions& options);

/// When to stop sampling: enough samples and precise enough, or too many.
class StoppingRule {
 public:
  struct Parameters {
    int minSamples = 10;
    int maxSamples = 60;
    double maxRelativeError = 0.005;  ///< Relative standard error that is precise enough.
  };
  enum class Verdict : uint8_t { kContinue, kPrecise, kMaxSamples };

  explicit StoppingRule(Parameters parameters) : parameters_(parameters) {}
  void add(double sample) { samples_.push_back(sample); }
  [[nodiscard]] Verdict verdict() const;
  [[nodiscard]] int samples() const { return static_cast<int>(samples_.size()); }

 private:
  Parameters parameters_;
  std::vector<double> samples_;
};

}  // namespace ktune::search
