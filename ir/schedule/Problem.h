// One tuning problem: a description, one of its buckets, its primitive form, and which edges may be fused.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/op/Buckets.h"
#include "ir/op/Graph.h"
#include "ir/schedule/Schedule.h"

namespace ktune::schedule {

/// A producer-consumer pair of primitive nodes (constants excepted: they are copied into every user).
struct Edge {
  int32_t producer = 0;  ///< Node index in Problem::primitives.
  int32_t consumer = 0;
};

/// The nodes that one kernel computes.
struct Group {
  Generator generator = Generator::kMap;
  std::vector<int32_t> nodes;    ///< Node indices of Problem::primitives, ascending; constants included.
  std::vector<int32_t> inputs;   ///< Value ids read from memory, ascending.
  std::vector<int32_t> outputs;  ///< Value ids written to memory, ascending.
};

struct Problem {
  op::Graph source;                  ///< As the application wrote it (verified).
  op::Graph primitives;              ///< op::expand(source).
  std::vector<op::ValueType> types;  ///< Of every value of primitives.
  op::Bucket bucket;
  std::vector<Edge> edges;  ///< The fusable edges: one genome bit each.

  /// Errors: as op::verify; kInvalidArgument when BUCKET is none of op::bucketsOf(source); kUnsupported when no
  /// partition gives every kernel a generator, an input's strides are no rows x columns view, or the rows of a value
  /// are a product of two symbols.
  [[nodiscard]] static Result<Problem> create(const op::Graph& source, const op::Bucket& bucket);

  /// Partitions the nodes by fusion bits (connected components over edges whose bit is 1) and picks each group's
  /// generator; groups come in an order in which producers precede consumers.
  /// Errors: kInvalidArgument with the reason a group has no generator ("two contractions in one kernel", "reduces
  /// over different row lengths", "group is not convex: node 5 is fed through another kernel").
  [[nodiscard]] Result<std::vector<Group>> groups(const std::vector<uint8_t>& fuse) const;

  /// The nearest legal fusion bits: FUSE itself (with bits between nodes of one group set) where groups() accepts it;
  /// else as many of its edges as can be fused one after the other. Idempotent; groups() of the result is always ok.
  [[nodiscard]] std::vector<uint8_t> legalFusion(std::vector<uint8_t> fuse) const;

  /// The rows x columns view of a value: the last dim, and the product of the others (rows is symbolic when any of
  /// them is). Rank 0 is 1 x 1.
  struct Matrix {
    op::Dim rows, columns;
  };
  [[nodiscard]] Matrix matrixOf(int32_t value) const;
};

}  // namespace ktune::schedule
