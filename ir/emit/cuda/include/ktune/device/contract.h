// Products of matrices: a tile of x * w^T, computed by one block. The three ways of KernelSchedule::instruction.
#pragma once

#include "ktune/device/tile.h"

namespace ktune::device {

// ---- instruction 0: a warp per few columns, its lanes along the reduced dim --------------------------------------

/// ROWS rows and WARP_COLUMNS * COLUMNS columns; WARP_DEPTH warps share the reduced dim of a column. Every thread of a
/// warp ends with the sums; one of them writes.
template <int ROWS, int COLUMNS, int WARP_COLUMNS, int WARP_DEPTH>
struct DotLayout {
  static constexpr int kRows = ROWS;
  static constexpr int kColumns = COLUMNS;
  static constexpr int kLanes = 1;
  __device__ static int warp() { return int(threadIdx.x) / 32; }
  __device__ static int row(int i) { return i; }
  __device__ static int column(int j) { return warp() / WARP_DEPTH * COLUMNS + j; }
  __device__ static bool active() { return threadIdx.x % (32 * WARP_DEPTH) == 0; }
  __device__ static bool ownsRow() { return threadIdx.x == 0; }
};

/// GROUPS loads of LANES elements of each row and column are in flight in each lane.
template <int ROWS, int COLUMNS, int WARP_COLUMNS, int WARP_DEPTH, int LANES, int GROUPS, int X_ALIGNMENT,
          int W_ALIGNMENT, typename T, typename V>
__device__ inline void contractDot(V (&sums)[ROWS][COLUMNS], const T* x, int64 xStride, const T* w, int64 wStride,
                                   int64 row, int64 column, int64 begin, int64 end, int64 rowLimit, int64 columnLimit) {
  using L = DotLayout<ROWS, COLUMNS, WARP_COLUMNS, WARP_DEPTH>;
  const int depthWarp = L::warp() % WARP_DEPTH, lane = int(threadIdx.x) % 32;
  const T* xRows[ROWS];
  const T* wRows[COLUMNS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) xRows[i] = x + least(row + i, rowLimit - 1) * xStride;
#pragma unroll
  for (int j = 0; j < COLUMNS; ++j) wRows[j] = w + least(column + L::column(j), columnLimit - 1) * wStride;

  V partial[ROWS][COLUMNS] = {};
  constexpr int kStep = 32 * WARP_DEPTH * LANES;
  auto accumulate = [&](const V* xs, const V* ws, int i, int j) {
#pragma unroll
    for (int l = 0; l < LANES; ++l) partial[i][j] += xs[l] * ws[l];
  };
  int64 k = begin + (depthWarp * 32 + lane) * LANES;
  for (; k + (GROUPS - 1) * kStep < end; k += GROUPS * kStep) {
    // All weights first: they come from memory; x comes from the caches.
    V ws[GROUPS][COLUMNS][LANES];
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) readElements<LANES, W_ALIGNMENT, true>(ws[g][j], wRows[j] + k + g * kStep);
    }
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        V xs[LANES];
        readElements<LANES, X_ALIGNMENT, false>(xs, xRows[i] + k + g * kStep);
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) accumulate(xs, ws[g][j], i, j);
      }
    }
  }
  for (; k < end; k += kStep) {
    V ws[COLUMNS][LANES];
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) readElements<LANES, W_ALIGNMENT, true>(ws[j], wRows[j] + k);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      V xs[LANES];
      readElements<LANES, X_ALIGNMENT, false>(xs, xRows[i] + k);
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) accumulate(xs, ws[j], i, j);
    }
  }

#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
      V sum = partial[i][j];
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      sums[i][j] = sum;
    }
  }
  if constexpr (WARP_DEPTH > 1) {
    __shared__ V scratch[WARP_COLUMNS * WARP_DEPTH][ROWS][COLUMNS];
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) scratch[L::warp()][i][j] = sums[i][j];
      }
    }
    __syncthreads();
    const int first = L::warp() - depthWarp;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) {
        V sum = scratch[first][i][j];
#pragma unroll
        for (int d = 1; d < WARP_DEPTH; ++d) sum += scratch[first + d][i][j];
        sums[i][j] = sum;
      }
    }
  }
}

// ---- instruction 1: a register block per thread, operands in shared memory ---------------------------------------

/// BLOCK_ROWS x BLOCK_COLUMNS elements; each thread has THREAD_ROWS x THREAD_COLUMNS of them, side by side.
template <int BLOCK_ROWS, int BLOCK_COLUMNS, int THREAD_ROWS, int THREAD_COLUMNS, int LANES>
struct SimtLayout {
  static constexpr int kRows = THREAD_ROWS;
  static constexpr int kColumns = THREAD_COLUMNS;
  static constexpr int kLanes = LANES;
  static constexpr int kAlong = BLOCK_COLUMNS / THREAD_COLUMNS;
  static constexpr int kThreads = BLOCK_ROWS / THREAD_ROWS * kAlong;
  __device__ static int row(int i) { return int(threadIdx.x) / kAlong * THREAD_ROWS + i; }
  __device__ static int column(int j) { return int(threadIdx.x) % kAlong * THREAD_COLUMNS + j; }
  __device__ static bool active() { return true; }
  __device__ static bool ownsRow() { return threadIdx.x % kAlong == 0; }
};

/// stage[k][r] = from[first + r, k0 + k], zero at or past END; rows at or past LIMIT repeat the last one before it.
template <int ROWS, int DEPTH, int LANES, int ALIGNMENT, int THREADS, typename T, typename V>
__device__ inline void fillStage(V (&stage)[DEPTH][ROWS + 1], const T* from, int64 stride, int64 first, int64 limit,
                                 int64 k0, int64 end) {
  for (int e = int(threadIdx.x); e < ROWS * (DEPTH / LANES); e += THREADS) {
    const int r = e / (DEPTH / LANES), k = e % (DEPTH / LANES) * LANES;
    V values[LANES] = {};
    if (k0 + k < end)
      readElements<LANES, ALIGNMENT, false>(values, from + least(first + r, limit - 1) * stride + k0 + k);
#pragma unroll
    for (int l = 0; l < LANES; ++l) stage[k + l][r] = values[l];
  }
}

template <int BLOCK_ROWS, int BLOCK_COLUMNS, int THREAD_ROWS, int THREAD_COLUMNS, int DEPTH, int LANES, int X_ALIGNMENT,
          int W_ALIGNMENT, typename T, typename V>
__device__ inline void contractSimt(V (&sums)[THREAD_ROWS][THREAD_COLUMNS], const T* x, int64 xStride, const T* w,
                                    int64 wStride, int64 row, int64 column, int64 begin, int64 end, int64 rowLimit,
                                    int64 columnLimit) {
  using L = SimtLayout<BLOCK_ROWS, BLOCK_COLUMNS, THREAD_ROWS, THREAD_COLUMNS, 1>;
  constexpr int kThreads = L::kThreads;
  constexpr int kLanes = LANES < DEPTH ? LANES : DEPTH;
  // Depth first, one element of padding a row, so that a thread's neighbouring rows are neighbours.
  __shared__ V xs[DEPTH][BLOCK_ROWS + 1];
  __shared__ V ws[DEPTH][BLOCK_COLUMNS + 1];
#pragma unroll
  for (int i = 0; i < THREAD_ROWS; ++i) {
#pragma unroll
    for (int j = 0; j < THREAD_COLUMNS; ++j) sums[i][j] = V(0);
  }
  for (int64 k0 = begin; k0 < end; k0 += DEPTH) {
    fillStage<BLOCK_ROWS, DEPTH, kLanes, X_ALIGNMENT, kThreads>(xs, x, xStride, row, rowLimit, k0, end);
    fillStage<BLOCK_COLUMNS, DEPTH, kLanes, W_ALIGNMENT, kThreads>(ws, w, wStride, column, columnLimit, k0, end);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < DEPTH; ++k) {
      V a[THREAD_ROWS], b[THREAD_COLUMNS];
#pragma unroll
      for (int i = 0; i < THREAD_ROWS; ++i) a[i] = xs[k][L::row(i)];
#pragma unroll
      for (int j = 0; j < THREAD_COLUMNS; ++j) b[j] = ws[k][L::column(j)];
#pragma unroll
      for (int i = 0; i < THREAD_ROWS; ++i) {
#pragma unroll
        for (int j = 0; j < THREAD_COLUMNS; ++j) sums[i][j] += a[i] * b[j];
      }
    }
    __syncthreads();
  }
}

// ---- instruction 2: mma.sync m16n8k16 on 16-bit floats, operands in stages of shared memory filled by cp.async ---

/// Sixteen bytes from global to shared memory, or zeros when VALID is false.
__device__ inline void copyAsync(void* to, const void* from, bool valid) {
#if defined(KTUNE_EMULATION)
  uint4 zero = {0, 0, 0, 0};
  *static_cast<uint4*>(to) = valid ? *static_cast<const uint4*>(from) : zero;
#else
  const uint32 address = uint32(__cvta_generic_to_shared(to));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
#endif
}
__device__ inline void commitCopies() {
#if !defined(KTUNE_EMULATION)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Waits until at most PENDING groups of this thread's copies are still under way.
template <int PENDING>
__device__ inline void waitForCopies() {
#if !defined(KTUNE_EMULATION)
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

/// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void loadMatrices(uint32 (&r)[4], const void* row) {
#if defined(KTUNE_EMULATION)
  emulatedLoadMatrices(r, row);
#else
  const uint32 address = uint32(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
#endif
}

/// d += a * b for one 16 x 8 x 16 product of a warp.
template <typename T>
__device__ inline void multiplyAdd(float& d0, float& d1, float& d2, float& d3, const uint32 (&a)[4], uint32 b0,
                                   uint32 b1);
#if defined(KTUNE_EMULATION)
template <typename T>
__device__ inline void multiplyAdd(float& d0, float& d1, float& d2, float& d3, const uint32 (&a)[4], uint32 b0,
                                   uint32 b1) {
  emulatedMultiplyAdd<T>(d0, d1, d2, d3, a, b0, b1);
}
#else
template <>
__device__ inline void multiplyAdd<bf16>(float& d0, float& d1, float& d2, float& d3, const uint32 (&a)[4], uint32 b0,
                                         uint32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void multiplyAdd<f16>(float& d0, float& d1, float& d2, float& d3, const uint32 (&a)[4], uint32 b0,
                                        uint32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

/// The accumulators of mma.m16n8: a lane holds two neighbouring columns in rows lane / 4 and lane / 4 + 8 of each
/// 16 x 8 piece. WARP_ROWS x WARP_COLUMNS warps share the tile.
template <int BLOCK_ROWS, int BLOCK_COLUMNS, int WARP_ROWS, int WARP_COLUMNS>
struct MmaLayout {
  static constexpr int kTileRows = BLOCK_ROWS / WARP_ROWS;
  static constexpr int kTileColumns = BLOCK_COLUMNS / WARP_COLUMNS;
  static constexpr int kRows = kTileRows / 16 * 2;
  static constexpr int kColumns = kTileColumns / 8 * 2;
  static constexpr int kLanes = 2;
  static constexpr int kThreads = 32 * WARP_ROWS * WARP_COLUMNS;
  __device__ static int warpRow() { return int(threadIdx.x) / 32 / WARP_COLUMNS; }
  __device__ static int warpColumn() { return int(threadIdx.x) / 32 % WARP_COLUMNS; }
  __device__ static int row(int i) {
    return warpRow() * kTileRows + i / 2 * 16 + int(threadIdx.x) % 32 / 4 + i % 2 * 8;
  }
  __device__ static int column(int j) {
    return warpColumn() * kTileColumns + j / 2 * 8 + int(threadIdx.x) % 4 * 2 + j % 2;
  }
  __device__ static bool active() { return true; }
  __device__ static bool ownsRow() { return warpColumn() == 0 && threadIdx.x % 4 == 0; }
};

/// A stage of ROWS rows of DEPTH 16-bit elements. The 16-byte chunks of a row are permuted, so that the eight rows that
/// one ldmatrix reads lie in different banks.
template <int ROWS, int DEPTH>
struct Stage {
  static constexpr int kChunks = DEPTH / 8;                            ///< Of a row.
  static constexpr int kRowsPerLine = kChunks >= 8 ? 1 : 8 / kChunks;  ///< Rows in 128 bytes, all banks once.
  static constexpr int kMask = (kChunks >= 8 ? 8 : kChunks) - 1;
  __device__ static int offset(int row, int chunk) {
    return (row * kChunks + (chunk ^ (row / kRowsPerLine & kMask))) * 16;
  }
  static constexpr int kBytes = ROWS * DEPTH * 2;
};

/// Requests rows [first, first + ROWS) x [k, k + DEPTH) of a matrix.
template <int ROWS, int DEPTH, int THREADS, typename T>
__device__ inline void requestStage(char* stage, const T* from, int64 stride, int64 first, int64 limit, int64 k,
                                    int64 end) {
  using S = Stage<ROWS, DEPTH>;
  constexpr int kTotal = ROWS * S::kChunks;
#pragma unroll
  for (int e = 0; e < kTotal; e += THREADS) {
    const int index = e + int(threadIdx.x);
    if (kTotal % THREADS != 0 && index >= kTotal) break;
    const int r = index / S::kChunks, c = index % S::kChunks;
    const bool valid = k + c * 8 < end;
    copyAsync(stage + S::offset(r, c), from + least(first + r, limit - 1) * stride + (valid ? k + c * 8 : 0), valid);
  }
}

template <int BLOCK_ROWS, int BLOCK_COLUMNS, int WARP_ROWS, int WARP_COLUMNS, int DEPTH, int STAGES, typename T>
__device__ inline void contractMma(
    float (&sums)[MmaLayout<BLOCK_ROWS, BLOCK_COLUMNS, WARP_ROWS, WARP_COLUMNS>::kRows]
                 [MmaLayout<BLOCK_ROWS, BLOCK_COLUMNS, WARP_ROWS, WARP_COLUMNS>::kColumns],
    char* shared, const T* x, int64 xStride, const T* w, int64 wStride, int64 row, int64 column, int64 begin, int64 end,
    int64 rowLimit, int64 columnLimit) {
  using L = MmaLayout<BLOCK_ROWS, BLOCK_COLUMNS, WARP_ROWS, WARP_COLUMNS>;
  using X = Stage<BLOCK_ROWS, DEPTH>;
  using W = Stage<BLOCK_COLUMNS, DEPTH>;
  constexpr int kStageBytes = X::kBytes + W::kBytes;
  constexpr int kRowPieces = L::kTileRows / 16, kColumnPieces = L::kTileColumns / 8;
  static_assert(kColumnPieces % 2 == 0);
  const int lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < L::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < L::kColumns; ++j) sums[i][j] = 0.0f;
  }
  const int count = int((end - begin + DEPTH - 1) / DEPTH);
  auto request = [&](int step) {
    if (step < count) {
      char* stage = shared + step % STAGES * kStageBytes;
      const int64 k = begin + int64(step) * DEPTH;
      requestStage<BLOCK_ROWS, DEPTH, L::kThreads>(stage, x, xStride, row, rowLimit, k, end);
      requestStage<BLOCK_COLUMNS, DEPTH, L::kThreads>(stage + X::kBytes, w, wStride, column, columnLimit, k, end);
    }
    commitCopies();  // An empty group where nothing is left, so that the count of groups stays simple.
  };
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) request(s);
  for (int step = 0; step < count; ++step) {
    waitForCopies<STAGES - 2>();
    __syncthreads();  // The stage has arrived for everyone, and everyone is done with the one that is filled next.
    request(step + STAGES - 1);
    const char* xStage = shared + step % STAGES * kStageBytes;
    const char* wStage = xStage + X::kBytes;
#pragma unroll
    for (int k = 0; k < DEPTH / 16; ++k) {
      uint32 a[kRowPieces][4];
#pragma unroll
      for (int i = 0; i < kRowPieces; ++i) {
        const int r = L::warpRow() * L::kTileRows + i * 16 + lane / 8 % 2 * 8 + lane % 8;
        loadMatrices(a[i], xStage + X::offset(r, k * 2 + lane / 16));
      }
#pragma unroll
      for (int j = 0; j < kColumnPieces; j += 2) {
        uint32 b[4];
        const int c = L::warpColumn() * L::kTileColumns + j * 8 + lane / 16 * 8 + lane % 8;
        loadMatrices(b, wStage + W::offset(c, k * 2 + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < kRowPieces; ++i) {
          multiplyAdd<T>(sums[2 * i][2 * j], sums[2 * i][2 * j + 1], sums[2 * i + 1][2 * j], sums[2 * i + 1][2 * j + 1],
                         a[i], b[0], b[1]);
          multiplyAdd<T>(sums[2 * i][2 * j + 2], sums[2 * i][2 * j + 3], sums[2 * i + 1][2 * j + 2],
                         sums[2 * i + 1][2 * j + 3], a[i], b[2], b[3]);
        }
      }
    }
  }
}

/// Which tile a block computes: groups of COLUMNS neighbouring columns of tiles are visited row by row, so that what a
/// group reads stays in the second-level cache.
template <int COLUMNS>
__device__ inline void rasterise(int64& rowTile, int64& columnTile) {
  if constexpr (COLUMNS == 1) {
    rowTile = blockIdx.x;
    columnTile = blockIdx.y;
  } else {
    const int64 rows = gridDim.x, columns = gridDim.y;
    const int64 index = int64(blockIdx.y) * rows + blockIdx.x;
    const int64 group = index / (rows * COLUMNS);
    const int64 width = least(COLUMNS, columns - group * COLUMNS);
    const int64 inside = index - group * rows * COLUMNS;
    rowTile = inside / width;
    columnTile = group * COLUMNS + inside % width;
  }
}

}  // namespace ktune::device
