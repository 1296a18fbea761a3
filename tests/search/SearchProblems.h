// Problems and cost surfaces that the search tests share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ir/op/Builder.h"
#include "ir/schedule/Problem.h"
#include "ir/schedule/Target.h"
#include "ir/schedule/Vary.h"

namespace ktune::search::testing {

inline op::Graph linearGraph(int64_t low = 2, int64_t high = 64) {
  Result<op::Graph> graph = op::makeLinear({"M", low, high, {high}}, 1024, 2048, op::DType::kF32);
  EXPECT_TRUE(graph.has_value()) << graph.status().toString();
  return *graph;
}
inline op::Graph normGraph(int64_t low = 16, int64_t high = 16) {
  Result<op::Graph> graph = op::makeRmsNorm({"M", low, high, {high}}, 1, 4096, 1e-6, op::DType::kF32);
  EXPECT_TRUE(graph.has_value()) << graph.status().toString();
  return *graph;
}
inline op::Graph addGraph(int64_t low = 256, int64_t high = 256) {
  Result<op::Graph> graph = op::makeAdd({"M", low, high, {high}}, 4096, op::DType::kF32);
  EXPECT_TRUE(graph.has_value()) << graph.status().toString();
  return *graph;
}
inline schedule::Problem problemOf(const op::Graph& graph, size_t bucket = 0) {
  Result<schedule::Problem> problem = schedule::Problem::create(graph, op::bucketsOf(graph).at(bucket));
  EXPECT_TRUE(problem.has_value()) << problem.status().toString();
  return *problem;
}

/// How far two genomes are apart, each parameter in steps along its list.
inline double stepsApart(const schedule::PlanGenome& a, const schedule::PlanGenome& b) {
  double steps = 0;
  for (size_t i = 0; i < std::min(a.fuse.size(), b.fuse.size()); ++i) steps += a.fuse[i] != b.fuse[i] ? 2 : 0;
  for (size_t k = 0; k < std::min(a.kernels.size(), b.kernels.size()); ++k) {
    if (a.kernels[k].generator != b.kernels[k].generator) continue;
    for (const schedule::ParameterDef& def : schedule::parameterTable()) {
      if (!def.activeFor(a.kernels[k])) continue;
      auto index = [&](int32_t v) { return std::find(def.values.begin(), def.values.end(), v) - def.values.begin(); };
      steps += static_cast<double>(std::abs(index(a.kernels[k].get(def.id)) - index(b.kernels[k].get(def.id))));
    }
  }
  return steps + 4.0 * std::abs(static_cast<double>(a.kernels.size()) - static_cast<double>(b.kernels.size()));
}

/// A bowl: BASENS at BEST, PERSTEP more (as a log) for every step away from it.
inline double bowlNs(const schedule::PlanGenome& genome, const schedule::PlanGenome& best, double baseNs,
                     double perStep) {
  return baseNs * std::exp(perStep * stepsApart(genome, best));
}

}  // namespace ktune::search::testing
