// Buckets: how a symbolic dim's range is cut, and at which values a bucket is scored.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/op/Graph.h"

namespace ktune::op {

/// One cell of the grid of buckets: per symbol an inclusive range.
struct Bucket {
  std::vector<int64_t> low;   ///< Per symbol.
  std::vector<int64_t> high;  ///< Per symbol, >= low.
  bool operator==(const Bucket&) const = default;
  /// "M=2..16", "M=1", "static" when there are no symbols.
  [[nodiscard]] std::string describe(const Graph& graph) const;
  [[nodiscard]] bool contains(const std::vector<int64_t>& symbolValues) const;
};

/// The grid of buckets of a verified description: the cross product over symbols of the cells that edges cut
/// (edges e0 < e1 < ...: [min, e0], [e0+1, e1], ...). One bucket when there are no symbols. An empty edge list means
/// one cell [min, max].
[[nodiscard]] std::vector<Bucket> bucketsOf(const Graph& graph);

/// The values at which a bucket is scored: its low end, geometric middle (rounded) and high end, without repeats,
/// ascending; all symbols move together.
[[nodiscard]] std::vector<std::vector<int64_t>> scoringPoints(const Bucket& bucket);

/// Values inside the bucket on which nothing was tuned, for the guard: drawn from SEED, never a scoring point where
/// the bucket has others; at most COUNT, possibly none.
[[nodiscard]] std::vector<std::vector<int64_t>> heldOutPoints(const Bucket& bucket, int count, uint64_t seed);

}  // namespace ktune::op
