// linear_f32_Mx1024x1024, M=17..4096, sm_90a
// {"symbols":[{"name":"M","min":17,"max":4096,"edges":[4096]}],"inputs":[{"name":"x","dtype":"f32","shape":["M",1024],"alignment":64,"constant":false},{"name":"weight","dtype":"f32","shape":[1024,1024],"alignment":64,"constant":true}],"nodes":[{"op":"linear","inputs":["x","weight"],"result":"y","attributes":{}}],"outputs":[{"value":"y","alignment":64}],"numerics":{"accumulate":"f32","tolerance":"default","deterministic":true,"batch_invariant":false}}
// #ktune.genome<fuse = [], kernels = [#ktune.schedule<generator = contraction, device = cuda, lanes = 4, instruction = 1, blockRows = 128, blockColumns = 32, warpRows = 1, warpColumns = 1, warpDepth = 1, threadRows = 8, threadColumns = 2, stageDepth = 16, stages = 1, splitK = 1, rasterColumns = 1>]>
#include "ktune/device/contract.h"
#include "ktune/device/tile.h"

using namespace ktune::device;

extern "C" __global__ void __launch_bounds__(256)
ktune_linear_f32_M_17__4096_d17e50b5(const f32* __restrict__ x, const f32* __restrict__ weight, f32* y, int64 M) {
  using L = SimtLayout<128, 32, 8, 2, 2>;
  int64 rowTile, columnTile;
  rasterise<1>(rowTile, columnTile);
  const int64 row = rowTile * 128;
  const int64 column = columnTile * 32;
  float products[L::kRows][L::kColumns];
  contractSimt<128, 32, 8, 2, 16, 4, 64, 64>(products, x, 1024, weight, 1024, row, column, 0, 1024, M, 1024);
  store<L, false, false, true, false, 64, false>(products, y, 1024, row, column, M, 0);
}
