// The plan genome: fusion bits, and one schedule per resulting kernel.
#pragma once

#include <string>
#include <vector>

#include "base/Hash.h"
#include "ir/schedule/Schedule.h"

namespace ktune::schedule {

struct PlanGenome {
  std::vector<uint8_t> fuse;            ///< One bit per Problem::edges.
  std::vector<KernelSchedule> kernels;  ///< One per group of Problem::groups(fuse), in its order.
  bool operator==(const PlanGenome&) const = default;

  /// "#ktune.genome<fuse = [1, 1], kernels = [#ktune.schedule<...>]>"
  [[nodiscard]] std::string text() const;
  /// Errors: kInvalidArgument with the offset.
  [[nodiscard]] static Result<PlanGenome> parse(std::string_view text);
  /// Over the text: only active parameters count.
  [[nodiscard]] Digest digest() const { return digestOf(text()); }
  void encode(ByteWriter& writer) const;
  [[nodiscard]] static PlanGenome decode(ByteReader& reader);
};

}  // namespace ktune::schedule
