// The guard's inputs: values that are hostile in a known way, and the same for the same seed on every machine and
// with any number of threads. docs/guard.md describes the distributions.
#pragma once

#include <cstdint>
#include <string_view>

#include "ir/op/Operator.h"
#include "runtime/launch/Elements.h"

namespace ktune::runtime {

/// What an input's values are like. Each hides a different mistake (docs/guard.md).
enum class Distribution : uint8_t {
  kNormal = 0,           ///< Mean 0, variance 1.
  kUniformPositive = 1,  ///< In (0, 1): sums grow steadily, so that a narrow accumulator goes wrong.
  kMixedMagnitudes = 2,  ///< Normal times 2^-10 .. 2^10: small terms meet large partial sums.
  kCancellation = 3,     ///< Neighbours along a row nearly cancel, in sums and in dot products.
  kSpecialValues = 4,    ///< Rows of: zeros of both signs and denormals; tiny values; huge values; values of 1e4.
};
inline constexpr int kDistributionCount = 5;
[[nodiscard]] std::string_view distributionName(Distribution distribution);

struct InputStream {
  Distribution distribution = Distribution::kNormal;
  uint64_t seed = 1;
  int32_t input = 0;      ///< Index of the input in its description; inputs have independent values.
  bool constant = false;  ///< Weights get no huge values: products of two huge factors overflow honest kernels.
  int64_t variant = 0;    ///< Special values: which kind of row comes first.
  int64_t firstRow = 0;   ///< Row 0 of the tensor has the values of this row of the endless tensor.
};

/// Fills TENSOR. An element's value depends on STREAM, the number of columns and its (row, column) only, never on the
/// number of rows, the strides or the address: the same row at another M has the same bits. Elements between strided
/// rows are left alone.
void fillInput(const InputStream& stream, const TensorView& tensor, const op::ParallelFor& parallelFor);

/// COUNT floats with kNormal's values; FIRST is the index of the first. For timing buffers.
void fillNormal(uint64_t seed, uint64_t first, int64_t count, float* out);

}  // namespace ktune::runtime
