// How a genome's kernels become launches. No MLIR: pure data from pure data.
#pragma once

#include <string>

#include "cache/format/Plan.h"
#include "ir/schedule/Genome.h"
#include "ir/schedule/Problem.h"

namespace ktune::ir {

/// Symbol of kernel INDEX: ktune_<operator>_<dtype>_<bucket>_<key8>[_<index>], so that a profile explains itself.
/// KEY8 is taken from the description's digest: the symbol must not depend on the machine.
[[nodiscard]] std::string kernelSymbol(const schedule::Problem& problem, size_t index, size_t count);

/// The grid of a kernel: tiles along rows and along columns of its output space.
struct KernelGrid {
  cache::Extent rows, columns;
};
[[nodiscard]] KernelGrid gridOf(const schedule::Problem& problem, const schedule::Group& group,
                                const schedule::KernelSchedule& schedule);

/// The rows x columns that a group's tiles cover. `flat`: a map group whose values all have one dense shape is
/// treated as one row of rows * columns elements.
struct IterationSpace {
  op::Dim rows, columns;
  bool flat = false;
};
[[nodiscard]] IterationSpace iterationSpace(const schedule::Problem& problem, const schedule::Group& group);

/// The plan without artefacts: one launch per group (parameters: the group's inputs, its outputs, then every symbol),
/// workspace slots for values that pass between kernels, preconditions (promised alignments, the bucket's range).
/// Errors: as Problem::groups.
[[nodiscard]] Result<cache::Plan> layoutPlan(const schedule::Problem& problem, const schedule::PlanGenome& genome);

}  // namespace ktune::ir
