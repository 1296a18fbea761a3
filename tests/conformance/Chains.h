// Descriptions for the conformance tests: every operator, and chains that nobody wrote a kernel for.
#pragma once

#include <string>
#include <vector>

#include "ir/op/Builder.h"

namespace ktune::test {

struct Chain {
  std::string name;
  op::Graph graph;
};

/// Sizes that divide nothing beside sizes that divide everything; buckets of one row, few rows and many.
inline std::vector<Chain> chains() {
  using op::Dim;
  using op::DType;
  std::vector<Chain> all;
  auto add = [&](std::string name, Result<op::Graph> graph) {
    if (graph) all.push_back({std::move(name), *graph});
  };
  op::Symbol one{"M", 1, 1, {1}}, few{"M", 2, 16, {16}}, many{"M", 17, 70, {70}};
  add("rms_norm one row", op::makeRmsNorm(one, 1, 4096, 1e-6, DType::kF32));
  add("rms_norm", op::makeRmsNorm(few, 1, 512, 1e-6, DType::kF32));
  add("rms_norm odd columns", op::makeRmsNorm(many, 1, 1003, 1e-5, DType::kF32));
  add("rms_norm of heads", op::makeRmsNorm(few, 8, 128, 1e-6, DType::kF32));
  add("rms_norm narrower than a vector", op::makeRmsNorm(few, 1, 5, 1e-6, DType::kF32));
  add("rms_norm f64", op::makeRmsNorm(few, 1, 200, 1e-6, DType::kF64));
  add("linear one row", op::makeLinear(one, 96, 512, DType::kF32));
  add("linear", op::makeLinear(few, 256, 384, DType::kF32));
  add("linear odd", op::makeLinear(many, 101, 333, DType::kF32));
  add("linear shallow", op::makeLinear(few, 33, 16, DType::kF32));
  add("linear f64", op::makeLinear(few, 40, 72, DType::kF64));
  add("add", op::makeAdd(many, 4096, DType::kF32));
  add("add odd", op::makeAdd(few, 77, DType::kF32));

  auto chain = [&](std::string name, op::Symbol tokens, auto build) {
    op::GraphBuilder b;
    int32_t m = b.symbol(tokens.name, tokens.min, tokens.max, tokens.edges);
    build(b, Dim::symbolic(m));
    add(std::move(name), b.finish());
  };
  chain("linear + bias + residual", few, [](op::GraphBuilder& b, Dim m) {
    int32_t x = b.input("x", DType::kF32, {m, Dim::fixed(256)});
    int32_t w = b.input("w", DType::kF32, {Dim::fixed(70), Dim::fixed(256)}, true);
    int32_t bias = b.input("bias", DType::kF32, {Dim::fixed(70)}, true);
    int32_t residual = b.input("residual", DType::kF32, {m, Dim::fixed(70)});
    int32_t h = b.node("linear", {x, w});
    b.output(b.node("add", {b.node("add", {h, bias}), residual}));
  });
  chain("residual + rms_norm, sum handed back too", few, [](op::GraphBuilder& b, Dim m) {
    int32_t x = b.input("x", DType::kF32, {m, Dim::fixed(300)});
    int32_t r = b.input("residual", DType::kF32, {m, Dim::fixed(300)});
    int32_t w = b.input("weight", DType::kF32, {Dim::fixed(300)}, true);
    int32_t sum = b.node("add", {x, r});
    b.output(sum);
    b.output(b.node("rms_norm", {sum, w}, {{"eps", 1e-6}}));
  });
  chain("two reductions, one above the other", few, [](op::GraphBuilder& b, Dim m) {
    // Centre each row, then scale it to unit length: what a layer norm does, from primitives.
    int32_t x = b.input("x", DType::kF32, {m, Dim::fixed(260)});
    int32_t scale = b.node("constant", {}, {{"value", 1.0 / 260}, {"dtype", std::string("f32")}});
    int32_t mean = b.node("mul", {b.node("reduce_sum", {x}), scale});
    int32_t centred = b.node("sub", {x, mean});
    int32_t squares = b.node("mul", {centred, centred});
    int32_t eps = b.node("constant", {}, {{"value", 1e-5}, {"dtype", std::string("f32")}});
    int32_t variance = b.node("add", {b.node("mul", {b.node("reduce_sum", {squares}), scale}), eps});
    b.output(b.node("mul", {centred, b.node("rsqrt", {variance})}));
  });
  chain("elementwise with a column and a row repeated", many, [](op::GraphBuilder& b, Dim m) {
    int32_t x = b.input("x", DType::kF32, {m, Dim::fixed(130)});
    int32_t row = b.input("row", DType::kF32, {Dim::fixed(130)}, true);
    int32_t column = b.input("column", DType::kF32, {m, Dim::fixed(1)});
    b.output(b.node("maximum", {b.node("mul", {x, row}), b.node("neg", {column})}));
  });
  chain("row sums alone", many, [](op::GraphBuilder& b, Dim m) {
    b.output(b.node("reduce_sum", {b.input("x", DType::kF32, {m, Dim::fixed(1030)})}));
  });
  chain("linear into rms_norm", few, [](op::GraphBuilder& b, Dim m) {
    int32_t x = b.input("x", DType::kF32, {m, Dim::fixed(96)});
    int32_t w = b.input("w", DType::kF32, {Dim::fixed(64), Dim::fixed(96)}, true);
    int32_t g = b.input("g", DType::kF32, {Dim::fixed(64)}, true);
    b.output(b.node("rms_norm", {b.node("linear", {x, w}), g}, {{"eps", 1e-6}}));
  });
  for (const char* name : {"abs", "exp", "tanh", "erf", "relu", "leaky_relu", "sigmoid", "silu", "gelu", "gelu_tanh",
                           "elu", "selu", "hardsigmoid", "hardtanh", "softplus", "softsign"})
    chain(name, few, [name](op::GraphBuilder& b, Dim m) {
      b.output(b.node(name, {b.input("x", DType::kF32, {m, Dim::fixed(203)})}));
    });
  chain("logarithms of magnitudes", few, [](op::GraphBuilder& b, Dim m) {
    b.output(b.node("log", {b.node("abs", {b.input("x", DType::kF32, {m, Dim::fixed(203)})})}));
  });
  for (const char* name : {"silu_mul", "gelu_mul", "gelu_tanh_mul"})
    chain(name, many, [name](op::GraphBuilder& b, Dim m) {
      int32_t gate = b.input("gate", DType::kF32, {m, Dim::fixed(384)});
      b.output(b.node(name, {gate, b.input("up", DType::kF32, {m, Dim::fixed(384)})}));
    });
  for (const char* name : {"softmax", "log_softmax", "reduce_mean", "reduce_max", "reduce_min"}) {
    chain(name, many, [name](op::GraphBuilder& b, Dim m) {
      b.output(b.node(name, {b.input("x", DType::kF32, {m, Dim::fixed(1003)})}));
    });
    chain(std::string(name) + " of one row", one, [name](op::GraphBuilder& b, Dim m) {
      b.output(b.node(name, {b.input("x", DType::kF32, {m, Dim::fixed(5000)})}));
    });
  }
  chain("layer_norm", many, [](op::GraphBuilder& b, Dim m) {
    int32_t x = b.input("x", DType::kF32, {m, Dim::fixed(515)});
    int32_t weight = b.input("weight", DType::kF32, {Dim::fixed(515)}, true);
    b.output(b.node("layer_norm", {x, weight, b.input("bias", DType::kF32, {Dim::fixed(515)}, true)}));
  });
  chain("linear + bias + gelu + residual + rms_norm", few, [](op::GraphBuilder& b, Dim m) {
    int32_t x = b.input("x", DType::kF32, {m, Dim::fixed(128)});
    int32_t w = b.input("w", DType::kF32, {Dim::fixed(96), Dim::fixed(128)}, true);
    int32_t bias = b.input("bias", DType::kF32, {Dim::fixed(96)}, true);
    int32_t residual = b.input("residual", DType::kF32, {m, Dim::fixed(96)});
    int32_t gain = b.input("gain", DType::kF32, {Dim::fixed(96)}, true);
    int32_t h = b.node("gelu", {b.node("add", {b.node("linear", {x, w}), bias})});
    b.output(b.node("rms_norm", {b.node("add", {h, residual}), gain}, {{"eps", 1e-6}}));
  });
  chain("residual + rms_norm, both in place", few, [](op::GraphBuilder& b, Dim m) {
    int32_t x = b.input("x", DType::kF32, {m, Dim::fixed(320)});
    int32_t residual = b.input("residual", DType::kF32, {m, Dim::fixed(320)});
    int32_t weight = b.input("weight", DType::kF32, {Dim::fixed(320)}, true);
    int32_t sum = b.node("add", {x, residual});
    b.output(sum, residual);
    b.output(b.node("rms_norm", {sum, weight}, {{"eps", 1e-6}}), x);
  });
  {
    op::GraphBuilder b;  // No symbol, one row, one column.
    int32_t x = b.input("x", DType::kF32, {Dim::fixed(1), Dim::fixed(300)});
    b.output(
        b.node("relu", {b.node("linear", {x, b.input("w", DType::kF32, {Dim::fixed(1), Dim::fixed(300)}, true)})}));
    add("linear of one product", b.finish());
  }
  // Rows that lie apart in memory, as in a slice of a wider tensor.
  auto apart = [&](std::string name, Result<op::Graph> graph, int64_t stride) {
    if (!graph) return;
    graph->inputs[0].strides = {stride, 1};
    all.push_back({std::move(name), *graph});
  };
  apart("add of rows that lie apart", op::makeAdd(few, 96, DType::kF32), 160);
  apart("rms_norm of rows that lie apart", op::makeRmsNorm(few, 1, 256, 1e-6, DType::kF32), 257);
  apart("linear of rows that lie apart", op::makeLinear(few, 64, 96, DType::kF32), 128);
  return all;
}

/// chains(), and what only GPUs have types for.
inline std::vector<Chain> cudaChains() {
  using op::Dim;
  using op::DType;
  std::vector<Chain> all = chains();
  auto add = [&](std::string name, Result<op::Graph> graph) {
    if (graph) all.push_back({std::move(name), *graph});
  };
  op::Symbol one{"M", 1, 1, {1}}, few{"M", 2, 16, {16}}, many{"M", 17, 70, {70}};
  for (DType type : {DType::kBF16, DType::kF16}) {
    const std::string suffix = " " + std::string(op::dtypeName(type));
    add("rms_norm" + suffix, op::makeRmsNorm(few, 1, 1536, 1e-6, type));
    add("rms_norm odd columns" + suffix, op::makeRmsNorm(few, 1, 403, 1e-6, type));
    add("add" + suffix, op::makeAdd(many, 512, type));
    add("linear one row" + suffix, op::makeLinear(one, 96, 512, type));
    add("linear" + suffix, op::makeLinear(few, 128, 384, type));
    add("linear many rows" + suffix, op::makeLinear(many, 136, 200, type));
    add("linear odd" + suffix, op::makeLinear(many, 51, 77, type));
    for (const char* name : {"softmax", "silu", "gelu", "elu"}) {
      op::GraphBuilder b;
      const int32_t m = b.symbol("M", 2, 16, {16});
      b.output(b.node(name, {b.input("x", type, {Dim::symbolic(m), Dim::fixed(520)})}));
      add(name + suffix, b.finish());
    }
  }
  op::GraphBuilder b;
  const int32_t m = b.symbol("M", 2, 40, {40});
  const int32_t x = b.input("x", DType::kBF16, {Dim::symbolic(m), Dim::fixed(128)});
  const int32_t w = b.input("w", DType::kBF16, {Dim::fixed(64), Dim::fixed(128)}, true);
  const int32_t residual = b.input("residual", DType::kBF16, {Dim::symbolic(m), Dim::fixed(64)});
  const int32_t gain = b.input("gain", DType::kBF16, {Dim::fixed(64)}, true);
  const int32_t sum = b.node("add", {b.node("linear", {x, w}), residual});
  b.output(sum, residual);
  b.output(b.node("rms_norm", {sum, gain}, {{"eps", 1e-6}}));
  add("linear + residual in place, then rms_norm bf16", b.finish());
  return all;
}

}  // namespace ktune::test
