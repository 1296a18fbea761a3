// Softmax and its logarithm over the last dim, with the row's maximum subtracted.

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/op/Operator.h"
#include "ir/op/ReferenceKernels.h"

namespace ktune::op {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Result<ValueType> infer(const Graph& graph, const Node& node, std::span<const ValueType> operands) {
  KTUNE_TRY(requireFloat(node.op, operands[0].dtype));
  KTUNE_TRY(requireStaticLastDim(graph, node, operands));
  return operands[0];
}

struct Shifted {
  int32_t difference = 0, exponential = 0, total = 0;
};
Result<Shifted> shift(ExpandBuilder& builder, int32_t x) {
  Shifted s;
  KTUNE_ASSIGN(const int32_t most, builder.add("reduce_max", {x}));
  KTUNE_ASSIGN(s.difference, builder.add("sub", {x, most}));
  KTUNE_ASSIGN(s.exponential, builder.add("exp", {s.difference}));
  KTUNE_ASSIGN(s.total, builder.add("reduce_sum", {s.exponential}));
  return s;
}
Result<int32_t> decomposeSoftmax(ExpandBuilder& builder, const Node&, std::span<const int32_t> operands,
                                 std::span<const ValueType>) {
  KTUNE_ASSIGN(const Shifted s, shift(builder, operands[0]));
  return builder.add("div", {s.exponential, s.total});
}
Result<int32_t> decomposeLogSoftmax(ExpandBuilder& builder, const Node&, std::span<const int32_t> operands,
                                    std::span<const ValueType>) {
  KTUNE_ASSIGN(const Shifted s, shift(builder, operands[0]));
  KTUNE_ASSIGN(const int32_t logarithm, builder.add("log", {s.total}));
  return builder.add("sub", {s.difference, logarithm});
}

// With u the unit roundoff of what is computed in (the coarser of accumulation type and f32; f64 for f64), d = x - max,
// e = e^d, S = sum e >= 1:
//   e errs by (|d| + 8) u relative: the difference is rounded once, exp errs by 8 units;
//   S errs by sum e (|d| + 8) u + sumError(S), where all terms are positive: partial sums reach S;
//   softmax = e / S: the relative errors of both, 2 units for the quotient;
//   log_softmax = d - ln S: |d| u, the relative error of S, 8 units of |ln S|, one of the result.
// An e below the smallest normal number may be 0: so much, absolute, in e.
// An error of the operands moves d by at most dx + max dx, S by the mean of that with the weights e / S:
//   |dy| <= y (e^(t_i + sum (e_j / S) t_j) - 1), t = dx + max dx.
template <bool LOGARITHM>
Status reference(const RefContext& context, const Node&, std::span<const RefTensor* const> operands,
                 RefTensor& result) {
  const RefTensor& x = *operands[0];
  const int64_t columns = x.shape.back();
  const int64_t rows = productOf(x.shape) / columns;
  allocate(result, x.shape);
  const Precision precision = precisionOf(context);
  const double u = std::max(precision.accumulate, precision.function);
  inPieces(context, rows, 1 + (1 << 13) / columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row * columns;
      const double* xs = x.values.data() + first;
      double most = -kInfinity, mostError = 0;
      bool finite = true;
      for (int64_t c = 0; c < columns; ++c) {
        finite = finite && std::isfinite(xs[c]);
        most = std::max(most, xs[c]);
        mostError = std::max(mostError, boundAt(x, first + c));
      }
      if (!finite) {  // What is left of infinities depends on the order of operations.
        for (int64_t c = 0; c < columns; ++c) {
          result.values[static_cast<size_t>(first + c)] = std::numeric_limits<double>::quiet_NaN();
          result.bounds[static_cast<size_t>(first + c)] = kInfinity;
        }
        continue;
      }
      const double total = sumOf(columns, [&](int64_t c) { return std::exp(xs[c] - most); }).value;
      double rounding =
          sumOf(columns, [&](int64_t c) { return std::exp(xs[c] - most) * (std::fabs(xs[c] - most) + 8) * u; }).value;
      rounding = (rounding + sumError(precision, columns, total, total)) / total;
      double moved = 0;
      if (!x.bounds.empty())
        moved = sumOf(columns, [&](int64_t c) { return std::exp(xs[c] - most) * (boundAt(x, first + c) + mostError); })
                    .value /
                total;
      for (int64_t c = 0; c < columns; ++c) {
        const auto at = static_cast<size_t>(first + c);
        const double d = xs[c] - most;
        const double shifted = boundAt(x, first + c) + (x.bounds.empty() ? 0 : mostError) + moved;
        if (LOGARITHM) {
          const double y = d - std::log(total);
          const double error = u * (std::fabs(d) + 8 * std::fabs(std::log(total))) + rounding + shifted;
          result.values[at] = y;
          result.bounds[at] = settle(y, error, u, precision);
        } else {
          const double y = std::exp(d) / total;
          const double underflow = 2 * precision.halfSubnormalPartial * 8388608 / total;  // 2^23: the smallest normal
          const double relative = (std::fabs(d) + 8) * u + rounding + 2 * u;
          result.values[at] = y;
          result.bounds[at] = settle(y, y * std::expm1(shifted) + underflow, relative, precision);
        }
      }
    }
  });
  return Status::ok();
}

double operations(const Node&, std::span<const ValueType>, const ValueType& result,
                  const std::vector<int64_t>& symbolValues) {
  return 5 * elementsOf(result, symbolValues);  // Maximum, difference, exponential, sum, quotient or difference.
}

OperatorDef define(std::string_view name, std::string_view summary, decltype(OperatorDef::decompose) decompose,
                   decltype(OperatorDef::reference) reference) {
  OperatorDef def;
  def.name = name;
  def.kind = OperatorKind::kComposite;
  def.operandCount = 1;
  def.summary = summary;
  def.infer = infer;
  def.decompose = decompose;
  def.reference = reference;
  def.operations = operations;
  return def;
}

}  // namespace

extern const OperatorDef kOperator_softmax, kOperator_log_softmax;
const OperatorDef kOperator_softmax =
    define("softmax", "y[..., c] = e^(x[..., c] - m) / sum over k of e^(x[..., k] - m), m = max over k of x[..., k]",
           decomposeSoftmax, reference<false>);
const OperatorDef kOperator_log_softmax = define(
    "log_softmax", "y[..., c] = x[..., c] - m - ln(sum over k of e^(x[..., k] - m)), m = max over k of x[..., k]",
    decomposeLogSoftmax, reference<true>);

}  // namespace ktune::op
