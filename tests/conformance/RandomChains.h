// Descriptions nobody wrote a kernel for: seeded random graphs of the whole operator table that a device's generators
// take on. Equal seeds give equal descriptions, on every device.
#pragma once

#include <optional>
#include <vector>

#include "conformance/Chains.h"
#include "ir/schedule/Legality.h"
#include "op/RandomGraph.h"

namespace ktune::test {

/// So many that five hundred can be proven: for some, zeros would be right.
inline constexpr size_t kRandomChains = 560;

struct RandomChain {
  uint64_t seed = 0;
  schedule::Problem problem;
};

/// The first COUNT seeds whose descriptions, with one of DTYPES, TARGET supports.
inline std::vector<RandomChain> randomChains(const schedule::Target& target, size_t count,
                                             const std::vector<op::DType>& dtypes = {op::DType::kF32}) {
  op::test::RandomGraphOptions options;
  options.dtypes = dtypes;
  options.maxNodes = 9;
  options.maxExtent = 300;
  std::vector<RandomChain> chains;
  for (uint64_t seed = 0; chains.size() < count && seed < 100 * count; ++seed) {
    const op::Graph graph = op::test::randomGraph(seed, options);
    const std::vector<op::Bucket> buckets = op::bucketsOf(graph);
    Result<schedule::Problem> problem = schedule::Problem::create(graph, buckets[seed % buckets.size()]);
    // Two symbols in one value's rows, say: the error says so, and op_test knows of it.
    if (!problem || !schedule::supported(*problem, target).isOk()) continue;
    chains.push_back({seed, std::move(*problem)});
  }
  return chains;
}

}  // namespace ktune::test
