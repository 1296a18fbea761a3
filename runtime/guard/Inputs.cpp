#include "runtime/guard/Inputs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace ktune::runtime {

namespace {

using op::DType;

// How large values may get, so that an honest kernel does not overflow where the fp64 reference does not: a sum of
// squares of a long row stays finite in f32, and a product of two in the type itself.
struct Range {
  int mixedExponent;  // Mixed magnitudes are normal * 2^-e .. 2^e.
  float huge;
  float large;  // Softmax without its maximum subtracted fails on such rows.
  float denormal;
};

Range rangeOf(DType type) {
  switch (type) {
    case DType::kF16:
      return {5, 128.0f, 64.0f, 0x1p-20f};
    case DType::kF8E4M3:
      return {2, 8.0f, 4.0f, 0x1p-9f};
    case DType::kF8E5M2:
      return {4, 64.0f, 16.0f, 0x1p-16f};
    default:
      return {10, 0x1p50f, 1e4f, 0x1p-140f};
  }
}

struct Seeds {
  uint32_t a, b;
};

uint64_t mix64(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

Seeds seedsFor(uint64_t seed) {
  const uint64_t mixed = mix64(seed);
  return {static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)};
}

// "lowbias32" of C. Wellons' hash prospector: 32-bit operations only, which every vector unit has.
[[gnu::always_inline]] inline uint32_t hash32(uint32_t h) {
  h ^= h >> 16;
  h *= 0x7feb352du;
  h ^= h >> 15;
  h *= 0x846ca68bu;
  h ^= h >> 16;
  return h;
}

// The sum of four uniform 16-bit numbers is close to normal (Irwin-Hall): it ends at 3.46 standard deviations.
[[gnu::always_inline]] inline float normalOf(uint32_t h, uint32_t g) {
  const auto sum = static_cast<int32_t>((h & 0xffffu) + (h >> 16) + (g & 0xffffu) + (g >> 16)) - 131070;
  return static_cast<float>(sum) * (1.7320508f / 65536.0f);
}

[[gnu::always_inline]] inline float powerOfTwo(int32_t exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

struct Chunk {
  Seeds seeds;
  uint32_t first;  // Hash counter of the first element.
  int64_t column;  // Its column.
  int64_t count;
  Range range;
  int kind;       // Distribution, or a row kind of the special values.
  bool oddInput;  // Cancellation: pairs of equal instead of opposite sign.
};

constexpr int kSprinkledRow = 100, kTinyRow = 101, kHugeRow = 102, kLargeRow = 103;

// Gigabytes are filled in debuggable builds, too.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O3")
#endif

[[gnu::always_inline]] inline void fillLoop(const Chunk& c, float* out) {
  const uint32_t a = c.seeds.a;
  const uint32_t b = c.seeds.b;
  switch (c.kind) {
    case static_cast<int>(Distribution::kNormal):
      for (int64_t i = 0; i < c.count; ++i) {
        const uint32_t k = c.first + static_cast<uint32_t>(i);
        out[i] = normalOf(hash32(k + a), hash32(k ^ b));
      }
      break;
    case static_cast<int>(Distribution::kUniformPositive):
      for (int64_t i = 0; i < c.count; ++i) {
        const uint32_t h = hash32(c.first + static_cast<uint32_t>(i) + a);
        out[i] = static_cast<float>(static_cast<int32_t>(h >> 9)) * 0x1p-23f + 0x1p-24f;
      }
      break;
    case static_cast<int>(Distribution::kMixedMagnitudes): {
      const auto span = static_cast<uint32_t>(2 * c.range.mixedExponent + 1);
      for (int64_t i = 0; i < c.count; ++i) {
        const uint32_t k = c.first + static_cast<uint32_t>(i);
        const uint32_t g = hash32(k ^ b);
        const auto exponent = static_cast<int32_t>(((g >> 8) & 0xffffu) * span >> 16) - c.range.mixedExponent;
        out[i] = normalOf(hash32(k + a), g) * powerOfTwo(exponent);
      }
      break;
    }
    case static_cast<int>(Distribution::kCancellation): {
      const auto column = static_cast<uint32_t>(c.column);
      const uint32_t opposite = c.oddInput ? 0u : 0x80000000u;
      for (int64_t i = 0; i < c.count; ++i) {
        // Column 2j+1 repeats column 2j up to 2^-12, with the opposite sign in even inputs: sums of rows and dot
        // products of an even with an odd input nearly vanish.
        const uint32_t k = c.first + static_cast<uint32_t>(i);
        const uint32_t second = (column + static_cast<uint32_t>(i)) & 1u;
        const uint32_t pair = k - second;
        const float base = normalOf(hash32(pair + a), hash32(pair ^ b));
        const float change = 1.0f + static_cast<float>(static_cast<int32_t>(hash32(k + b) >> 20)) * 0x1p-24f;
        out[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(base * change) ^ ((0u - second) & opposite));
      }
      break;
    }
    case kSprinkledRow: {
      const auto denormal = std::bit_cast<uint32_t>(c.range.denormal);
      for (int64_t i = 0; i < c.count; ++i) {
        const uint32_t k = c.first + static_cast<uint32_t>(i);
        const uint32_t g = hash32(k ^ b);
        const float normal = normalOf(hash32(k + a), g);
        const uint32_t choice = hash32(g + 1) & 7u;
        // In bits: arithmetic on denormals takes a hundred cycles each.
        const uint32_t bits = std::bit_cast<uint32_t>(normal);
        const uint32_t special = (bits & 0x80000000u) | (choice == 0 ? 0u : denormal);
        out[i] = std::bit_cast<float>(choice < 2 ? special : bits);
      }
      break;
    }
    case kTinyRow:
    case kHugeRow:
    case kLargeRow: {
      const float scale = c.kind == kTinyRow ? 1e-3f : c.kind == kHugeRow ? c.range.huge : c.range.large;
      for (int64_t i = 0; i < c.count; ++i) {
        const uint32_t k = c.first + static_cast<uint32_t>(i);
        out[i] = normalOf(hash32(k + a), hash32(k ^ b)) * scale;
      }
      break;
    }
    default:
      break;
  }
}

void fillPlain(const Chunk& c, float* out) {
  fillLoop(c, out);
}

#if defined(__x86_64__) && !defined(KTUNE_SANITIZED)
[[gnu::target("avx2")]] void fillAvx2(const Chunk& c, float* out) {
  fillLoop(c, out);
}
bool hasAvx2() {
  return __builtin_cpu_supports("avx2");
}
#else
void fillAvx2(const Chunk& c, float* out) {
  fillLoop(c, out);
}
bool hasAvx2() {
  return false;
}
#endif

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

// The same values either way: no operation is contracted into a fused multiply-add (x86-64-v2 and AVX2 have none), and
// every intermediate is exact or rounded once.
void fillChunk(const Chunk& c, float* out) {
  hasAvx2() ? fillAvx2(c, out) : fillPlain(c, out);
}

uint16_t bf16Of(float v) {
  const auto bits = std::bit_cast<uint32_t>(v);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);  // Finite values only.
}

int rowKind(const InputStream& stream, int64_t row) {
  // Weights have no huge rows, so a smaller cycle.
  const int64_t kinds = stream.constant ? 3 : 4;
  constexpr int kConstantKinds[] = {kSprinkledRow, kTinyRow, kLargeRow};
  constexpr int kKinds[] = {kSprinkledRow, kTinyRow, kHugeRow, kLargeRow};
  const auto index = static_cast<size_t>((row + stream.variant) % kinds);
  return stream.constant ? kConstantKinds[index] : kKinds[index];
}

void fillIntegers(const InputStream& stream, const TensorView& tensor, int64_t row, Seeds seeds) {
  const int64_t columns = tensor.columns();
  const int64_t offset = tensor.rowOffset(row);
  const double low = tensor.dtype == DType::kBool ? 0 : tensor.dtype == DType::kI8 ? -128 : -1000;
  const double values = tensor.dtype == DType::kBool ? 2 : tensor.dtype == DType::kI8 ? 256 : 2001;
  for (int64_t c = 0; c < columns; ++c) {
    const auto index = static_cast<uint64_t>((row + stream.firstRow) * columns + c);
    const uint32_t h = hash32(static_cast<uint32_t>(index) + seeds.a);
    const double value = low + std::floor(h * 0x1p-32 * values);
    storeElements(tensor.dtype, &value, 1, tensor.at(offset + c * tensor.columnStride()), 1);
  }
}

void fillRowPart(const InputStream& stream, const TensorView& tensor, int64_t row, int64_t firstColumn,
                 int64_t lastColumn, Seeds seeds) {
  constexpr int64_t kChunk = 2048;
  alignas(64) float values[kChunk];
  alignas(64) double wide[kChunk];
  const int64_t columns = tensor.columns();
  const int64_t stride = tensor.columnStride();
  const int64_t offset = tensor.rowOffset(row);
  const int64_t contentRow = row + stream.firstRow;
  Chunk chunk{seeds, 0, 0, 0, rangeOf(tensor.dtype), static_cast<int>(stream.distribution), stream.input % 2 != 0};
  if (stream.distribution == Distribution::kSpecialValues) chunk.kind = rowKind(stream, contentRow);
  for (int64_t column = firstColumn; column < lastColumn; column += kChunk) {
    const auto index =
        static_cast<uint64_t>(contentRow) * static_cast<uint64_t>(columns) + static_cast<uint64_t>(column);
    // Beyond 2^32 elements the counter begins again under another seed.
    const auto high = static_cast<uint32_t>(index >> 32);
    chunk.seeds = {seeds.a + high * 0x9e3779b9u, seeds.b ^ (high * 0x85ebca6bu)};
    chunk.first = static_cast<uint32_t>(index);
    chunk.column = column;
    chunk.count = std::min(kChunk, lastColumn - column);
    void* target = tensor.at(offset + column * stride);
    if (tensor.dtype == DType::kF32 && stride == 1 && reinterpret_cast<uintptr_t>(target) % alignof(float) == 0) {
      fillChunk(chunk, static_cast<float*>(target));
      continue;
    }
    fillChunk(chunk, values);
    if (tensor.dtype == DType::kBF16 && stride == 1) {
      char* bytes = static_cast<char*>(target);
      for (int64_t i = 0; i < chunk.count; ++i) {
        const uint16_t bits = bf16Of(values[i]);
        std::memcpy(bytes + 2 * i, &bits, 2);
      }
      continue;
    }
    std::copy_n(values, chunk.count, wide);
    storeElements(tensor.dtype, wide, chunk.count, target, stride);
  }
}

}  // namespace

std::string_view distributionName(Distribution distribution) {
  switch (distribution) {
    case Distribution::kNormal:
      return "normal";
    case Distribution::kUniformPositive:
      return "uniform-positive";
    case Distribution::kMixedMagnitudes:
      return "mixed-magnitudes";
    case Distribution::kCancellation:
      return "cancellation";
    case Distribution::kSpecialValues:
      return "special-values";
  }
  return "?";
}

void fillInput(const InputStream& stream, const TensorView& tensor, const op::ParallelFor& parallelFor) {
  const Seeds seeds = seedsFor(
      mix64(stream.seed) ^ mix64(static_cast<uint64_t>(stream.input) * 8 + static_cast<uint64_t>(stream.distribution)));
  // Pieces of a few thousand elements, so that one long row is shared out, too.
  constexpr int64_t kPiece = 1 << 14;
  const int64_t columns = tensor.columns();
  const int64_t pieces = (columns + kPiece - 1) / kPiece;
  parallelFor(tensor.rows() * pieces, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t row = p / pieces;
      const int64_t first = p % pieces * kPiece;
      if (!op::isFloat(tensor.dtype)) {
        if (first == 0) fillIntegers(stream, tensor, row, seeds);
        continue;
      }
      fillRowPart(stream, tensor, row, first, std::min(columns, first + kPiece), seeds);
    }
  });
}

void fillNormal(uint64_t seed, uint64_t first, int64_t count, float* out) {
  const Seeds seeds = seedsFor(seed);
  fillChunk({seeds, static_cast<uint32_t>(first), 0, count, {}, static_cast<int>(Distribution::kNormal), false}, out);
}

}  // namespace ktune::runtime
