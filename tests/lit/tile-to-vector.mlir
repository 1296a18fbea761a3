// RUN: ktune-opt --ktune-tile-to-vector %s | FileCheck %s

// Rows and columns may overhang: the address of a row past the limit is that of the last row, its store is skipped;
// columns are masked.
// CHECK-LABEL: func.func @limits(%arg0: !llvm.ptr, %arg1: i64, %arg2: i64)
// CHECK: scf.for %[[TILE:[a-z0-9]+]] = %arg1 to %arg2
// CHECK: llvm.intr.masked.load
// CHECK: arith.minsi
// CHECK: llvm.intr.masked.load
// CHECK: llvm.intr.masked.store
// CHECK: scf.if
// CHECK: llvm.intr.masked.store
func.func @limits(%x: memref<?x10xf32> {ktune.stride = array<i64: 10, -1>},
                  %y: memref<?x10xf32> {ktune.stride = array<i64: 10, -1>}, %m: index)
    attributes {ktune.grid = array<i64: 1, 0, 2, 1, -1, 1>, ktune.schedule = #ktune.schedule<generator = map, vector = 16>} {
  %c0 = arith.constant 0 : index
  %c10 = arith.constant 10 : index
  %c2 = arith.constant 2 : index
  %t = ktune.tile_id 0
  %r = arith.muli %t, %c2 : index
  %a = ktune.load_tile %x[%r, %c0] rows < %m columns < %c10 : memref<?x10xf32> -> tensor<2x16xf32>
  ktune.store_tile %a, %y[%r, %c0] rows < %m columns < %c10 : tensor<2x16xf32> -> memref<?x10xf32>
  return
}

// A product accumulates one vector of partial sums per element; they are summed once, after the loop.
// CHECK-LABEL: func.func @product
// CHECK: scf.for {{.*}} -> (vector<8xf32>, vector<8xf32>)
// CHECK-COUNT-2: vector.fma
// CHECK: scf.yield
// CHECK-COUNT-2: vector.reduction <add>
// CHECK: llvm.store {{.*}} : f32, !llvm.ptr
func.func @product(%x: memref<1x64xf32> {ktune.stride = array<i64: 64, -1>},
                   %w: memref<2x64xf32> {ktune.stride = array<i64: 64, -1>},
                   %y: memref<1x2xf32> {ktune.stride = array<i64: 2, -1>})
    attributes {ktune.grid = array<i64: 1, -1, 1, 1, -1, 1>,
                ktune.schedule = #ktune.schedule<generator = contraction, vector = 8, unroll = 1>} {
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %c64 = arith.constant 64 : index
  %zero = arith.constant dense<0.0> : tensor<1x2xf32>
  %sum = scf.for %k = %c0 to %c64 step %c8 iter_args(%acc = %zero) -> (tensor<1x2xf32>) {
    %a = ktune.load_tile %x[%c0, %k] : memref<1x64xf32> -> tensor<1x8xf32>
    %b = ktune.load_tile %w[%c0, %k] : memref<2x64xf32> -> tensor<2x8xf32>
    %next = ktune.mma %acc, %a, %b : tensor<1x2xf32>, tensor<1x8xf32>, tensor<2x8xf32>
    scf.yield %next : tensor<1x2xf32>
  }
  ktune.store_tile %sum, %y[%c0, %c0] : tensor<1x2xf32> -> memref<1x2xf32>
  return
}

// Streamed stores are fenced before the tiles are handed back.
// CHECK-LABEL: func.func @stream
// CHECK: llvm.store {{.*}} {alignment = 64 : i64, nontemporal}
// CHECK: llvm.fence seq_cst
func.func @stream(%x: memref<1x16xf32> {ktune.stride = array<i64: 16, -1>},
                  %y: memref<1x16xf32> {ktune.stride = array<i64: 16, -1>})
    attributes {ktune.grid = array<i64: 1, -1, 1, 1, -1, 1>, ktune.schedule = #ktune.schedule<generator = map, vector = 16>} {
  %c0 = arith.constant 0 : index
  %a = ktune.load_tile %x[%c0, %c0] : memref<1x16xf32> -> tensor<1x16xf32>
  ktune.store_tile %a, %y[%c0, %c0] {stream} : tensor<1x16xf32> -> memref<1x16xf32>
  return
}
