// The sum over the last dim, which stays with extent 1.

#include <cmath>

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

Status reference(const RefContext& context, const Node&, std::span<const RefTensor* const> operands,
                 RefTensor& result) {
  const RefTensor& x = *operands[0];
  const int64_t columns = x.shape.back();
  const int64_t rows = productOf(x.shape) / columns;
  allocate(result, withLast(x.shape, 1));
  const Precision precision = precisionOf(context);
  inPieces(context, rows, 1 + (1 << 14) / columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const double* values = x.values.data() + row * columns;
      const Sum sum = sumOf(columns, [values](int64_t i) { return values[i]; });
      double propagated = 0;
      if (std::isfinite(sum.value)) {
        const double squares = sumOf(columns, [values](int64_t i) { return values[i] * values[i]; }).value;
        propagated = sumError(precision, columns, sum.reach, std::sqrt(squares));
      }
      if (!x.bounds.empty()) {
        const double* bounds = x.bounds.data() + row * columns;
        propagated += sumOf(columns, [bounds](int64_t i) { return bounds[i]; }).value;
      }
      const auto at = static_cast<size_t>(row);
      result.values[at] = sum.value;
      result.bounds[at] = settle(sum.value, propagated, 0, precision);
    }
  });
  return Status::ok();
}

double operations(const Node&, std::span<const ValueType> operands, const ValueType&,
                  const std::vector<int64_t>& symbolValues) {
  return elementsOf(operands[0], symbolValues);
}

OperatorDef define() {
  OperatorDef def;
  def.name = "reduce_sum";
  def.kind = OperatorKind::kReduction;
  def.operandCount = 1;
  def.summary = "y[..., 1] = sum over c of x[..., c]";
  def.infer = infer;
  def.reference = reference;
  def.operations = operations;
  return def;
}

}  // namespace

extern const OperatorDef kOperator_reduce_sum;
const OperatorDef kOperator_reduce_sum = define();

}  // namespace ktune::op
