// Elements of any dtype as doubles, and tensors walked row by row. For references and comparisons, not for kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/op/Graph.h"

namespace ktune::runtime {

/// OUT[i] = element i of COUNT that lie STRIDE elements apart from BASE on (exact: every dtype fits a double, an i64
/// beyond 2^53 excepted).
void loadElements(op::DType type, const void* base, int64_t stride, int64_t count, double* out);
/// The reverse, rounding to nearest even; integers saturate.
void storeElements(op::DType type, const double* values, int64_t count, void* base, int64_t stride);

/// A tensor in memory.
struct TensorView {
  op::DType dtype = op::DType::kF32;
  void* data = nullptr;
  std::vector<int64_t> extents;
  std::vector<int64_t> strides;  ///< In elements, one per extent.

  /// Dense row-major.
  [[nodiscard]] static TensorView dense(op::DType dtype, void* data, std::vector<int64_t> extents);
  /// The last extent; 1 for rank 0.
  [[nodiscard]] int64_t columns() const;
  /// The product of the other extents.
  [[nodiscard]] int64_t rows() const;
  [[nodiscard]] int64_t columnStride() const { return strides.empty() ? 1 : strides.back(); }
  /// Elements from data to the first element of a row.
  [[nodiscard]] int64_t rowOffset(int64_t row) const;
  [[nodiscard]] void* at(int64_t elementOffset) const {
    return static_cast<char*>(data) + elementOffset * op::dtypeBytes(dtype);
  }
  /// Bytes from the first to past the last element.
  [[nodiscard]] int64_t spanBytes() const;
};

/// Extents of a shape at given symbol values.
[[nodiscard]] std::vector<int64_t> extentsOf(const op::Shape& shape, const std::vector<int64_t>& symbolValues);
/// The tensors of a description as they lie in memory at given symbol values, without addresses: inputs, then outputs.
/// An output that aliases an input has that input's strides.
[[nodiscard]] std::vector<TensorView> tensorViews(const op::Graph& graph, const std::vector<op::ValueType>& types,
                                                  const std::vector<int64_t>& symbolValues);

}  // namespace ktune::runtime
