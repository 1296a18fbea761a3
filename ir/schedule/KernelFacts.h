// Private to ir/schedule: what the rules need to know of one kernel, and the rules as one function.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "ir/schedule/Problem.h"
#include "ir/schedule/Target.h"

namespace ktune::schedule {

/// Sizes of one kernel of a problem.
struct KernelFacts {
  Generator generator = Generator::kMap;
  int64_t rows = 1;         ///< At the bucket's high end.
  int64_t typicalRows = 1;  ///< At its geometric middle.
  int64_t columns = 1;      ///< At the high end.
  int64_t depth = 1;        ///< Extent of the reduced dim of a contraction.
  int elementBytes = 4;     ///< Of the widest type that it computes with.
  int inputs = 0;           ///< Values read from memory.
  int reductions = 0;
  int64_t outputAlignment = 64;  ///< Bytes to which every row that it writes is aligned.
  bool batchInvariant = false;

  // What only cuda's rules ask.
  int memoryBytes = 1;           ///< Of the widest element that it reads or writes.
  int64_t laneColumns = 1;       ///< Every row that is read or written has a multiple of this many elements.
  int operandBytes = 4;          ///< Of one element of a contraction's operands.
  int64_t operandAlignment = 1;  ///< Bytes to which every row of a contraction's operands is aligned.
  bool tensorCores = false;      ///< Operands of f16 or bf16, accumulated in f32.
  bool flat = false;             ///< See IterationSpace.
};
[[nodiscard]] KernelFacts factsOf(const Problem& problem, const Group& group, const Target& target);

/// The order in which parameters are settled: what fills the registers first, then the table's order.
[[nodiscard]] const std::array<Parameter, kParameterCount>& settleOrder(DeviceFamily family);

/// objection() for cuda: see CudaRules.cpp.
[[nodiscard]] std::string cudaObjection(Parameter p, const KernelSchedule& schedule, const KernelFacts& facts,
                                        const Target& target);
/// The schedule of defaultGenome() for one kernel on cuda.
[[nodiscard]] KernelSchedule defaultCudaSchedule(const KernelFacts& facts, const Target& target);

/// Why the value that SCHEDULE has for P is illegal, given its parameters that are settled before P; empty when it is
/// legal. At least one listed value of every parameter is legal whatever the earlier ones are, so that settling them
/// in order always ends in a legal schedule: check() reports with this, repair() and the search choose with it.
[[nodiscard]] std::string objection(Parameter p, const KernelSchedule& schedule, const KernelFacts& facts,
                                    const Target& target);

/// The listed values of P that objection() accepts after the earlier parameters of SCHEDULE, ascending; never empty.
[[nodiscard]] std::vector<int32_t> legalValues(Parameter p, KernelSchedule schedule, const KernelFacts& facts,
                                               const Target& target);

/// Settles every parameter in order to the nearest legal value; inactive ones to their default.
[[nodiscard]] KernelSchedule settle(KernelSchedule schedule, const KernelFacts& facts, const Target& target);

/// The schedule of defaultGenome() for one kernel.
[[nodiscard]] KernelSchedule defaultSchedule(const KernelFacts& facts, const Target& target);

}  // namespace ktune::schedule
