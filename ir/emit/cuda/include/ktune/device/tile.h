// Tiles: which thread of a block holds which elements of a rows x columns tile, and reading, writing and summing them.
//
// A layout L says it by row(i) and column(j): element (i, j) of a thread's part, an array [L::kRows][L::kColumns], is
// element (row(i), column(j)) of the tile. kLanes neighbouring j are neighbouring columns. A tile of one row is an
// array [1][kColumns] and a tile of one column an array [kRows][1]; every thread then holds what its other elements
// need.
#pragma once

#include "ktune/device/types.h"

namespace ktune::device {

/// ROWS x COLUMNS elements on THREADS threads, COLUMN_THREADS of them side by side along a row.
template <int ROWS, int COLUMNS, int THREADS, int COLUMN_THREADS, int LANES>
struct BlockLayout {
  static constexpr int kRowThreads = THREADS / COLUMN_THREADS;
  static constexpr int kColumnThreads = COLUMN_THREADS;
  static constexpr int kRows = ROWS / kRowThreads;
  static constexpr int kLanes = LANES;
  static constexpr int kColumns = COLUMNS / COLUMN_THREADS;
  static_assert(kRows * kRowThreads == ROWS && kColumns * COLUMN_THREADS == COLUMNS && kColumns % LANES == 0);

  __device__ static int row(int i) { return i * kRowThreads + int(threadIdx.x) / COLUMN_THREADS; }
  __device__ static int column(int j) {
    return (j / LANES * COLUMN_THREADS + int(threadIdx.x) % COLUMN_THREADS) * LANES + j % LANES;
  }
  /// Whether this thread is the one that writes a tile's single column.
  __device__ static bool ownsRow() { return threadIdx.x % COLUMN_THREADS == 0; }
  /// Whether this thread holds anything that others do not.
  __device__ static bool active() { return true; }
};

template <typename L, bool ONE_ROW, bool ONE_COLUMN>
struct Part {
  static constexpr int kRows = ONE_ROW ? 1 : L::kRows;
  static constexpr int kColumns = ONE_COLUMN ? 1 : L::kColumns;
  static constexpr int kLanes = ONE_COLUMN ? 1 : L::kLanes;
};

/// tile[i][j] = from[row + row(i), column + column(j)]; rows lie STRIDE elements apart, and every group of kLanes
/// elements starts at a multiple of ALIGNMENT bytes. Rows at or past rowLimit repeat the last one before it; columns at
/// or past columnLimit (a multiple of kLanes) are zero, and their memory is not touched.
template <typename L, bool ONE_ROW, bool ONE_COLUMN, bool LIMIT_ROWS, bool LIMIT_COLUMNS, int ALIGNMENT, bool STREAM,
          typename T, typename V>
__device__ inline void load(V (&tile)[Part<L, ONE_ROW, ONE_COLUMN>::kRows][Part<L, ONE_ROW, ONE_COLUMN>::kColumns],
                            const T* from, int64 stride, int64 row, int64 column, int64 rowLimit, int64 columnLimit) {
  using P = Part<L, ONE_ROW, ONE_COLUMN>;
#pragma unroll
  for (int i = 0; i < P::kRows; ++i) {
    int64 r = ONE_ROW ? row : row + L::row(i);
    if (LIMIT_ROWS && r >= rowLimit) r = rowLimit - 1;
    const T* line = from + r * stride;
#pragma unroll
    for (int j = 0; j < P::kColumns; j += P::kLanes) {
      const int64 c = ONE_COLUMN ? column : column + L::column(j);
      if (!LIMIT_COLUMNS || c < columnLimit) {
        readElements<P::kLanes, ALIGNMENT, STREAM>(&tile[i][j], line + c);
      } else {
#pragma unroll
        for (int l = 0; l < P::kLanes; ++l) tile[i][j + l] = V(0);
      }
    }
  }
}

/// The reverse; what lies at or past a limit is not written.
template <typename L, bool ONE_ROW, bool ONE_COLUMN, bool LIMIT_ROWS, bool LIMIT_COLUMNS, int ALIGNMENT, bool STREAM,
          typename T, typename V>
__device__ inline void store(
    const V (&tile)[Part<L, ONE_ROW, ONE_COLUMN>::kRows][Part<L, ONE_ROW, ONE_COLUMN>::kColumns], T* to, int64 stride,
    int64 row, int64 column, int64 rowLimit, int64 columnLimit) {
  using P = Part<L, ONE_ROW, ONE_COLUMN>;
  if (!L::active() || (ONE_COLUMN && !L::ownsRow())) return;
#pragma unroll
  for (int i = 0; i < P::kRows; ++i) {
    const int64 r = ONE_ROW ? row : row + L::row(i);
    if (LIMIT_ROWS && r >= rowLimit) continue;
    T* line = to + r * stride;
#pragma unroll
    for (int j = 0; j < P::kColumns; j += P::kLanes) {
      const int64 c = ONE_COLUMN ? column : column + L::column(j);
      if (!LIMIT_COLUMNS || c < columnLimit) writeElements<P::kLanes, ALIGNMENT, STREAM>(line + c, &tile[i][j]);
    }
  }
}

/// How a reduction combines two elements, and the one that changes no result.
struct Sum {
  template <typename V>
  __device__ static V of(V a, V b) {
    return a + b;
  }
  template <typename V>
  __device__ static V neutral() {
    return V(0);
  }
};
struct Maximum {
  template <typename V>
  __device__ static V of(V a, V b) {
    return maximum(a, b);
  }
  template <typename V>
  __device__ static V neutral() {
    return -infinity<V>();
  }
};
struct Minimum {
  template <typename V>
  __device__ static V of(V a, V b) {
    return minimum(a, b);
  }
  template <typename V>
  __device__ static V neutral() {
    return infinity<V>();
  }
};

/// Gives the columns at or past LIMIT what changes no result of OP.
template <typename L, typename OP, typename V, int ROWS>
__device__ inline void mask(V (&result)[ROWS][L::kColumns], const V (&tile)[ROWS][L::kColumns], int64 column,
                            int64 limit) {
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
#pragma unroll
    for (int j = 0; j < L::kColumns; ++j)
      result[i][j] = column + L::column(j) < limit ? tile[i][j] : OP::template neutral<V>();
  }
}

/// results[i][0] = row(i) combined by OP over all columns of the tile, in every thread of the row. The order is fixed:
/// lane by lane in each thread, then a butterfly over the warp, then warp by warp. AGAIN: another reduction follows.
template <typename L, typename OP, bool AGAIN, typename V>
__device__ inline void reduceRows(V (&results)[L::kRows][1], const V (&tile)[L::kRows][L::kColumns]) {
  constexpr int kInWarp = L::kColumnThreads < 32 ? L::kColumnThreads : 32;
  constexpr int kWarps = L::kColumnThreads / kInWarp;
#pragma unroll
  for (int i = 0; i < L::kRows; ++i) {
    // Lanes have partial results of their own: fewer steps wait for each other, and fewer roundings meet one sum.
    V partial[L::kLanes];
#pragma unroll
    for (int l = 0; l < L::kLanes; ++l) {
      partial[l] = tile[i][l];
#pragma unroll
      for (int j = L::kLanes; j < L::kColumns; j += L::kLanes) partial[l] = OP::of(partial[l], tile[i][j + l]);
    }
    V result = partial[0];
#pragma unroll
    for (int l = 1; l < L::kLanes; ++l) result = OP::of(result, partial[l]);
#pragma unroll
    for (int offset = kInWarp / 2; offset > 0; offset /= 2)
      result = OP::of(result, __shfl_xor_sync(0xffffffffu, result, offset));
    results[i][0] = result;
  }
  if constexpr (kWarps > 1) {
    __shared__ V scratch[L::kRowThreads * L::kRows][kWarps];
    const int warp = int(threadIdx.x) % L::kColumnThreads / 32;
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int i = 0; i < L::kRows; ++i) scratch[L::row(i)][warp] = results[i][0];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < L::kRows; ++i) {
      V result = scratch[L::row(i)][0];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) result = OP::of(result, scratch[L::row(i)][w]);
      results[i][0] = result;
    }
    if constexpr (AGAIN) __syncthreads();  // The next one may write the same scratch.
  }
}

}  // namespace ktune::device
