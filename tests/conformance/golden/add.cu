// add_bf16_Mx4096, M=17..4096, sm_90a
// {"symbols":[{"name":"M","min":17,"max":4096,"edges":[4096]}],"inputs":[{"name":"a","dtype":"bf16","shape":["M",4096],"alignment":64,"constant":false},{"name":"b","dtype":"bf16","shape":["M",4096],"alignment":64,"constant":false}],"nodes":[{"op":"add","inputs":["a","b"],"result":"y","attributes":{}}],"outputs":[{"value":"y","alignment":64}],"numerics":{"accumulate":"f32","tolerance":"default","deterministic":true,"batch_invariant":false}}
// #ktune.genome<fuse = [], kernels = [#ktune.schedule<generator = map, device = cuda, streamStores = 0, threads = 256, columnThreads = 256, lanes = 8, steps = 2, streamLoads = 0, blockRows = 1>]>
#include "ktune/device/contract.h"
#include "ktune/device/tile.h"

using namespace ktune::device;

extern "C" __global__ void __launch_bounds__(256)
ktune_add_bf16_M_17__4096_c3fae5d1(const bf16* __restrict__ a, const bf16* __restrict__ b, bf16* y, int64 M) {
  using L = BlockLayout<1, 4096, 256, 256, 8>;
  const int64 at = M * 4096;
  const int64 column = int64(blockIdx.x) * 4096;
  float a_tile[L::kRows][L::kColumns];
  load<L, false, false, false, false, 64, false>(a_tile, a, 4096 * M, 0, column, 0, 0);
  float b_tile[L::kRows][L::kColumns];
  load<L, false, false, false, false, 64, false>(b_tile, b, 4096 * M, 0, column, 0, 0);
  float sum[L::kRows][L::kColumns];
#pragma unroll
  for (int i = 0; i < L::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < L::kColumns; ++j) {
      sum[i][j] = a_tile[i][j] + b_tile[i][j];
    }
  }
  store<L, false, false, false, false, 64, false>(sum, y, 4096 * M, 0, column, 0, 0);
}
