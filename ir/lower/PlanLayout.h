// How a genome's kernels become launches. No MLIR: pure data from pure data.
#pragma once

#include <string>

#include "cache/format/Plan.h"
#include "ir/schedule/Genome.h"
#include "ir/schedule/IterationSpace.h"
#include "ir/schedule/Problem.h"

namespace ktune::ir {

using schedule::IterationSpace;
using schedule::iterationSpace;

/// What a kernel of a genome on cuda is besides its tiles.
enum class KernelRole : uint8_t {
  kWhole = 0,     ///< The kernel of a group.
  kPartial = 1,   ///< Of a contraction that is split along its reduced dim: one part's products, into a workspace.
  kCombined = 2,  ///< Adds the parts up and goes on from there.
};
[[nodiscard]] const char* roleName(KernelRole role);
/// The launches that one kernel's schedule leads to, in order.
[[nodiscard]] std::vector<KernelRole> rolesOf(const schedule::KernelSchedule& schedule);

/// Symbol of kernel INDEX: ktune_<operator>_<dtype>_<bucket>_<key8>[_<index>][_partial|_combined], so that a profile
/// explains itself.
/// KEY8 is taken from the description's digest: the symbol must not depend on the machine.
[[nodiscard]] std::string kernelSymbol(const schedule::Problem& problem, size_t index, size_t count,
                                       KernelRole role = KernelRole::kWhole);

/// The grid of a kernel: tiles along rows and along columns of its output space.
struct KernelGrid {
  cache::Extent rows, columns;
};
[[nodiscard]] KernelGrid gridOf(const schedule::Problem& problem, const schedule::Group& group,
                                const schedule::KernelSchedule& schedule);

/// How threads share a block's tile: the template arguments of the device library's layouts (see
/// ir/emit/cuda/include/ktune/device). For kCombined and for map and row kernels a BlockLayout, else what
/// KernelSchedule::instruction says.
struct BlockShape {
  int32_t rows = 1, columns = 1;  ///< Of the tile.
  int32_t threads = 32, columnThreads = 32, lanes = 1;
  int32_t sharedBytes = 0;  ///< Dynamic.
};
/// REQUIRES: a legal schedule of family kCuda.
[[nodiscard]] BlockShape blockShapeOf(const schedule::Problem& problem, const schedule::Group& group,
                                      const schedule::KernelSchedule& schedule, KernelRole role);

/// The plan without artefacts: one launch per group and role (parameters: the group's inputs, its outputs, the
/// workspace of the parts where it is split, then every symbol), workspace slots for values that pass between kernels,
/// preconditions (promised alignments, the bucket's range).
/// Errors: as Problem::groups.
[[nodiscard]] Result<cache::Plan> layoutPlan(const schedule::Problem& problem, const schedule::PlanGenome& genome);

}  // namespace ktune::ir
