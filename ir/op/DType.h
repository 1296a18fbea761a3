// Element types.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/Status.h"

namespace ktune::op {

/// Element types of tensors. The numbers are part of the canonical form (docs/key.md): append only.
enum class DType : uint8_t {
  kF64 = 0,
  kF32 = 1,
  kF16 = 2,
  kBF16 = 3,
  kI8 = 4,
  kI32 = 5,
  kI64 = 6,
  kBool = 7,
  kF8E4M3 = 8,
  kF8E5M2 = 9,
};
inline constexpr int kDTypeCount = 10;

/// "f32", "bf16", "i8", "bool", "f8e4m3", ...
[[nodiscard]] std::string_view dtypeName(DType type);
/// Errors: kInvalidArgument listing the accepted names.
[[nodiscard]] Result<DType> parseDType(std::string_view name);
/// Bytes of one element.
[[nodiscard]] int dtypeBytes(DType type);
[[nodiscard]] bool isFloat(DType type);
/// Unit roundoff of a floating type: half the distance from 1 to the next larger value (f32: 2^-24); 0 for others.
[[nodiscard]] double unitRoundoff(DType type);
/// The largest finite value (i64: the largest double below 2^63).
[[nodiscard]] double largestFinite(DType type);
/// The smallest positive subnormal value of a floating type; 0 for others.
[[nodiscard]] double smallestSubnormal(DType type);
/// The value rounded to the type (round to nearest even) and back. Too large: infinity, NaN for f8e4m3 (which has no
/// infinity), the nearest end of the range for integers. NaN becomes 0 for integers.
[[nodiscard]] double roundTo(DType type, double value);

}  // namespace ktune::op
