// Seeded random descriptions for tests: chains and diamonds of whatever the operator table holds, so that a new
// operator is covered without being told.
#pragma once

#include <algorithm>
#include <random>
#include <string>

#include "ir/op/Operator.h"
#include "ir/op/Reference.h"

namespace ktune::op::test {

/// Draws that are the same with every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return between(1, 100) <= percent; }
  /// In [0, 1).
  double unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  /// Mean 0, variance 1, about normal (the sum of twelve uniform draws).
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += unit();
    return sum;
  }
  template <typename T>
  const T& pick(const std::vector<T>& from) {
    return from[static_cast<size_t>(between(0, static_cast<int64_t>(from.size()) - 1))];
  }

 private:
  std::mt19937_64 engine_;
};

/// What randomGraph() may vary.
struct RandomGraphOptions {
  std::vector<DType> dtypes = {DType::kF32, DType::kF32, DType::kF16, DType::kBF16, DType::kF64};
  int maxNodes = 6;
  bool layouts = true;  ///< Strides, alignments, aliases, numerics other than the defaults.
  int64_t maxExtent = 24;
};

/// A verified, normalised description. Equal seeds give equal descriptions.
inline Graph randomGraph(uint64_t seed, const RandomGraphOptions& options = {}) {
  Random random(seed);
  Graph graph;
  const DType dtype = random.pick(options.dtypes);
  const auto symbols = random.between(0, 2);
  for (int64_t s = 0; s < symbols; ++s) {
    Symbol symbol;
    symbol.name = s == 0 ? "M" : "Rows_" + std::to_string(seed % 10);
    symbol.min = random.between(1, 3);
    symbol.max = symbol.min + random.between(0, 12);
    for (int64_t e = symbol.min; e < symbol.max; ++e) {
      if (random.chance(20)) symbol.edges.push_back(e);
    }
    symbol.edges.push_back(symbol.max);
    graph.symbols.push_back(std::move(symbol));
  }
  // A few extents, so that shapes meet.
  const int64_t columns = random.between(1, options.maxExtent), features = random.between(1, options.maxExtent);
  std::vector<Dim> rows = {Dim::fixed(1), Dim::fixed(random.between(1, 6))};
  for (int32_t s = 0; s < static_cast<int32_t>(symbols); ++s) {
    rows.push_back(Dim::symbolic(s));
    rows.push_back(Dim::symbolic(s, random.between(2, 4)));
  }
  const Dim row = random.pick(rows), outer = random.pick(rows);
  const auto c = Dim::fixed(columns), n = Dim::fixed(features), one = Dim::fixed(1);
  const std::vector<Shape> shapes = {{row, c}, {row, c},   {c}, {row, n},       {n}, {n, c}, {c, n},
                                     {c, c},   {row, one}, {},  {outer, row, c}};
  const auto inputs = random.between(1, 6);
  for (int64_t i = 0; i < inputs; ++i) {
    Input input;
    input.name = "in" + std::to_string(i);
    input.type = {dtype, random.pick(shapes)};
    input.constant = random.chance(30);
    if (options.layouts && random.chance(30)) input.alignmentBytes = int64_t{1} << random.between(0, 8);
    if (options.layouts && random.chance(20) && input.type.shape.size() == 2 && input.type.shape[1].isStatic()) {
      input.strides = {input.type.shape[1].factor + random.between(1, 5), 1};
    }
    graph.inputs.push_back(std::move(input));
  }
  std::vector<ValueType> types;
  for (const Input& input : graph.inputs) types.push_back(input.type);
  const auto wanted = random.between(1, options.maxNodes);
  const std::vector<const OperatorDef*> table(operatorTable().begin(), operatorTable().end());
  for (int attempt = 0; attempt < 400 && static_cast<int64_t>(graph.nodes.size()) < wanted; ++attempt) {
    const OperatorDef& def = *random.pick(table);
    Node node;
    node.op = std::string(def.name);
    node.result = "r" + std::to_string(graph.nodes.size());
    std::vector<ValueType> operands;
    for (int k = 0; k < def.operandCount; ++k) {
      // Later values more often, so that chains grow.
      const auto last = static_cast<int64_t>(types.size()) - 1;
      node.operands.push_back(static_cast<int32_t>(std::max(random.between(0, last), random.between(0, last))));
      operands.push_back(types[static_cast<size_t>(node.operands.back())]);
    }
    for (const AttributeDef& a : def.attributes) {
      Attribute value = a.otherwise;
      if (a.type == AttributeDef::Type::kNumber && random.chance(70)) value = random.unit() * 4 + 1e-6;
      if (a.type == AttributeDef::Type::kText && a.name == "dtype") value = std::string(dtypeName(dtype));
      node.attributes.emplace(a.name, std::move(value));
    }
    Result<ValueType> type = def.infer(graph, node, operands);
    if (!type || type->shape.size() > kMaxRank) continue;
    graph.nodes.push_back(std::move(node));
    types.push_back(std::move(*type));
  }
  if (graph.nodes.empty()) {
    graph.nodes.push_back({"neg", {0}, {}, "r0"});
    types.push_back(types[0]);
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (i + 1 < graph.nodes.size() && !random.chance(20)) continue;
    Output out;
    out.value = graph.resultOf(i);
    for (size_t k = 0; options.layouts && k < graph.inputs.size(); ++k) {
      const Input& input = graph.inputs[k];
      const bool taken = std::any_of(graph.outputs.begin(), graph.outputs.end(),
                                     [&](const Output& o) { return o.aliasInput == static_cast<int32_t>(k); });
      if (!taken && !input.constant && input.strides.empty() && input.type == types[static_cast<size_t>(out.value)] &&
          random.chance(30)) {
        out.aliasInput = static_cast<int32_t>(k);
        break;
      }
    }
    graph.outputs.push_back(out);
  }
  if (options.layouts && random.chance(30)) {
    graph.numerics.accumulate = random.chance(50) ? DType::kF64 : DType::kF32;
    graph.numerics.tolerance = static_cast<ToleranceClass>(random.between(0, 2));
    graph.numerics.deterministic = random.chance(50);
    graph.numerics.batchInvariant = random.chance(50);
  }
  return normalised(std::move(graph));
}

/// Random values for a graph's inputs, rounded to their dtypes; positive ones where POSITIVE (so that roots exist).
inline std::vector<RefTensor> randomInputs(const Graph& graph, const std::vector<int64_t>& symbolValues, uint64_t seed,
                                           bool positive = false) {
  Random random(seed);
  std::vector<RefTensor> tensors;
  for (const Input& input : graph.inputs) {
    RefTensor& t = tensors.emplace_back();
    int64_t count = 1;
    for (const Dim& dim : input.type.shape) {
      t.shape.push_back(dim.extent(symbolValues));
      count *= t.shape.back();
    }
    for (int64_t i = 0; i < count; ++i) {
      const double value = positive ? 0.1 + random.unit() : random.normal();
      t.values.push_back(roundTo(input.type.dtype, value));
    }
  }
  return tensors;
}

}  // namespace ktune::op::test
