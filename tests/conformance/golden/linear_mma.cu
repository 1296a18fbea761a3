// linear_bf16_Mx4096x4096, M=17..4096, sm_90a
// {"symbols":[{"name":"M","min":17,"max":4096,"edges":[4096]}],"inputs":[{"name":"x","dtype":"bf16","shape":["M",4096],"alignment":64,"constant":false},{"name":"weight","dtype":"bf16","shape":[4096,4096],"alignment":64,"constant":true}],"nodes":[{"op":"linear","inputs":["x","weight"],"result":"y","attributes":{}}],"outputs":[{"value":"y","alignment":64}],"numerics":{"accumulate":"f32","tolerance":"default","deterministic":true,"batch_invariant":false}}
// #ktune.genome<fuse = [], kernels = [#ktune.schedule<generator = contraction, device = cuda, lanes = 8, instruction = 2, blockRows = 128, blockColumns = 64, warpRows = 2, warpColumns = 4, warpDepth = 1, threadRows = 1, threadColumns = 1, stageDepth = 64, stages = 4, splitK = 1, rasterColumns = 1>]>
#include "ktune/device/contract.h"
#include "ktune/device/tile.h"

using namespace ktune::device;

extern "C" __global__ void __launch_bounds__(256)
ktune_linear_bf16_M_17__4096_a174d297(const bf16* __restrict__ x, const bf16* __restrict__ weight, bf16* y, int64 M) {
  using L = MmaLayout<128, 64, 2, 4>;
  KTUNE_DYNAMIC_SHARED(shared);
  int64 rowTile, columnTile;
  rasterise<1>(rowTile, columnTile);
  const int64 row = rowTile * 128;
  const int64 column = columnTile * 64;
  float products[L::kRows][L::kColumns];
  contractMma<128, 64, 2, 4, 64, 4>(products, shared, x, 4096, weight, 4096, row, column, 0, 4096, M, 4096);
  store<L, false, false, true, false, 64, false>(products, y, 4096, row, column, M, 0);
}
