// What the references of operators share: error bounds and the fp64 dot product. Only ir/op/operators and
// Reference.cpp include this.
#pragma once

#include <cstdint>
#include <functional>

#include "ir/op/Operator.h"

namespace ktune::op {

/// The roundings that an honest implementation makes, as relative errors.
struct Precision {
  double accumulate = 0;  ///< Unit roundoff of the contract's accumulation type.
  double compute = 0;     ///< Of elementwise arithmetic: the finer of accumulation and result type.
  double function = 0;    ///< Of what functions are computed in: f32, for f64 results f64; nothing accumulates there.
  double store = 0;       ///< Of the result's rounding to its dtype; 0 where arithmetic is no finer than that.
  double halfSubnormal = 0;         ///< Absolute error of a result that underflows.
  double smallestNormal = 0;        ///< Of what is computed in: what is smaller may be taken for zero.
  double largest = 0;               ///< Largest finite value of the result's dtype.
  double largestPartial = 0;        ///< Of the accumulation type: partial sums beyond it overflow.
  double halfSubnormalPartial = 0;  ///< Of the accumulation type: absolute error of a term that underflows.
};
[[nodiscard]] Precision precisionOf(const RefContext& context);

/// The bound of one floating result: PROPAGATED + RELATIVE * |value| + the rounding to the dtype. Infinite where the
/// result may overflow, 0 for a NaN or infinite value (unless PROPAGATED says that it may be something else).
[[nodiscard]] double settle(double value, double propagated, double relative, const Precision& precision);

/// The error of a sum of TERMS products or values in any order, before the rounding of the result.
/// REACH: how large partial sums become; NORM: the 2-norm of the terms, or a bound of it by Cauchy-Schwarz.
/// Infinite where partial sums may overflow.
[[nodiscard]] double sumError(const Precision& precision, int64_t terms, double reach, double norm);

/// A sum and how large its partial sums become: the sum over eight interleaved lanes of the largest magnitude that
/// the lane's running sum has. It bounds the partial sums of every order built from runs of neighbours, halves, or
/// lanes, and is far less than the sum of magnitudes when signs are mixed at random.
struct Sum {
  double value = 0;
  double reach = 0;
};
/// The sum of TERM(i) for i in [0, count).
template <typename Term>
[[nodiscard]] Sum sumOf(int64_t count, const Term& term) {
  constexpr int kLanes = 8;
  double lanes[kLanes] = {}, reach[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) {
    double& lane = lanes[i % kLanes];
    double& most = reach[i % kLanes];
    lane += term(i);
    const double magnitude = lane < 0 ? -lane : lane;
    most = most < magnitude ? magnitude : most;
  }
  Sum sum;
  for (int l = 0; l < kLanes; ++l) {
    sum.value += lanes[l];
    sum.reach += reach[l];
  }
  return sum;
}

/// x[..., K] * w[N, K]^T in fp64, with bounds. Shapes are the caller's business (infer has checked them).
[[nodiscard]] Status contractionReference(const RefContext& context, const RefTensor& x, const RefTensor& w,
                                          RefTensor& result);

/// Calls BODY(begin, end) for pieces of [0, count) of at least GRAIN items (but the last), with the context's
/// ParallelFor.
void inPieces(const RefContext& context, int64_t count, int64_t grain,
              const std::function<void(int64_t begin, int64_t end)>& body);

/// Extents multiplied.
[[nodiscard]] int64_t productOf(const std::vector<int64_t>& shape);
/// SHAPE with the last extent replaced.
[[nodiscard]] std::vector<int64_t> withLast(std::vector<int64_t> shape, int64_t extent);
/// Gives RESULT a shape, values and bounds (zeros).
void allocate(RefTensor& result, std::vector<int64_t> shape);
/// The bound of element I; 0 when there are none.
[[nodiscard]] inline double boundAt(const RefTensor& t, int64_t i) {
  return t.bounds.empty() ? 0.0 : t.bounds[static_cast<size_t>(i)];
}

/// "operand 1 'weight'", for the messages of infer.
[[nodiscard]] std::string operandText(const Graph& graph, const Node& node, size_t operand);
/// kUnsupported unless TYPE is f64, f32, f16 or bf16.
[[nodiscard]] Status requireFloat(std::string_view op, DType type);
/// kInvalidArgument unless operand I has operand 0's dtype.
[[nodiscard]] Status requireSameDType(const Graph& graph, const Node& node, std::span<const ValueType> operands);
/// kInvalidArgument unless operand 0 has a last dim that is static.
[[nodiscard]] Status requireStaticLastDim(const Graph& graph, const Node& node, std::span<const ValueType> operands);
/// infer of a normalisation of rows: operand 0 is x[..., C], the others are parameters [C], attribute eps >= 0.
[[nodiscard]] Result<ValueType> inferNormalisation(const Graph& graph, const Node& node,
                                                   std::span<const ValueType> operands);
/// Extents of a verified type multiplied, as a number of operations.
[[nodiscard]] double elementsOf(const ValueType& type, const std::vector<int64_t>& symbolValues);

/// infer and operations of x[..., K] * w[N, K]^T, for every operator of that form.
[[nodiscard]] Result<ValueType> inferContraction(const Graph& graph, const Node& node,
                                                 std::span<const ValueType> operands);
[[nodiscard]] double contractionOperations(const Node& node, std::span<const ValueType> operands,
                                           const ValueType& result, const std::vector<int64_t>& symbolValues);

}  // namespace ktune::op
