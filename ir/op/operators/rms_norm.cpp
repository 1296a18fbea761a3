// Root mean square layer normalisation (Zhang and Sennrich, 2019).

#include <cmath>

#include "ir/op/Operator.h"
#include "ir/op/ReferenceKernels.h"

namespace ktune::op {
namespace {

Result<int32_t> decompose(ExpandBuilder& builder, const Node& node, std::span<const int32_t> operands,
                          std::span<const ValueType> operandTypes) {
  const DType dtype = operandTypes[0].dtype;
  const int32_t x = operands[0];
  KTUNE_ASSIGN(int32_t square, builder.add("mul", {x, x}));
  KTUNE_ASSIGN(int32_t sum, builder.add("reduce_sum", {square}));
  const double columns = static_cast<double>(operandTypes[0].shape.back().factor);
  KTUNE_ASSIGN(int32_t inverse, builder.constant(dtype, 1 / columns));
  KTUNE_ASSIGN(int32_t mean, builder.add("mul", {sum, inverse}));
  KTUNE_ASSIGN(int32_t eps, builder.constant(dtype, numberAttribute(node, "eps")));
  KTUNE_ASSIGN(int32_t shifted, builder.add("add", {mean, eps}));
  KTUNE_ASSIGN(int32_t scale, builder.add("rsqrt", {shifted}));
  KTUNE_ASSIGN(int32_t normal, builder.add("mul", {x, scale}));
  return builder.add("mul", {normal, operands[1]});
}

// The bound, relative to |y|, with u the unit roundoff of the accumulation type and n the columns:
//   S = sum x^2: every term is rounded once (u), the sum errs by sumError(), where all terms are positive, so that
//     partial sums reach S and the 2-norm of the terms is at most S;
//   m = S * (1/n) + eps: two units for the product and the rounded 1/n, one for the sum, one for the rounded eps;
//     all are positive, so that relative errors do not grow: m errs by at most E + 5u, E = u + sumError(S) / (n m);
//   r = m^-1/2: half the relative error of m, and 4u of its own (rsqrtf errs by 2 ulp);
//   y = x * r * w: 2u.
// Together 0.5 * (E + 5u) + 6u, where sumError() counts the u of E as the products' rounding, and the rounding of y to
// its dtype. Errors of the operands to first order:
//   dy = |r w| dx_c + |x r| dw_c + |y| * (sum |x| dx) / (n m).
Status reference(const RefContext& context, const Node& node, std::span<const RefTensor* const> operands,
                 RefTensor& result) {
  const RefTensor& x = *operands[0];
  const RefTensor& weight = *operands[1];
  const double eps = numberAttribute(node, "eps");
  const int64_t columns = x.shape.back();
  const int64_t rows = productOf(x.shape) / columns;
  const double n = static_cast<double>(columns);
  allocate(result, x.shape);
  const Precision precision = precisionOf(context);
  inPieces(context, rows, 1 + (1 << 14) / columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row * columns;
      const double* xs = x.values.data() + first;
      const double squares = sumOf(columns, [xs](int64_t i) { return xs[i] * xs[i]; }).value;
      const double mean = squares / n + eps;
      const double scale = 1 / std::sqrt(mean);

      double relative = 6 * precision.accumulate;
      // Where a value is infinite the row is NaN and 0, whatever the roundings.
      if (std::isfinite(squares)) {
        const double sum = sumError(precision, columns, squares, squares) / (n * mean);
        relative += 0.5 * (sum + 5 * precision.accumulate);
      }
      double fromRow = 0;
      if (!x.bounds.empty()) {
        const double* dx = x.bounds.data() + first;
        fromRow = sumOf(columns, [xs, dx](int64_t i) { return std::fabs(xs[i]) * dx[i]; }).value / (n * mean);
      }
      for (int64_t c = 0; c < columns; ++c) {
        const double w = weight.values[static_cast<size_t>(c)];
        const double y = xs[c] * scale * w;
        double propagated = 0;
        if (!x.bounds.empty()) propagated += std::fabs(scale * w) * boundAt(x, first + c) + std::fabs(y) * fromRow;
        if (!weight.bounds.empty()) propagated += std::fabs(xs[c] * scale) * boundAt(weight, c);
        const auto at = static_cast<size_t>(first + c);
        result.values[at] = y;
        result.bounds[at] = settle(y, propagated, relative, precision);
      }
    }
  });
  return Status::ok();
}

double operations(const Node&, std::span<const ValueType> operands, const ValueType& result,
                  const std::vector<int64_t>& symbolValues) {
  // Square, sum, two products for each element; scale, add, root for each row.
  const double elements = elementsOf(result, symbolValues);
  return 4 * elements + 3 * elements / static_cast<double>(operands[0].shape.back().factor);
}

OperatorDef define() {
  OperatorDef def;
  def.name = "rms_norm";
  def.kind = OperatorKind::kComposite;
  def.operandCount = 2;
  def.summary = "y[..., c] = x[..., c] * (mean over c of x^2 + eps)^(-1/2) * weight[c]";
  def.attributes = {
      {"eps", AttributeDef::Type::kNumber, /*required=*/false, 1e-6, "added to the mean square"},
  };
  def.infer = inferNormalisation;
  def.decompose = decompose;
  def.reference = reference;
  def.operations = operations;
  return def;
}

}  // namespace

extern const OperatorDef kOperator_rms_norm;
const OperatorDef kOperator_rms_norm = define();

}  // namespace ktune::op
