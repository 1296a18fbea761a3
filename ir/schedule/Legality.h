// What is allowed: one pure function says whether a genome is legal and why not; repair() makes any genome legal by
// clamping, using the same rules, so that the two cannot drift.
#pragma once

#include "ir/schedule/Genome.h"
#include "ir/schedule/Problem.h"
#include "ir/schedule/Target.h"

namespace ktune::schedule {

/// ok, or kUnsupported naming what of PROBLEM no generator of TARGET can compile whatever the genome: an element type
/// (the cpu device has f32 and f64), a device kind.
[[nodiscard]] Status supported(const Problem& problem, const Target& target);

/// ok, or the error of supported(), or kInvalidArgument with the first broken rule: "kernel 0: vector = 16 needs
/// 64-byte registers; the target has 32-byte ones". Rules: values listed in the table; vector * element bytes <=
/// vectorBytes; accumulators and operands fit the vector registers; tileRows a multiple of registerRows, tileColumns of
/// registerColumns; a tile-local buffer (blockK > 0) within the L2; blockK a multiple of vector * unroll; streamStores
/// only with a full register width; number and generators of kernels as Problem::groups says.
[[nodiscard]] Status check(const PlanGenome& genome, const Problem& problem, const Target& target);

/// The nearest legal genome: consistent fusion bits (a bit between nodes of one group is 1; illegal groups are split
/// at their edges), one kernel per group, every parameter clamped. Idempotent; check(repair(g)) is always ok.
[[nodiscard]] PlanGenome repair(PlanGenome genome, const Problem& problem, const Target& target);

}  // namespace ktune::schedule
