// RUN: ktune-opt --ktune-decompose --split-input-file --verify-diagnostics %s

func.func @unknown(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // expected-error @+1 {{unknown operator 'no_such_operator'}}
  %y = ktune.operator "no_such_operator"(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

func.func @badShape(%x: tensor<4x8xf32>, %w: tensor<9xf32>) -> tensor<4x8xf32> {
  // expected-error @+1 {{rms_norm}}
  %y = ktune.operator "rms_norm"(%x, %w) {eps = 1.0e-6 : f64} : (tensor<4x8xf32>, tensor<9xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}
