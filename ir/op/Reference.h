// The independent fp64 reference: evaluates a description as written, node by node, by each operator's own formula.
// It shares no code with ir/lower or ir/emit.
#pragma once

#include <vector>

#include "ir/op/Operator.h"

namespace ktune::op {

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
/// Errors: as verify(); kInvalidArgument for a wrong number or shape of inputs or symbol values outside their range;
/// kResourceExhausted.
[[nodiscard]] Result<std::vector<RefTensor>> evaluateReference(const Graph& graph,
                                                               const std::vector<int64_t>& symbolValues,
                                                               const std::vector<RefTensor>& inputs,
                                                               const ParallelFor& parallelFor);

/// A ParallelFor that runs everything on the calling thread.
[[nodiscard]] const ParallelFor& serialFor();

}  // namespace ktune::op
