// Content hashes: 128-bit XXH3 digests name keys and artefacts, 64-bit checksums guard stored values.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/Status.h"

namespace ktune {

/// A 128-bit content digest. Printed as 32 lower-case hex digits, high word first.
struct Digest {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const Digest&) const = default;
  [[nodiscard]] std::string hex() const;
  /// Errors: kInvalidArgument unless TEXT is exactly 32 hex digits.
  [[nodiscard]] static Result<Digest> parse(std::string_view text);
};

[[nodiscard]] Digest digestOf(std::span<const std::byte> bytes);
[[nodiscard]] Digest digestOf(std::string_view text);
/// Seed-free 64-bit checksum (XXH3_64bits).
[[nodiscard]] uint64_t checksumOf(std::span<const std::byte> bytes);
[[nodiscard]] uint64_t checksumOf(std::string_view text);

}  // namespace ktune
