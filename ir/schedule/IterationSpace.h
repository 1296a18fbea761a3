// The rows x columns that the tiles of a kernel cover.
#pragma once

#include "ir/schedule/Problem.h"

namespace ktune::schedule {

/// `flat`: a map group whose values all have one dense shape is treated as one row of rows * columns elements.
struct IterationSpace {
  op::Dim rows, columns;
  bool flat = false;
  [[nodiscard]] bool oneRow() const { return flat || (rows.isStatic() && rows.factor == 1); }
};
[[nodiscard]] IterationSpace iterationSpace(const Problem& problem, const Group& group);

/// The type in which a contraction's parts are kept: the accumulation type, or the result's where that is wider.
[[nodiscard]] op::DType partialsTypeOf(const Problem& problem, const Group& group);

/// The type in which VALUE lies in memory: its own for what the application sees; what only passes from kernel to
/// kernel keeps the precision that is computed in, or composites cut in two would round where nobody asked for it.
[[nodiscard]] op::DType storedTypeOf(const Problem& problem, int32_t value);

/// Elements from one row of VALUE to the next: an input's own stride where it has one, else its columns.
[[nodiscard]] op::Dim rowStrideOf(const Problem& problem, int32_t value);

/// Bytes to which the first element of VALUE is sure to be aligned, a power of two (a workspace's are 64).
[[nodiscard]] int64_t baseAlignmentOf(const Problem& problem, int32_t value);

/// Bytes to which every row of VALUE is sure to be aligned, a power of two (a workspace's are 64 or less).
[[nodiscard]] int64_t rowAlignmentOf(const Problem& problem, int32_t value);

}  // namespace ktune::schedule
