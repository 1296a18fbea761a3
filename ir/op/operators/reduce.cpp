// Reductions over the last dim, which stays with extent 1: the sum, its mean, the largest and the smallest element.

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/op/Operator.h"
#include "ir/op/ReferenceKernels.h"

namespace ktune::op {
namespace {

Result<ValueType> infer(const Graph& graph, const Node& node, std::span<const ValueType> operands) {
  KTUNE_TRY(requireFloat(node.op, operands[0].dtype));
  KTUNE_TRY(requireStaticLastDim(graph, node, operands));
  ValueType result = operands[0];
  result.shape.back() = Dim::fixed(1);
  return result;
}

// REDUCE(values of the row, index of its first element, value of the result, its bound) for each row of x.
template <typename Row>
Status eachRow(const RefContext& context, const RefTensor& x, RefTensor& result, const Row& reduce) {
  const int64_t columns = x.shape.back();
  const int64_t rows = productOf(x.shape) / columns;
  allocate(result, withLast(x.shape, 1));
  inPieces(context, rows, 1 + (1 << 14) / columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto at = static_cast<size_t>(row);
      reduce(x.values.data() + row * columns, row * columns, result.values[at], result.bounds[at]);
    }
  });
  return Status::ok();
}

// The sum times FACTOR; RELATIVE: of what multiplying takes.
Status sumReference(const RefContext& context, double factor, double relative,
                    std::span<const RefTensor* const> operands, RefTensor& result) {
  const RefTensor& x = *operands[0];
  const int64_t columns = x.shape.back();
  const Precision precision = precisionOf(context);
  return eachRow(context, x, result, [&](const double* values, int64_t first, double& value, double& bound) {
    const Sum sum = sumOf(columns, [values](int64_t i) { return values[i]; });
    double propagated = 0;
    if (std::isfinite(sum.value)) {
      const double squares = sumOf(columns, [values](int64_t i) { return values[i] * values[i]; }).value;
      propagated = sumError(precision, columns, sum.reach, std::sqrt(squares));
    }
    if (!x.bounds.empty()) propagated += sumOf(columns, [&](int64_t i) { return boundAt(x, first + i); }).value;
    value = sum.value * factor;
    bound = settle(value, propagated * factor, relative * precision.accumulate, precision);
  });
}

Status sum(const RefContext& context, const Node&, std::span<const RefTensor* const> operands, RefTensor& result) {
  return sumReference(context, 1, 0, operands, result);
}

// One unit for the rounded 1 / n, one for the product.
Status mean(const RefContext& context, const Node&, std::span<const RefTensor* const> operands, RefTensor& result) {
  return sumReference(context, 1 / static_cast<double>(operands[0]->shape.back()), 2, operands, result);
}

Result<int32_t> decomposeMean(ExpandBuilder& builder, const Node&, std::span<const int32_t> operands,
                              std::span<const ValueType> operandTypes) {
  KTUNE_ASSIGN(const int32_t total, builder.add("reduce_sum", {operands[0]}));
  const double columns = static_cast<double>(operandTypes[0].shape.back().factor);
  KTUNE_ASSIGN(const int32_t inverse, builder.constant(operandTypes[0].dtype, 1 / columns));
  return builder.add("mul", {total, inverse});
}

// Exact: the result errs by what the element errs that is the largest (smallest), at most by the largest such error.
template <bool LARGEST>
Status extreme(const RefContext& context, const Node&, std::span<const RefTensor* const> operands, RefTensor& result) {
  const RefTensor& x = *operands[0];
  const int64_t columns = x.shape.back();
  const Precision precision = precisionOf(context);
  return eachRow(context, x, result, [&](const double* values, int64_t first, double& found, double& bound) {
    found = LARGEST ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
    double error = 0;
    for (int64_t c = 0; c < columns; ++c) {
      const double v = values[c];
      error = std::max(error, boundAt(x, first + c));
      if (std::isnan(v)) found = v;
      if (LARGEST ? v > found : v < found) found = v;
    }
    bound = std::isfinite(found) ? error : settle(found, error, 0, precision);
  });
}

double operations(const Node&, std::span<const ValueType> operands, const ValueType&,
                  const std::vector<int64_t>& symbolValues) {
  return elementsOf(operands[0], symbolValues);
}

using Reference = decltype(OperatorDef::reference);
OperatorDef define(std::string_view name, Combine combine, std::string_view summary, Reference reference) {
  OperatorDef def;
  def.name = name;
  def.kind = OperatorKind::kReduction;
  def.combine = combine;
  def.operandCount = 1;
  def.summary = summary;
  def.infer = infer;
  def.reference = reference;
  def.operations = operations;
  return def;
}

OperatorDef defineMean() {
  OperatorDef def = define("reduce_mean", Combine::kSum, "y[..., 1] = mean over c of x[..., c]", mean);
  def.kind = OperatorKind::kComposite;
  def.decompose = decomposeMean;
  return def;
}

}  // namespace

extern const OperatorDef kOperator_reduce_sum, kOperator_reduce_mean, kOperator_reduce_max, kOperator_reduce_min;
const OperatorDef kOperator_reduce_sum =
    define("reduce_sum", Combine::kSum, "y[..., 1] = sum over c of x[..., c]", sum);
const OperatorDef kOperator_reduce_mean = defineMean();
const OperatorDef kOperator_reduce_max =
    define("reduce_max", Combine::kMaximum, "y[..., 1] = max over c of x[..., c]; NaN when one is", extreme<true>);
const OperatorDef kOperator_reduce_min =
    define("reduce_min", Combine::kMinimum, "y[..., 1] = min over c of x[..., c]; NaN when one is", extreme<false>);

}  // namespace ktune::op
