#include "ir/op/Buckets.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace ktune::op {
namespace {

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014): small, and the same on
/// every machine, which std::uniform_int_distribution is not.
class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// In [low, high]; the bias of the remainder does not matter here.
  int64_t between(int64_t low, int64_t high) {
    const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) + 1;
    return static_cast<int64_t>(static_cast<uint64_t>(low) + (range == 0 ? next() : next() % range));
  }

 private:
  uint64_t state_;
};

int64_t geometricMiddle(int64_t low, int64_t high) {
  const double middle = std::sqrt(static_cast<double>(low)) * std::sqrt(static_cast<double>(high));
  return std::clamp<int64_t>(std::llround(middle), low, high);
}

}  // namespace

std::string Bucket::describe(const Graph& graph) const {
  if (low.empty()) return "static";
  std::string text;
  for (size_t s = 0; s < low.size(); ++s) {
    text +=
        (s == 0 ? "" : ",") + (s < graph.symbols.size() ? graph.symbols[s].name : "?") + "=" + std::to_string(low[s]);
    if (high[s] != low[s]) text += ".." + std::to_string(high[s]);
  }
  return text;
}

bool Bucket::contains(const std::vector<int64_t>& symbolValues) const {
  if (symbolValues.size() != low.size()) return false;
  for (size_t s = 0; s < low.size(); ++s) {
    if (symbolValues[s] < low[s] || symbolValues[s] > high[s]) return false;
  }
  return true;
}

std::vector<Bucket> bucketsOf(const Graph& graph) {
  std::vector<Bucket> buckets(1);
  for (const Symbol& symbol : graph.symbols) {
    const std::vector<int64_t> edges = symbol.edges.empty() ? std::vector<int64_t>{symbol.max} : symbol.edges;
    std::vector<Bucket> finer;
    for (const Bucket& bucket : buckets) {
      int64_t low = symbol.min;
      for (int64_t edge : edges) {
        Bucket cell = bucket;
        cell.low.push_back(low);
        cell.high.push_back(edge);
        finer.push_back(std::move(cell));
        low = edge + 1;
      }
    }
    buckets = std::move(finer);
  }
  return buckets;
}

std::vector<std::vector<int64_t>> scoringPoints(const Bucket& bucket) {
  std::vector<int64_t> middle;
  for (size_t s = 0; s < bucket.low.size(); ++s) middle.push_back(geometricMiddle(bucket.low[s], bucket.high[s]));
  std::vector<std::vector<int64_t>> points = {bucket.low, std::move(middle), bucket.high};
  points.erase(std::unique(points.begin(), points.end()), points.end());
  return points;
}

std::vector<std::vector<int64_t>> heldOutPoints(const Bucket& bucket, int count, uint64_t seed) {
  const std::vector<std::vector<int64_t>> scored = scoringPoints(bucket);
  std::set<std::vector<int64_t>> used(scored.begin(), scored.end());
  std::vector<std::vector<int64_t>> points;
  if (bucket.low.empty() || count <= 0) return points;
  SplitMix random(seed);

  // A small bucket is listed and shuffled, so that all its values can be had; a large one is drawn from.
  constexpr uint64_t kListed = 4096;
  uint64_t size = 1;
  for (size_t s = 0; s < bucket.low.size(); ++s) {
    const uint64_t range = static_cast<uint64_t>(bucket.high[s] - bucket.low[s]) + 1;
    size = range > kListed || size * range > kListed ? kListed + 1 : size * range;
  }
  if (size <= kListed) {
    std::vector<int64_t> point = bucket.low;
    for (uint64_t i = 0; i < size; ++i) {
      if (!used.contains(point)) points.push_back(point);
      for (size_t s = point.size(); s-- > 0;) {
        if (point[s] < bucket.high[s]) {
          ++point[s];
          break;
        }
        point[s] = bucket.low[s];
      }
    }
    const size_t wanted = std::min(points.size(), static_cast<size_t>(count));
    for (size_t i = 0; i < wanted; ++i) {
      const auto j = random.between(static_cast<int64_t>(i), static_cast<int64_t>(points.size()) - 1);
      std::swap(points[i], points[static_cast<size_t>(j)]);
    }
    points.resize(wanted);
    return points;
  }
  while (points.size() < static_cast<size_t>(count) && points.size() < kListed / 2) {
    std::vector<int64_t> point;
    for (size_t s = 0; s < bucket.low.size(); ++s) point.push_back(random.between(bucket.low[s], bucket.high[s]));
    if (used.insert(point).second) points.push_back(std::move(point));
  }
  return points;
}

}  // namespace ktune::op
