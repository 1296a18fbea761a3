// Layer normalisation (Ba, Kiros and Hinton, 2016) over the last dim, with weight and bias.

#include <cmath>
#include <limits>

#include "ir/op/Operator.h"
#include "ir/op/ReferenceKernels.h"

namespace ktune::op {
namespace {

Result<int32_t> decompose(ExpandBuilder& builder, const Node& node, std::span<const int32_t> operands,
                          std::span<const ValueType> operandTypes) {
  const int32_t x = operands[0];
  KTUNE_ASSIGN(const int32_t mean, builder.add("reduce_mean", {x}));
  KTUNE_ASSIGN(const int32_t centred, builder.add("sub", {x, mean}));
  KTUNE_ASSIGN(const int32_t square, builder.add("mul", {centred, centred}));
  KTUNE_ASSIGN(const int32_t variance, builder.add("reduce_mean", {square}));
  KTUNE_ASSIGN(const int32_t eps, builder.constant(operandTypes[0].dtype, numberAttribute(node, "eps")));
  KTUNE_ASSIGN(const int32_t shifted, builder.add("add", {variance, eps}));
  KTUNE_ASSIGN(const int32_t scale, builder.add("rsqrt", {shifted}));
  KTUNE_ASSIGN(const int32_t normal, builder.add("mul", {centred, scale}));
  KTUNE_ASSIGN(const int32_t weighted, builder.add("mul", {normal, operands[1]}));
  return builder.add("add", {weighted, operands[2]});
}

// With u the unit roundoff of the accumulation type, n the columns, m the mean, c = x - m, v the variance + eps:
//   m errs by dm = sumError(x) / n + 2 u |m|;
//   c errs by dm + u |c|;
//   v errs by dv = (2 sum |c| (dm + u |c|) + n dm^2 + sumError(c^2)) / n + 5 u v, where all terms are positive;
//   v^-1/2 errs by dv / (2 v) + 4 u relative;
//   y = c * r * w + b by |r w| (dm + u |c|) + |c r w| (dv / (2 v) + 6 u) + u |y|.
// Where dv is not small against v (a row of nearly equal values) nothing is known: the bound is infinite.
// Errors of the operands: dc = dx_i + mean dx, dr / r = mean(|c| dc) / v.
Status reference(const RefContext& context, const Node& node, std::span<const RefTensor* const> operands,
                 RefTensor& result) {
  const RefTensor& x = *operands[0];
  const RefTensor& weight = *operands[1];
  const RefTensor& bias = *operands[2];
  const double eps = numberAttribute(node, "eps");
  const int64_t columns = x.shape.back();
  const int64_t rows = productOf(x.shape) / columns;
  const double n = static_cast<double>(columns);
  allocate(result, x.shape);
  const Precision precision = precisionOf(context);
  const double u = precision.accumulate;
  inPieces(context, rows, 1 + (1 << 13) / columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row * columns;
      const double* xs = x.values.data() + first;
      const Sum sum = sumOf(columns, [xs](int64_t i) { return xs[i]; });
      const double mean = sum.value / n;
      const auto centred = [&](int64_t i) { return xs[i] - mean; };
      const double squares = sumOf(columns, [&](int64_t i) { return centred(i) * centred(i); }).value;
      const double variance = squares / n + eps;
      const double scale = 1 / std::sqrt(variance);

      double meanError = 0, scaleError = 6 * u;
      if (std::isfinite(squares)) {
        const double norm = std::sqrt(sumOf(columns, [xs](int64_t i) { return xs[i] * xs[i]; }).value);
        meanError = sumError(precision, columns, sum.reach, norm) / n + 2 * u * std::fabs(mean);
      }
      double meanMoved = 0;
      if (!x.bounds.empty()) meanMoved = sumOf(columns, [&](int64_t i) { return boundAt(x, first + i); }).value / n;
      double moved = 0;  // Of the sum of squares, both ways.
      if (std::isfinite(squares)) {
        const double shift = meanError + meanMoved;
        moved = sumOf(columns, [&](int64_t i) {
                  const double c = std::fabs(centred(i)), dc = shift + u * c + boundAt(x, first + i);
                  return 2 * c * dc + dc * dc;
                }).value;
        const double varianceError = (moved + sumError(precision, columns, squares, squares)) / n + 5 * u * variance;
        const double relative = varianceError / variance;
        scaleError += relative < 0.5 ? relative / 2 * (1 + relative) : std::numeric_limits<double>::infinity();
      }
      for (int64_t c = 0; c < columns; ++c) {
        const auto at = static_cast<size_t>(first + c);
        const double w = weight.values[static_cast<size_t>(c)];
        const double product = centred(c) * scale * w;
        const double y = product + bias.values[static_cast<size_t>(c)];
        double error =
            std::fabs(scale * w) * (meanError + meanMoved + u * std::fabs(centred(c)) + boundAt(x, first + c));
        error += std::fabs(product) * scaleError;
        error += std::fabs(centred(c) * scale) * boundAt(weight, c) + boundAt(bias, c);
        result.values[at] = y;
        result.bounds[at] = settle(y, error, u, precision);
      }
    }
  });
  return Status::ok();
}

double operations(const Node&, std::span<const ValueType>, const ValueType& result,
                  const std::vector<int64_t>& symbolValues) {
  return 7 * elementsOf(result, symbolValues);  // Two sums, difference, square, two products, one addition.
}

OperatorDef define() {
  OperatorDef def;
  def.name = "layer_norm";
  def.kind = OperatorKind::kComposite;
  def.operandCount = 3;
  def.summary =
      "y[..., c] = (x[..., c] - m) * (mean over c of (x - m)^2 + eps)^(-1/2) * weight[c] + bias[c], m = mean over c of "
      "x";
  def.attributes = {
      {"eps", AttributeDef::Type::kNumber, /*required=*/false, 1e-5, "added to the variance"},
  };
  def.infer = inferNormalisation;
  def.decompose = decompose;
  def.reference = reference;
  def.operations = operations;
  return def;
}

}  // namespace

extern const OperatorDef kOperator_layer_norm;
const OperatorDef kOperator_layer_norm = define();

}  // namespace ktune::op
