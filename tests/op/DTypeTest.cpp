#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ir/op/DType.h"

namespace ktune::op {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

TEST(DType, NamesRoundTrip) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto type = static_cast<DType>(i);
    const Result<DType> parsed = parseDType(dtypeName(type));
    ASSERT_TRUE(parsed);
    EXPECT_EQ(*parsed, type);
    EXPECT_GE(dtypeBytes(type), 1);
  }
  const Result<DType> wrong = parseDType("float32");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(wrong.error().message(),
            "unknown dtype 'float32'; known: f64, f32, f16, bf16, i8, i32, i64, bool, f8e4m3, f8e5m2");
}

TEST(DType, UnitRoundoff) {
  EXPECT_EQ(unitRoundoff(DType::kF64), 0x1p-53);
  EXPECT_EQ(unitRoundoff(DType::kF32), 0x1p-24);
  EXPECT_EQ(unitRoundoff(DType::kF16), 0x1p-11);
  EXPECT_EQ(unitRoundoff(DType::kBF16), 0x1p-8);
  EXPECT_EQ(unitRoundoff(DType::kF8E4M3), 0x1p-4);
  EXPECT_EQ(unitRoundoff(DType::kF8E5M2), 0x1p-3);
  EXPECT_EQ(unitRoundoff(DType::kI32), 0);
  // u is half the gap above 1: 1 + u is a tie and goes to the even 1; a little more goes up to 1 + 2u.
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto type = static_cast<DType>(i);
    if (!isFloat(type) || type == DType::kF64) continue;
    const double u = unitRoundoff(type);
    EXPECT_EQ(roundTo(type, 1 + u), 1) << dtypeName(type);
    EXPECT_EQ(roundTo(type, 1 + 1.001 * u), 1 + 2 * u) << dtypeName(type);
    EXPECT_EQ(roundTo(type, 1 + 3 * u), 1 + 4 * u) << dtypeName(type);  // a tie to the even neighbour above
  }
}

struct Case {
  DType type;
  double value, rounded;
};

TEST(DType, KnownRoundings) {
  const Case cases[] = {
      // f16: largest 65504, the tie 65520 overflows, smallest normal 2^-14, smallest subnormal 2^-24.
      {DType::kF16, 0.1, 0.0999755859375},
      {DType::kF16, 65504, 65504},
      {DType::kF16, 65519.9, 65504},
      {DType::kF16, 65520, kInf},
      {DType::kF16, -65520, -kInf},
      {DType::kF16, 0x1p-14, 0x1p-14},
      {DType::kF16, 0x1p-24, 0x1p-24},
      {DType::kF16, 0x1p-25, 0},          // tie to even
      {DType::kF16, 0x1.8p-24, 0x1p-23},  // tie to even
      {DType::kF16, 0x1.002p-25, 0x1p-24},
      {DType::kF16, 2049, 2048},
      {DType::kF16, 2051, 2052},
      {DType::kF16, 0x1.ffffp-15, 0x1p-14},  // a subnormal that rounds up to the smallest normal
      // bf16: f32's range with 8 bits.
      {DType::kBF16, 0.1, 0.10009765625},
      {DType::kBF16, 3.14159265358979, 3.140625},
      {DType::kBF16, 257, 256},
      {DType::kBF16, 259, 260},
      {DType::kBF16, 0x1.fep127, 0x1.fep127},
      {DType::kBF16, 0x1.ffp127, kInf},
      {DType::kBF16, 0x1p-133, 0x1p-133},
      {DType::kBF16, 0x1p-134, 0},
      {DType::kBF16, 1.0 + 0x1p-8 + 0x1p-40, 1.0 + 0x1p-7},  // rounded once, not by way of f32
      // f32.
      {DType::kF32, 0.1, 0x1.99999ap-4},
      {DType::kF32, 16777217, 16777216},
      {DType::kF32, 0x1.fffffep127, 0x1.fffffep127},
      {DType::kF32, 0x1.ffffffp127, kInf},
      {DType::kF32, 0x1p-149, 0x1p-149},
      {DType::kF32, 0x1p-150, 0},
      // OCP OFP8 table 1: E4M3 largest 448 (S.1111.110), smallest subnormal 2^-9, no infinity.
      {DType::kF8E4M3, 448, 448},
      {DType::kF8E4M3, 464, 448},
      {DType::kF8E4M3, 465, kNaN},
      {DType::kF8E4M3, kInf, kNaN},
      {DType::kF8E4M3, 0x1p-6, 0x1p-6},
      {DType::kF8E4M3, 0x1p-9, 0x1p-9},
      {DType::kF8E4M3, 0x1p-10, 0},
      {DType::kF8E4M3, 17, 16},
      {DType::kF8E4M3, 19, 20},
      {DType::kF8E4M3, -0.3, -0.3125},
      // OCP OFP8 table 1: E5M2 largest 57344, smallest subnormal 2^-16, infinity.
      {DType::kF8E5M2, 57344, 57344},
      {DType::kF8E5M2, 61439, 57344},
      {DType::kF8E5M2, 61440, kInf},
      {DType::kF8E5M2, 0x1p-16, 0x1p-16},
      {DType::kF8E5M2, 0x1p-17, 0},
      {DType::kF8E5M2, 9, 8},
      {DType::kF8E5M2, 11, 12},
      // Integers.
      {DType::kI8, 2.5, 2},
      {DType::kI8, 300, 127},
      {DType::kI8, -300, -128},
      {DType::kI32, 3e9, 2147483647},
      {DType::kI32, -3e9, -2147483648.0},
      {DType::kI32, kNaN, 0},
      {DType::kI64, -1e30, -0x1p63},
      {DType::kI64, 1e30, 0x1.fffffffffffffp62},
      {DType::kBool, 0.5, 1},
      {DType::kBool, 0, 0},
  };
  for (const Case& c : cases) {
    const double got = roundTo(c.type, c.value);
    if (std::isnan(c.rounded)) {
      EXPECT_TRUE(std::isnan(got)) << dtypeName(c.type) << " " << c.value << " -> " << got;
    } else {
      EXPECT_EQ(got, c.rounded) << dtypeName(c.type) << " " << c.value;
    }
  }
  for (DType type : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2}) {
    EXPECT_TRUE(std::isnan(roundTo(type, kNaN)));
    EXPECT_TRUE(std::signbit(roundTo(type, -0.0)));
    EXPECT_EQ(roundTo(type, largestFinite(type)), largestFinite(type));
    EXPECT_EQ(roundTo(type, smallestSubnormal(type)), smallestSubnormal(type));
  }
}

TEST(DType, F32AgreesWithTheProcessor) {
  uint64_t state = 1;
  for (int i = 0; i < 100000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const double value = std::ldexp(static_cast<double>(static_cast<int64_t>(state)), -static_cast<int>(state % 230));
    EXPECT_EQ(roundTo(DType::kF32, value), static_cast<double>(static_cast<float>(value)));
  }
}

}  // namespace
}  // namespace ktune::op
