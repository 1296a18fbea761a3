// Problems of every kind that the schedule code must handle: generators, fusion, broadcasts, symbols, tiny sizes.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ir/op/Builder.h"
#include "ir/schedule/Problem.h"
#include "ir/schedule/Target.h"

namespace ktune::schedule::testing {

using op::Dim;
using op::DType;

struct Sample {
  std::string name;
  op::Graph graph;
};

inline op::Graph built(Result<op::Graph> graph) {
  EXPECT_TRUE(graph.has_value()) << (graph ? "" : graph.error().message());
  return graph ? *graph : op::Graph();
}

/// y = rms_norm(x * w^T + residual): a contraction with an epilogue, then a row kernel.
inline op::Graph linearThenNorm() {
  op::GraphBuilder b;
  int32_t m = b.symbol("M", 1, 64, {1, 64});
  int32_t x = b.input("x", DType::kF32, {Dim::symbolic(m), Dim::fixed(1024)});
  int32_t w = b.input("w", DType::kF32, {Dim::fixed(512), Dim::fixed(1024)}, true);
  int32_t residual = b.input("residual", DType::kF32, {Dim::symbolic(m), Dim::fixed(512)});
  int32_t weight = b.input("weight", DType::kF32, {Dim::fixed(512)}, true);
  int32_t sum = b.node("add", {b.node("linear", {x, w}), residual});
  b.output(sum, residual);
  b.output(b.node("rms_norm", {sum, weight}, {{"eps", 1e-6}}));
  return built(b.finish());
}

/// y = (x + 1) * (x - 1): a diamond of maps.
inline op::Graph diamond() {
  op::GraphBuilder b;
  int32_t x = b.input("x", DType::kF32, {Dim::fixed(300), Dim::fixed(77)});
  int32_t top = b.node("neg", {x});
  int32_t one = b.node("constant", {}, {{"value", 1.0}});
  b.output(b.node("mul", {b.node("add", {top, one}), b.node("sub", {top, one})}));
  return built(b.finish());
}

/// rms_norm with weight + 1, in which the weight's row is computed inside.
inline op::Graph offsetNorm(bool batchInvariant) {
  op::GraphBuilder b;
  int32_t m = b.symbol("M", 1, 8192, {16, 8192});
  int32_t x = b.input("x", DType::kF32, {Dim::symbolic(m, 4), Dim::fixed(2), Dim::fixed(128)});
  int32_t weight = b.input("weight", DType::kF32, {Dim::fixed(128)}, true);
  int32_t one = b.node("constant", {}, {{"value", 1.0}});
  b.output(b.node("rms_norm", {x, b.node("add", {weight, one})}, {{"eps", 1e-6}}));
  b.numerics().batchInvariant = batchInvariant;
  return built(b.finish());
}

inline std::vector<Sample> samples() {
  op::Symbol tokens{"M", 1, 512, {1, 16, 512}};
  std::vector<Sample> all;
  all.push_back({"rms_norm", built(op::makeRmsNorm(tokens, 1, 4096, 1e-6, DType::kF32))});
  all.push_back({"rms_norm of heads", built(op::makeRmsNorm(tokens, 32, 128, 1e-6, DType::kF32))});
  all.push_back({"rms_norm tiny", built(op::makeRmsNorm({"M", 1, 3, {3}}, 1, 5, 1e-6, DType::kF32))});
  all.push_back({"linear", built(op::makeLinear(tokens, 4096, 4096, DType::kF32))});
  all.push_back({"linear wide", built(op::makeLinear({"M", 1, 1, {1}}, 28672, 4096, DType::kF32))});
  all.push_back({"linear tiny", built(op::makeLinear({"M", 1, 3, {3}}, 7, 3, DType::kF32))});
  all.push_back({"add", built(op::makeAdd(tokens, 4096, DType::kF32))});
  all.push_back({"add of f64", built(op::makeAdd(tokens, 100, DType::kF64))});
  all.push_back({"linear then norm", linearThenNorm()});
  all.push_back({"diamond", diamond()});
  all.push_back({"offset norm", offsetNorm(false)});
  all.push_back({"batch-invariant norm", offsetNorm(true)});
  op::Graph invariant = built(op::makeLinear(tokens, 1024, 2048, DType::kF32));
  invariant.numerics.batchInvariant = true;
  all.push_back({"batch-invariant linear", invariant});
  all.push_back({"linear bf16", built(op::makeLinear(tokens, 4096, 4096, DType::kBF16))});
  all.push_back({"linear bf16 tiny", built(op::makeLinear({"M", 1, 3, {3}}, 7, 24, DType::kBF16))});
  all.push_back({"add f16", built(op::makeAdd(tokens, 77, DType::kF16))});
  return all;
}

inline std::vector<Target> targets() {
  Target fake = fakeTarget();
  Target sse = fake;
  sse.kind = DeviceKind::kCpu;
  sse.vectorBytes = 16;
  sse.vectorRegisters = 16;
  sse.cores = 64;
  Target avx2 = sse;
  avx2.vectorBytes = 32;
  avx2.cores = 1;
  avx2.l2Bytes = 256 << 10;
  return {fake, sse, avx2, cudaTarget("sm_80"), cudaTarget("sm_90a"), cudaTarget("sm_120")};
}

inline Problem problemOf(const op::Graph& graph, size_t bucket) {
  Result<Problem> problem = Problem::create(graph, op::bucketsOf(graph).at(bucket));
  EXPECT_TRUE(problem.has_value()) << (problem ? "" : problem.error().message());
  return problem ? *problem : Problem();
}

}  // namespace ktune::schedule::testing
