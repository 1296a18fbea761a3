#include "ir/op/DType.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

namespace ktune::op {
namespace {

/// What rounding needs to know about a type. Floating types: PRECISION significant bits (the hidden one counts),
/// MIN_EXPONENT of the smallest normal value, largest finite value, and whether larger values become infinite
/// (OCP f8e4m3 has no infinity: they become NaN).
struct Traits {
  std::string_view name;
  int bytes;
  int precision;
  int minExponent;
  double largest;
  bool hasInfinity;
};

// Indexed by DType. f8: OCP 8-bit Floating Point Specification (OFP8), revision 1.0.
constexpr std::array<Traits, kDTypeCount> kTraits = {{
    {"f64", 8, 53, -1022, std::numeric_limits<double>::max(), true},
    {"f32", 4, 24, -126, 0x1.fffffep127, true},
    {"f16", 2, 11, -14, 65504.0, true},
    {"bf16", 2, 8, -126, 0x1.fep127, true},
    {"i8", 1, 0, 0, 127, false},
    {"i32", 4, 0, 0, 2147483647.0, false},
    {"i64", 8, 0, 0, 0x1.fffffffffffffp62, false},  // the largest double below 2^63
    {"bool", 1, 0, 0, 1, false},
    {"f8e4m3", 1, 4, -6, 448.0, false},
    {"f8e5m2", 1, 3, -14, 57344.0, true},
}};

const Traits& traitsOf(DType type) {
  return kTraits[static_cast<size_t>(type)];
}

double roundToFloat(const Traits& t, double value) {
  if (!std::isfinite(value)) {
    return std::isinf(value) && !t.hasInfinity ? std::numeric_limits<double>::quiet_NaN() : value;
  }
  const double magnitude = std::fabs(value);
  double rounded = 0;
  if (magnitude >= std::ldexp(1.0, t.minExponent)) {
    // Normal in the target: round to nearest even on the bits of the double; a carry moves into the exponent.
    const int dropped = 53 - t.precision;
    uint64_t bits = std::bit_cast<uint64_t>(magnitude);
    bits += (uint64_t{1} << (dropped - 1)) - 1 + ((bits >> dropped) & 1);
    bits &= ~((uint64_t{1} << dropped) - 1);
    rounded = std::bit_cast<double>(bits);
  } else {
    // Subnormal: a multiple of the smallest one. Scaling by a power of two is exact here.
    const int quantum = t.minExponent - t.precision + 1;
    rounded = std::ldexp(std::nearbyint(std::ldexp(magnitude, -quantum)), quantum);
  }
  if (rounded > t.largest) {
    rounded = t.hasInfinity ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  return std::copysign(rounded, value);
}

}  // namespace

std::string_view dtypeName(DType type) {
  const auto index = static_cast<size_t>(type);
  return index < kTraits.size() ? kTraits[index].name : "invalid";
}

Result<DType> parseDType(std::string_view name) {
  std::string known;
  for (int i = 0; i < kDTypeCount; ++i) {
    const Traits& t = kTraits[static_cast<size_t>(i)];
    if (t.name == name) return static_cast<DType>(i);
    known += (i == 0 ? "" : ", ") + std::string(t.name);
  }
  return invalidArgument("unknown dtype '" + std::string(name) + "'; known: " + known);
}

int dtypeBytes(DType type) {
  return traitsOf(type).bytes;
}

bool isFloat(DType type) {
  return traitsOf(type).precision > 0;
}

double unitRoundoff(DType type) {
  return isFloat(type) ? std::ldexp(1.0, -traitsOf(type).precision) : 0.0;
}

double largestFinite(DType type) {
  return traitsOf(type).largest;
}

double smallestSubnormal(DType type) {
  const Traits& t = traitsOf(type);
  return t.precision > 0 ? std::ldexp(1.0, t.minExponent - t.precision + 1) : 0.0;
}

double roundTo(DType type, double value) {
  const Traits& t = traitsOf(type);
  if (type == DType::kF64) return value;
  if (t.precision > 0) return roundToFloat(t, value);
  if (type == DType::kBool) return value != 0 ? 1 : 0;
  if (std::isnan(value)) return 0;
  return std::clamp(std::nearbyint(value), type == DType::kI64 ? -0x1p63 : -t.largest - 1, t.largest);
}

}  // namespace ktune::op
