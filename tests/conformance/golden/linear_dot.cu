// linear_bf16_Mx4096x4096, M=1, sm_90a
// {"symbols":[{"name":"M","min":1,"max":1,"edges":[1]}],"inputs":[{"name":"x","dtype":"bf16","shape":["M",4096],"alignment":64,"constant":false},{"name":"weight","dtype":"bf16","shape":[4096,4096],"alignment":64,"constant":true}],"nodes":[{"op":"linear","inputs":["x","weight"],"result":"y","attributes":{}}],"outputs":[{"value":"y","alignment":64}],"numerics":{"accumulate":"f32","tolerance":"default","deterministic":true,"batch_invariant":false}}
// #ktune.genome<fuse = [], kernels = [#ktune.schedule<generator = contraction, device = cuda, lanes = 8, instruction = 0, blockRows = 1, blockColumns = 4, warpRows = 1, warpColumns = 2, warpDepth = 2, threadRows = 1, threadColumns = 2, stageDepth = 32, stages = 1, splitK = 1, rasterColumns = 1>]>
#include "ktune/device/contract.h"
#include "ktune/device/tile.h"

using namespace ktune::device;

extern "C" __global__ void __launch_bounds__(128)
ktune_linear_bf16_M_1_b73c3068(const bf16* __restrict__ x, const bf16* __restrict__ weight, bf16* y, int64 M) {
  using L = DotLayout<1, 2, 2, 2>;
  int64 rowTile, columnTile;
  rasterise<1>(rowTile, columnTile);
  const int64 column = columnTile * 4;
  float products[L::kRows][L::kColumns];
  contractDot<1, 2, 2, 2, 8, 4, 64, 64>(products, x, 4096, weight, 4096, rowTile, column, 0, 4096, M, 4096);
  store<L, false, false, false, false, 64, false>(products, y, 4096, rowTile, column, 0, 0);
}
