// linear_bf16_Mx1024x4096, M=3..16, sm_90a
// {"symbols":[{"name":"M","min":3,"max":16,"edges":[16]}],"inputs":[{"name":"x","dtype":"bf16","shape":["M",4096],"alignment":64,"constant":false},{"name":"weight","dtype":"bf16","shape":[1024,4096],"alignment":64,"constant":true}],"nodes":[{"op":"linear","inputs":["x","weight"],"result":"y","attributes":{}}],"outputs":[{"value":"y","alignment":64}],"numerics":{"accumulate":"f32","tolerance":"default","deterministic":true,"batch_invariant":false}}
// #ktune.genome<fuse = [], kernels = [#ktune.schedule<generator = contraction, device = cuda, lanes = 8, instruction = 2, blockRows = 16, blockColumns = 32, warpRows = 1, warpColumns = 2, warpDepth = 1, threadRows = 1, threadColumns = 1, stageDepth = 64, stages = 4, splitK = 4, rasterColumns = 1>]>
#include "ktune/device/contract.h"
#include "ktune/device/tile.h"

using namespace ktune::device;

extern "C" __global__ void __launch_bounds__(64)
ktune_linear_bf16_M_3__16_3d97d412_partial(const bf16* __restrict__ x, const bf16* __restrict__ weight, const bf16* __restrict__ y, f32* partials, int64 M) {
  using L = MmaLayout<16, 32, 1, 2>;
  KTUNE_DYNAMIC_SHARED(shared);
  int64 rowTile, columnTile;
  rasterise<1>(rowTile, columnTile);
  const int64 row = rowTile * 16;
  const int64 column = columnTile * 32;
  const int64 part = int64(blockIdx.z) * 1024;
  const int64 end = least(part, 4096);
  const int64 at = end + 1024;
  const int64 end2 = least(at, 4096);
  float products[L::kRows][L::kColumns];
  contractMma<16, 32, 1, 2, 64, 4>(products, shared, x, 4096, weight, 4096, row, column, end, end2, M, 1024);
  const int64 part2 = int64(blockIdx.z) * M;
  const int64 at2 = part2 + M;
  const int64 at3 = part2 + row;
  store<L, false, false, true, false, 16, false>(products, partials, 1024, at3, column, at2, 0);
}

extern "C" __global__ void __launch_bounds__(256)
ktune_linear_bf16_M_3__16_3d97d412_combined(const bf16* __restrict__ x, const bf16* __restrict__ weight, bf16* y, const f32* __restrict__ partials, int64 M) {
  using L = BlockLayout<1, 1024, 256, 256, 4>;
  int64 rowTile, columnTile;
  rasterise<1>(rowTile, columnTile);
  const int64 column = columnTile * 1024;
  const int64 at = M * 0;
  const int64 at2 = at + rowTile;
  float partials_tile[L::kRows][L::kColumns];
  load<L, false, false, false, false, 16, false>(partials_tile, partials, 1024, at2, column, 0, 0);
  const int64 at3 = M + rowTile;
  float partials_tile2[L::kRows][L::kColumns];
  load<L, false, false, false, false, 16, false>(partials_tile2, partials, 1024, at3, column, 0, 0);
  float sum[L::kRows][L::kColumns];
#pragma unroll
  for (int i = 0; i < L::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < L::kColumns; ++j) {
      sum[i][j] = partials_tile[i][j] + partials_tile2[i][j];
    }
  }
  const int64 at4 = M * 2;
  const int64 at5 = at4 + rowTile;
  float partials_tile3[L::kRows][L::kColumns];
  load<L, false, false, false, false, 16, false>(partials_tile3, partials, 1024, at5, column, 0, 0);
  float sum2[L::kRows][L::kColumns];
#pragma unroll
  for (int i = 0; i < L::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < L::kColumns; ++j) {
      sum2[i][j] = sum[i][j] + partials_tile3[i][j];
    }
  }
  const int64 at6 = M * 3;
  const int64 at7 = at6 + rowTile;
  float partials_tile4[L::kRows][L::kColumns];
  load<L, false, false, false, false, 16, false>(partials_tile4, partials, 1024, at7, column, 0, 0);
  float sum3[L::kRows][L::kColumns];
#pragma unroll
  for (int i = 0; i < L::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < L::kColumns; ++j) {
      sum3[i][j] = sum2[i][j] + partials_tile4[i][j];
    }
  }
  store<L, false, false, false, false, 64, false>(sum3, y, 1024, rowTile, column, 0, 0);
}
