#include "ir/schedule/IterationSpace.h"

#include <algorithm>

#include "ir/op/Operator.h"

namespace ktune::schedule {

namespace {

bool isOne(const op::Dim& dim) {
  return dim.isStatic() && dim.factor == 1;
}

/// Every value a group touches, computed values included.
std::vector<int32_t> valuesOf(const Problem& problem, const Group& group) {
  std::vector<int32_t> values = group.inputs;
  for (int32_t node : group.nodes) values.push_back(problem.primitives.resultOf(static_cast<size_t>(node)));
  return values;
}

}  // namespace

IterationSpace iterationSpace(const Problem& problem, const Group& group) {
  IterationSpace space{op::Dim::fixed(1), op::Dim::fixed(1), false};
  for (int32_t value : valuesOf(problem, group)) {
    // A contraction's space is its output's: the depth is a loop, not a dim of the grid.
    if (group.generator == Generator::kContraction && problem.primitives.isInput(value)) continue;
    if (group.generator == Generator::kContraction &&
        std::find(group.inputs.begin(), group.inputs.end(), value) != group.inputs.end())
      continue;
    Problem::Matrix matrix = problem.matrixOf(value);
    if (!isOne(matrix.rows)) space.rows = matrix.rows;
    if (!isOne(matrix.columns)) space.columns = matrix.columns;
  }
  if (group.generator == Generator::kMap && !isOne(space.rows)) {
    bool dense = true;
    for (int32_t value : valuesOf(problem, group)) {
      Problem::Matrix matrix = problem.matrixOf(value);
      bool scalar = isOne(matrix.rows) && isOne(matrix.columns);
      dense &= scalar || (matrix.rows == space.rows && matrix.columns == space.columns &&
                          rowStrideOf(problem, value) == matrix.columns);
    }
    if (dense && (space.rows.isStatic() || space.columns.isStatic())) {
      op::Dim total{space.rows.factor * space.columns.factor, std::max(space.rows.symbol, space.columns.symbol)};
      space = {op::Dim::fixed(1), total, true};
    }
  }
  return space;
}

op::DType partialsTypeOf(const Problem& problem, const Group& group) {
  op::DType type = problem.source.numerics.accumulate;
  for (int32_t n : group.nodes) {
    const auto node = static_cast<size_t>(n);
    if (op::findOperator(problem.primitives.nodes[node].op)->kind != op::OperatorKind::kContraction) continue;
    const op::DType result = problem.types[static_cast<size_t>(problem.primitives.resultOf(node))].dtype;
    if (op::dtypeBytes(result) > op::dtypeBytes(type)) type = result;
  }
  return type;
}

op::DType storedTypeOf(const Problem& problem, int32_t value) {
  const op::Graph& graph = problem.primitives;
  const op::DType own = problem.types[static_cast<size_t>(value)].dtype;
  const bool seen = graph.isInput(value) || std::any_of(graph.outputs.begin(), graph.outputs.end(),
                                                        [&](const op::Output& o) { return o.value == value; });
  return !seen && op::isFloat(own) && op::dtypeBytes(own) < op::dtypeBytes(op::DType::kF32) ? op::DType::kF32 : own;
}

op::Dim rowStrideOf(const Problem& problem, int32_t value) {
  const op::Graph& graph = problem.primitives;
  const op::Dim columns = problem.matrixOf(value).columns;
  auto strideOf = [&](const op::Input& input) {
    const size_t rank = input.type.shape.size();
    // The innermost leading dim that is no 1 says how far rows lie apart (Problem::create saw to it that all agree).
    for (size_t d = rank < 2 ? 0 : rank - 1; d-- > 0 && !input.strides.empty();)
      if (!isOne(input.type.shape[d])) return op::Dim::fixed(input.strides[d]);
    return columns;
  };
  if (graph.isInput(value)) return strideOf(graph.inputs[static_cast<size_t>(value)]);
  for (const op::Output& output : graph.outputs)
    if (output.value == value && output.aliasInput >= 0)
      return strideOf(graph.inputs[static_cast<size_t>(output.aliasInput)]);
  return columns;
}

int64_t baseAlignmentOf(const Problem& problem, int32_t value) {
  const op::Graph& graph = problem.primitives;
  int64_t alignment = 64;
  if (graph.isInput(value)) alignment = graph.inputs[static_cast<size_t>(value)].alignmentBytes;
  for (const op::Output& output : graph.outputs) {
    if (output.value != value) continue;
    alignment =
        std::min(alignment, output.aliasInput >= 0 ? graph.inputs[static_cast<size_t>(output.aliasInput)].alignmentBytes
                                                   : output.alignmentBytes);
  }
  return std::clamp<int64_t>(alignment, 1, 64);
}

int64_t rowAlignmentOf(const Problem& problem, int32_t value) {
  int64_t alignment = baseAlignmentOf(problem, value);
  const int64_t bytes =
      rowStrideOf(problem, value).factor * op::dtypeBytes(problem.types[static_cast<size_t>(value)].dtype);
  if (!isOne(problem.matrixOf(value).rows))
    while (alignment > 1 && bytes % alignment != 0) alignment /= 2;
  return alignment;
}

}  // namespace ktune::schedule
