#include "search/Statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace ktune::search {
namespace {

/// std::lgamma writes the sign into a global: several devices are tuned by several threads.
double logGamma(double x) {
  int sign = 0;
  return ::lgamma_r(x, &sign);
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kMidmeanShare = 0.25;
/// Fewer resamples than this in a tail make its percentile noise.
constexpr double kResolvedTail = 25;

double meanOf(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// The statistics below reorder VALUES, which saves the bootstrap a copy per resample.
double medianInPlace(std::vector<double>& values) {
  if (values.empty()) return kNaN;
  auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double trimmedMeanInPlace(std::vector<double>& values, double share) {
  if (values.empty()) return kNaN;
  auto cut = static_cast<ptrdiff_t>(share * static_cast<double>(values.size()));
  auto low = values.begin() + cut, high = values.end() - cut;
  if (low >= high) return medianInPlace(values);
  if (cut > 0) {
    std::nth_element(values.begin(), low, values.end());
    std::nth_element(low, high - 1, values.end());
  }
  return std::accumulate(low, high, 0.0) / static_cast<double>(high - low);
}

double evaluateInPlace(Statistic statistic, std::vector<double>& values) {
  switch (statistic) {
    case Statistic::kMean:
      return values.empty() ? kNaN : meanOf(values);
    case Statistic::kMedian:
      return medianInPlace(values);
    case Statistic::kMidmean:
      break;
  }
  return trimmedMeanInPlace(values, kMidmeanShare);
}

/// The regularised incomplete beta function by its continued fraction (Lentz; DLMF 8.17.22).
double incompleteBeta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  if (x > (a + 1) / (a + b + 2)) return 1 - incompleteBeta(b, a, 1 - x);
  double front = std::exp(logGamma(a + b) - logGamma(a) - logGamma(b) + a * std::log(x) + b * std::log1p(-x));
  constexpr double kTiny = 1e-300;
  auto guard = [](double v) { return std::fabs(v) < kTiny ? kTiny : v; };
  double c = 1, d = 1 / guard(1 - (a + b) * x / (a + 1)), f = d;
  for (int m = 1; m < 500; ++m) {
    double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / guard(1 + even * d);
    c = guard(1 + even / c);
    f *= c * d;
    double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / guard(1 + odd * d);
    c = guard(1 + odd / c);
    f *= c * d;
    if (std::fabs(c * d - 1) < 1e-15) break;
  }
  return front * f / a;
}

/// P(T > t) for t >= 0.
double studentTail(double t, double degrees) {
  return 0.5 * incompleteBeta(degrees / 2, 0.5, degrees / (degrees + t * t));
}

/// The t >= 0 with upper tail TAIL, by bisection on a bracket that is doubled until it holds the root.
template <typename Tail>
double quantileOfTail(double tail, Tail&& upperTail) {
  double low = 0, high = 1;
  while (upperTail(high) > tail && high < 1e12) high *= 2;
  for (int i = 0; i < 200 && high - low > 1e-14 * high; ++i) {
    double middle = (low + high) / 2;
    (upperTail(middle) > tail ? low : high) = middle;
  }
  return (low + high) / 2;
}

template <typename Tail>
double symmetricQuantile(double probability, Tail&& upperTail) {
  if (!(probability > 0 && probability < 1)) return probability <= 0 ? -kInfinity : kInfinity;
  if (probability == 0.5) return 0;
  double t = quantileOfTail(std::min(probability, 1 - probability), upperTail);
  return probability < 0.5 ? -t : t;
}

}  // namespace

uint64_t mixSeed(uint64_t seed, uint64_t stream) {
  uint64_t z = seed + 0x9e3779b97f4a7c15u * (stream + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

uint64_t boundedRandom(Random& random, uint64_t bound) {
  // Lemire's multiplication for what fits 32 bits (the bootstrap draws millions): a division only when a draw may
  // have to be rejected.
  if (bound <= UINT32_MAX) {
    for (;;) {
      uint64_t product = (random() >> 32) * bound;
      auto low = static_cast<uint32_t>(product);
      if (low >= bound || low >= (0u - static_cast<uint32_t>(bound)) % bound) return product >> 32;
    }
  }
  // Values below 2^64 mod bound would make the small remainders likelier.
  uint64_t threshold = (0 - bound) % bound;
  for (;;) {
    uint64_t value = random();
    if (value >= threshold) return value % bound;
  }
}

double unitRandom(Random& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}

double median(std::span<const double> values) {
  std::vector<double> copy(values.begin(), values.end());
  return medianInPlace(copy);
}

double medianAbsoluteDeviation(std::span<const double> values) {
  double middle = median(values);
  std::vector<double> distances;
  distances.reserve(values.size());
  for (double v : values) distances.push_back(std::fabs(v - middle));
  return medianInPlace(distances);
}

double trimmedMean(std::span<const double> values, double share) {
  std::vector<double> copy(values.begin(), values.end());
  return trimmedMeanInPlace(copy, share);
}

double relativeStandardError(std::span<const double> values) {
  if (values.size() < 2) return kInfinity;
  double mean = meanOf(values), squares = 0;
  for (double v : values) squares += (v - mean) * (v - mean);
  auto n = static_cast<double>(values.size());
  return std::sqrt(squares / (n - 1) / n) / std::fabs(mean);
}

double normalQuantile(double probability) {
  return symmetricQuantile(probability, [](double z) { return 0.5 * std::erfc(z / std::sqrt(2.0)); });
}

double studentQuantile(double probability, double degreesOfFreedom) {
  return symmetricQuantile(probability, [&](double t) { return studentTail(t, degreesOfFreedom); });
}

double evaluate(Statistic statistic, std::span<const double> values) {
  std::vector<double> copy(values.begin(), values.end());
  return evaluateInPlace(statistic, copy);
}

Interval bootstrapInterval(std::span<const std::vector<double>> groups, Statistic statistic,
                           const BootstrapOptions& options) {
  Interval interval;
  size_t smallest = std::numeric_limits<size_t>::max();
  for (const std::vector<double>& group : groups) {
    smallest = std::min(smallest, group.size());
    interval.estimate += evaluate(statistic, group) / static_cast<double>(groups.size());
  }
  if (groups.empty() || smallest < 2) return {interval.estimate, -kInfinity, kInfinity};

  Random random(options.seed);
  std::vector<double> estimates(static_cast<size_t>(options.resamples), 0.0), draw;
  for (double& estimate : estimates) {
    for (const std::vector<double>& group : groups) {
      draw.resize(group.size());
      for (double& v : draw) v = group[boundedRandom(random, group.size())];
      estimate += evaluateInPlace(statistic, draw) / static_cast<double>(groups.size());
    }
  }
  std::sort(estimates.begin(), estimates.end());
  auto quantile = [&](double p) {
    double position = p * static_cast<double>(estimates.size() - 1);
    auto index = static_cast<size_t>(position);
    double next = estimates[std::min(index + 1, estimates.size() - 1)];
    return estimates[index] + (position - static_cast<double>(index)) * (next - estimates[index]);
  };
  double tail = (1 - options.confidence) / 2;
  double resolved = std::min(0.25, std::max(tail, kResolvedTail / static_cast<double>(options.resamples)));
  double stretch = studentQuantile(1 - tail, static_cast<double>(smallest - 1)) / normalQuantile(1 - resolved);
  interval.low = interval.estimate + stretch * std::min(0.0, quantile(resolved) - interval.estimate);
  interval.high = interval.estimate + stretch * std::max(0.0, quantile(1 - resolved) - interval.estimate);
  return interval;
}

StoppingRule::Verdict StoppingRule::verdict() const {
  if (samples() < parameters_.minSamples) return Verdict::kContinue;
  if (relativeStandardError(samples_) <= parameters_.maxRelativeError) return Verdict::kPrecise;
  return samples() >= parameters_.maxSamples ? Verdict::kMaxSamples : Verdict::kContinue;
}

}  // namespace ktune::search
