// RUN: ktune-opt --split-input-file --verify-diagnostics %s

func.func @mma(%a: tensor<2x3xf32>, %x: tensor<2x8xf32>, %w: tensor<4x8xf32>) -> tensor<2x3xf32> {
  // expected-error @+1 {{wants accumulator MxN, lhs MxK and rhs NxK}}
  %r = ktune.mma %a, %x, %w : tensor<2x3xf32>, tensor<2x8xf32>, tensor<4x8xf32>
  return %r : tensor<2x3xf32>
}

// -----

func.func @broadcast(%x: tensor<2x3xf32>) -> tensor<2x6xf32> {
  // expected-error @+1 {{cannot repeat}}
  %r = ktune.broadcast %x : tensor<2x3xf32> -> tensor<2x6xf32>
  return %r : tensor<2x6xf32>
}

// -----

func.func @reduce(%x: tensor<2x3xf32>) -> tensor<1x1xf32> {
  // expected-error @+1 {{wants tensor<RxC> -> tensor<Rx1>}}
  %r = ktune.reduce %x : tensor<2x3xf32> -> tensor<1x1xf32>
  return %r : tensor<1x1xf32>
}

// -----

// expected-error @+1 {{unknown parameter}}
func.func @schedule() attributes {ktune.schedule = #ktune.schedule<generator = row, noSuchParameter = 3>} { return }
