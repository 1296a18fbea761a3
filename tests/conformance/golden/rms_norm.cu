// rms_norm_bf16_Mx4096, M=3..16, sm_90a
// {"symbols":[{"name":"M","min":3,"max":16,"edges":[16]}],"inputs":[{"name":"x","dtype":"bf16","shape":["M",4096],"alignment":64,"constant":false},{"name":"weight","dtype":"bf16","shape":[4096],"alignment":64,"constant":true}],"nodes":[{"op":"rms_norm","inputs":["x","weight"],"result":"y","attributes":{"eps":1e-06}}],"outputs":[{"value":"y","alignment":64}],"numerics":{"accumulate":"f32","tolerance":"default","deterministic":true,"batch_invariant":false}}
// #ktune.genome<fuse = [1, 1, 1, 1, 1, 1], kernels = [#ktune.schedule<generator = row, device = cuda, streamStores = 0, threads = 256, columnThreads = 256, lanes = 8, steps = 2, streamLoads = 0, blockRows = 1, loadFirst = 1>]>
#include "ktune/device/contract.h"
#include "ktune/device/tile.h"

using namespace ktune::device;

extern "C" __global__ void __launch_bounds__(256)
ktune_rms_norm_bf16_M_3__16_f24f7c85(const bf16* __restrict__ x, const bf16* __restrict__ weight, bf16* y, int64 M) {
  using L = BlockLayout<1, 4096, 256, 256, 8>;
  float x_tile[L::kRows][L::kColumns];
  load<L, false, false, false, false, 64, false>(x_tile, x, 4096, int64(blockIdx.x), 0, 0, 0);
  float weight_tile[L::kRows][L::kColumns];
  load<L, false, false, false, false, 64, false>(weight_tile, weight, 4096, 0, 0, 0, 0);
  float product[L::kRows][L::kColumns];
#pragma unroll
  for (int i = 0; i < L::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < L::kColumns; ++j) {
      product[i][j] = x_tile[i][j] * x_tile[i][j];
    }
  }
  float total[L::kRows][1];
  reduceRows<L, Sum, false>(total, product);
  float product2[L::kRows][1];
  float sum[L::kRows][1];
  float scale[L::kRows][1];
#pragma unroll
  for (int i = 0; i < L::kRows; ++i) {
    product2[i][0] = total[i][0] * 0.000244140625f;
    sum[i][0] = product2[i][0] + 1e-06f;
    scale[i][0] = inverseRoot(sum[i][0]);
  }
  float product3[L::kRows][L::kColumns];
  float product4[L::kRows][L::kColumns];
#pragma unroll
  for (int i = 0; i < L::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < L::kColumns; ++j) {
      product3[i][j] = x_tile[i][j] * scale[i][0];
      product4[i][j] = product3[i][j] * weight_tile[i][j];
    }
  }
  store<L, false, false, false, false, 64, false>(product4, y, 4096, int64(blockIdx.x), 0, 0, 0);
}
