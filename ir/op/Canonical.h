// The canonical form of a description and the key made from it (docs/key.md gives the bytes).
#pragma once

#include <string>
#include <string_view>

#include "base/Hash.h"
#include "ir/op/Graph.h"

namespace ktune::op {

/// The one byte form of a description: every field, in a fixed order, little-endian, with a format version. Two
/// descriptions have equal bytes exactly when they are equal.
[[nodiscard]] std::string canonicalBytes(const Graph& graph);
/// Errors: kCorrupt when BYTES are no canonical form; the graph is verified too.
[[nodiscard]] Result<Graph> fromCanonicalBytes(std::string_view bytes);

/// Names a tuned operator: the digest of the canonical description (with its grid of buckets) and of the hardware it
/// was tuned for. HARDWARE is the device's identity text (Device::identity(), e.g. "cpu;GenuineIntel;...").
struct Key {
  Digest digest;
  auto operator<=>(const Key&) const = default;
  [[nodiscard]] std::string hex() const { return digest.hex(); }
};
[[nodiscard]] Key keyOf(const Graph& graph, std::string_view hardware);

}  // namespace ktune::op
