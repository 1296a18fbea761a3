// The independent fp64 reference: evaluates a description as written, node by node, by each operator's own formula.
// It shares no code with ir/lower or ir/emit.
#pragma once

#include <vector>

#include "ir/op/Operator.h"

namespace ktune::op {

/// Dot products of the reference on something faster than the host: a device that a large contraction takes seconds
/// on at most, where the host would take minutes.
class DotEngine {
 public:
  virtual ~DotEngine() = default;
  /// For x[rows, k] and w[columns, k], dense row-major in the host's memory:
  ///   sums[i * columns + j] = x_i . w_j, summed in eight lanes: lane l adds the products of the elements l, l + 8,
  ///     l + 16, ... in order, then the lanes are added in order;
  ///   reaches[i * columns + j] = the sum over lanes of the largest magnitude of the lane's running sum, looked at
  ///   after
  ///     every 128 terms of the row and at its end.
  /// A product and its addition may be one rounding or two. Errors: the device's; then what SUMS and REACHES hold is
  /// undefined, and the caller computes them itself.
  virtual Status dots(const double* x, int64_t rows, const double* w, int64_t columns, int64_t k, double* sums,
                      double* reaches) = 0;
};
/// Contractions of more products (rows * columns * k) than this are worth the way to an engine and back.
inline constexpr double kLeastEngineProducts = 134217728;  // 2^27

/// The outputs' reference values and error bounds, in Graph::outputs order.
/// INPUTS: one per graph input, dense row-major, already rounded to the input's dtype, bounds empty (exact).
/// The bound of an output element is what an honest implementation may err: running error analysis at the unit
/// roundoff of the contract's accumulation type with the probabilistic sqrt(n) growth for sums of n terms
/// (Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019), plus the rounding of each
/// result to its dtype; multiplied by the tolerance class (strict 1, default 2, relaxed 8).
/// "Probabilistic" takes roundings as random: constant inputs, or terms that decay so fast that a running sum loses
/// them, make honest sums err in one direction, up to sqrt(n) times more. Test with inputs whose low bits vary.
/// Mixed signs tell most: a tf32 product is 4 or more bounds away up to K = 8192, with terms of one sign only up to
/// about K = 4096.
/// Values are not rounded to the dtype; values.size() == bounds.size() for every output. A bound is infinite where an
/// honest implementation may overflow (in a sum or in the result) or meet a pole: such an element cannot be judged.
/// A NaN or infinite value has bound 0: the result must be the same NaN or infinity.
/// ENGINE: for large contractions, may be null; one that fails is done without.
/// Errors: as verify(); kInvalidArgument for a wrong number or shape of inputs or symbol values outside their range;
/// kResourceExhausted.
[[nodiscard]] Result<std::vector<RefTensor>> evaluateReference(const Graph& graph,
                                                               const std::vector<int64_t>& symbolValues,
                                                               const std::vector<RefTensor>& inputs,
                                                               const ParallelFor& parallelFor,
                                                               DotEngine* engine = nullptr);

/// A ParallelFor that runs everything on the calling thread.
[[nodiscard]] const ParallelFor& serialFor();

}  // namespace ktune::op
