#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "ir/op/Builder.h"
#include "ir/op/Reference.h"
#include "op/RandomGraph.h"

namespace ktune::op {
namespace {

using test::Random;

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Runs pieces on three threads.
const ParallelFor& threadedFor() {
  static const ParallelFor kThreaded = [](int64_t count, const std::function<void(int64_t, int64_t)>& body) {
    const int64_t a = count / 3, b = count / 2;
    std::thread first([&] { body(0, a); });
    std::thread second([&] { body(a, b); });
    body(b, count);
    first.join();
    second.join();
  };
  return kThreaded;
}

RefTensor tensor(std::vector<int64_t> shape, std::vector<double> values) {
  return {std::move(shape), std::move(values), {}};
}

RefTensor evaluateOne(const Graph& graph, const std::vector<int64_t>& symbols, const std::vector<RefTensor>& inputs) {
  Result<std::vector<RefTensor>> outputs = evaluateReference(graph, symbols, inputs, serialFor());
  EXPECT_TRUE(outputs) << outputs.status().toString();
  if (!outputs) return {};
  EXPECT_EQ((*outputs)[0].values.size(), (*outputs)[0].bounds.size());
  return (*outputs)[0];
}

Graph unwrap(const Result<Graph>& graph) {
  EXPECT_TRUE(graph) << graph.status().toString();
  return graph ? *graph : Graph();
}

// ---- Values.

TEST(Reference, ElementwiseValuesAndBroadcast) {
  struct Case {
    const char* op;
    std::vector<double> expected;
  };
  const Case cases[] = {{"add", {11, 22, 33, 14, 25, 36}},     {"sub", {-9, -18, -27, -6, -15, -24}},
                        {"mul", {10, 40, 90, 40, 100, 180}},   {"div", {0.1, 0.1, 0.1, 0.4, 0.25, 0.2}},
                        {"maximum", {10, 20, 30, 10, 20, 30}}, {"minimum", {1, 2, 3, 4, 5, 6}}};
  for (const Case& c : cases) {
    GraphBuilder b;
    const int32_t x = b.input("x", DType::kF32, {Dim::fixed(2), Dim::fixed(3)});
    const int32_t y = b.input("y", DType::kF32, {Dim::fixed(3)});
    b.output(b.node(c.op, {x, y}));
    const RefTensor out =
        evaluateOne(unwrap(b.finish()), {}, {tensor({2, 3}, {1, 2, 3, 4, 5, 6}), tensor({3}, {10, 20, 30})});
    EXPECT_EQ(out.values, c.expected) << c.op;
    EXPECT_EQ(out.shape, (std::vector<int64_t>{2, 3}));
  }
  GraphBuilder b;
  const int32_t x = b.input("x", DType::kF32, {Dim::fixed(2), Dim::fixed(1)});
  const int32_t y = b.input("y", DType::kF32, {Dim::fixed(3)});
  b.output(b.node("sub", {y, x}));
  EXPECT_EQ(evaluateOne(unwrap(b.finish()), {}, {tensor({2, 1}, {1, 2}), tensor({3}, {10, 20, 30})}).values,
            (std::vector<double>{9, 19, 29, 8, 18, 28}));
}

// What Python's math module says of each formula.
TEST(Reference, ActivationValues) {
  struct Case {
    const char* op;
    double x, expected;
    std::map<std::string, Attribute> attributes;
  };
  const Case cases[] = {
      {"abs", -3, 3, {}},
      {"exp", 1, 2.718281828459045, {}},
      {"log", 2, 0.6931471805599453, {}},
      {"tanh", 0.5, 0.46211715726000973, {}},
      {"erf", 0.5, 0.5204998778130465, {}},
      {"relu", -2, 0, {}},
      {"relu", 2, 2, {}},
      {"leaky_relu", -2, -0.02, {}},
      {"leaky_relu", -2, -0.5, {{"slope", 0.25}}},
      {"clamp", 5, 2, {{"low", -1.0}, {"high", 2.0}}},
      {"hardtanh", -7, -1, {}},
      {"sigmoid", 1, 0.7310585786300049, {}},
      {"silu", 1, 0.7310585786300049, {}},
      {"gelu", 1, 0.8413447460685429, {}},
      {"gelu", -0.1, -0.0460172162722971, {}},
      {"gelu_tanh", 1, 0.8411919906082768, {}},
      {"elu", -1, -0.6321205588285577, {}},
      {"elu", -1, -1.2642411176571153, {{"alpha", 2.0}}},
      {"selu", -1, -1.1113307378125625, {}},
      {"selu", 1, 1.0507009873554805, {}},
      {"hardsigmoid", 1, 2.0 / 3, {}},
      {"hardsigmoid", -4, 0, {}},
      {"softplus", 1, 1.3132616875182228, {}},
      {"softplus", -800, 0, {}},
      {"softsign", -3, -0.75, {}},
  };
  for (const Case& c : cases) {
    GraphBuilder b;
    b.output(b.node(c.op, {b.input("x", DType::kF64, {Dim::fixed(1)})}, c.attributes));
    const double y = evaluateOne(unwrap(b.finish()), {}, {tensor({1}, {c.x})}).values.at(0);
    EXPECT_NEAR(y, c.expected, 1e-15 * std::max(1.0, std::fabs(c.expected))) << c.op << " " << c.x;
  }
  GraphBuilder b;
  const int32_t gate = b.input("gate", DType::kF64, {Dim::fixed(1)});
  b.output(b.node("silu_mul", {gate, b.input("up", DType::kF64, {Dim::fixed(1)})}));
  EXPECT_NEAR(evaluateOne(unwrap(b.finish()), {}, {tensor({1}, {1}), tensor({1}, {-3})}).values.at(0),
              -3 * 0.7310585786300049, 1e-15);
}

TEST(Reference, RowValues) {
  const auto rowOf = [](const char* op, std::vector<double> x) {
    GraphBuilder b;
    const auto columns = static_cast<int64_t>(x.size());
    b.output(b.node(op, {b.input("x", DType::kF64, {Dim::fixed(1), Dim::fixed(columns)})}));
    return evaluateOne(unwrap(b.finish()), {}, {tensor({1, columns}, std::move(x))});
  };
  const auto near = [](const RefTensor& row, const std::vector<double>& expected) {
    ASSERT_EQ(row.values.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(row.values[i], expected[i], 1e-14) << i;
  };
  near(rowOf("softmax", {1, 2, 3}), {0.09003057317038046, 0.24472847105479767, 0.6652409557748219});
  // The maximum is subtracted: nothing overflows.
  near(rowOf("softmax", {1001, 1002, 1003}), {0.09003057317038046, 0.24472847105479767, 0.6652409557748219});
  near(rowOf("log_softmax", {1, 2, 3}), {-2.40760596444438, -1.4076059644443801, -0.40760596444438013});
  near(rowOf("reduce_mean", {1, 2, 3, 6}), {3});
  near(rowOf("reduce_max", {1, -7, 3, 2}), {3});
  near(rowOf("reduce_min", {1, -7, 3, 2}), {-7});
  EXPECT_TRUE(std::isnan(rowOf("reduce_max", {1, std::nan(""), 3}).values[0]));
  EXPECT_TRUE(std::isnan(rowOf("reduce_min", {std::nan(""), 1, 3}).values[0]));
  GraphBuilder b;
  const int32_t x = b.input("x", DType::kF64, {Dim::fixed(1), Dim::fixed(4)});
  const int32_t weight = b.input("weight", DType::kF64, {Dim::fixed(4)});
  b.output(b.node("layer_norm", {x, weight, b.input("bias", DType::kF64, {Dim::fixed(4)})}));
  near(evaluateOne(unwrap(b.finish()), {},
                   {tensor({1, 4}, {1, 2, 3, 4}), tensor({4}, {2, 2, 2, 2}), tensor({4}, {1, 1, 1, 1})}),
       {-1.6832708399378538, 0.105576386687382, 1.894423613312618, 3.6832708399378538});
}

TEST(Reference, LimitsInTheWrongOrderAreRefused) {
  for (const char* op : {"clamp", "hardtanh"}) {
    GraphBuilder b;
    const int32_t x = b.input("x", DType::kF32, {Dim::fixed(4)});
    b.output(b.node(op, {x}, {{"low", 2.0}, {"high", 1.0}}));
    const Result<Graph> graph = b.finish();
    ASSERT_FALSE(graph);
    EXPECT_NE(graph.error().message().find("'low' must not be above 'high'"), std::string::npos);
  }
}

TEST(Reference, BroadcastAgreesWithIndexArithmetic) {
  // [3, 1, 5] with [4, 1]: element (i, j, k) is x[i, 0, k] - y[j, 0].
  GraphBuilder b;
  const int32_t x = b.input("x", DType::kF64, {Dim::fixed(3), Dim::fixed(1), Dim::fixed(5)});
  const int32_t y = b.input("y", DType::kF64, {Dim::fixed(4), Dim::fixed(1)});
  b.output(b.node("sub", {x, y}));
  const Graph graph = unwrap(b.finish());
  const std::vector<RefTensor> in = test::randomInputs(graph, {}, 3);
  const RefTensor out = evaluateOne(graph, {}, in);
  ASSERT_EQ(out.shape, (std::vector<int64_t>{3, 4, 5}));
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      for (size_t k = 0; k < 5; ++k) {
        EXPECT_EQ(out.values[(i * 4 + j) * 5 + k], in[0].values[i * 5 + k] - in[1].values[j]);
      }
    }
  }
}

TEST(Reference, IntegersWrapAndAreExact) {
  const auto run = [](const char* op, double a, double c) {
    GraphBuilder b;
    const int32_t x = b.input("x", DType::kI32, {Dim::fixed(1)});
    const int32_t y = b.input("y", DType::kI32, {Dim::fixed(1)});
    b.output(b.node(op, {x, y}));
    const RefTensor out = evaluateOne(unwrap(b.finish()), {}, {tensor({1}, {a}), tensor({1}, {c})});
    EXPECT_EQ(out.bounds[0], 0);
    return out.values[0];
  };
  EXPECT_EQ(run("add", 2147483647, 1), -2147483648.0);
  EXPECT_EQ(run("sub", -2147483648.0, 1), 2147483647);
  EXPECT_EQ(run("mul", 123456789, 987654321), -67153019);
  EXPECT_EQ(run("maximum", -5, 3), 3);
  EXPECT_EQ(run("minimum", -5, 3), -5);
}

TEST(Reference, SpecialValues) {
  const double nan = std::nan("");
  const auto run = [](const char* op, int operands, double a, double c) {
    GraphBuilder b;
    const int32_t x = b.input("x", DType::kF32, {});
    const int32_t y = b.input("y", DType::kF32, {});
    b.output(operands == 2 ? b.node(op, {x, y}) : b.node(op, {x}));
    const RefTensor out = evaluateOne(unwrap(b.finish()), {}, {tensor({}, {a}), tensor({}, {c})});
    return std::pair(out.values[0], out.bounds[0]);
  };
  using P = std::pair<double, double>;
  for (const char* op : {"add", "sub", "mul", "div", "maximum", "minimum"}) {
    EXPECT_TRUE(std::isnan(run(op, 2, nan, 1).first)) << op;
    EXPECT_TRUE(std::isnan(run(op, 2, 1, nan).first)) << op;
    EXPECT_EQ(run(op, 2, 1, nan).second, 0) << op;
  }
  EXPECT_EQ(run("add", 2, kInf, 1), (P{kInf, 0}));
  EXPECT_EQ(run("div", 2, 1, 0), (P{kInf, 0}));
  EXPECT_EQ(run("rsqrt", 1, 0, 0), (P{kInf, 0}));
  EXPECT_TRUE(std::isnan(run("sqrt", 1, -1, 0).first));
  EXPECT_FALSE(std::signbit(run("maximum", 2, -0.0, 0.0).first));
  EXPECT_TRUE(std::signbit(run("minimum", 2, 0.0, -0.0).first));
  // Beyond the largest f32 an honest result is infinite: not to be judged.
  EXPECT_EQ(run("mul", 2, 1e30, 1e30).second, kInf);
  EXPECT_LT(run("mul", 2, 1e18, 1e18).second, 1e36);
}

TEST(Reference, SpecialValuesInSums) {
  const Graph linear = unwrap(makeLinear({"M", 1, 4, {4}}, 2, 16, DType::kF32));
  std::vector<RefTensor> in = test::randomInputs(linear, {3}, 1);
  in[0].values[0] = std::nan("");
  in[0].values[16] = kInf;
  const RefTensor out = evaluateOne(linear, {3}, in);
  EXPECT_TRUE(std::isnan(out.values[0]) && std::isnan(out.values[1]));
  EXPECT_TRUE(std::isinf(out.values[2]) && std::isinf(out.values[3]));
  EXPECT_TRUE(std::isfinite(out.values[4]) && std::isfinite(out.values[5]));
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(out.bounds[i], 0) << i;
  EXPECT_GT(out.bounds[4], 0);

  const Graph norm = unwrap(makeRmsNorm({"M", 1, 4, {4}}, 1, 16, 1e-6, DType::kF32));
  std::vector<RefTensor> rows = test::randomInputs(norm, {4}, 2);
  rows[0].values[0] = std::nan("");
  rows[0].values[16] = kInf;
  for (size_t c = 0; c < 16; ++c) rows[0].values[32 + c] = 0;
  rows[0].values[48] = 1e30;  // its square overflows f32: not to be judged
  const RefTensor y = evaluateOne(norm, {4}, rows);
  EXPECT_TRUE(std::isnan(y.values[0]) && std::isnan(y.values[5]));
  EXPECT_TRUE(std::isnan(y.values[16]));
  EXPECT_EQ(y.values[17], 0);
  for (size_t c = 0; c < 16; ++c) {
    EXPECT_EQ(y.values[32 + c], 0);
    EXPECT_LT(y.bounds[32 + c], 1e-40);
    EXPECT_EQ(y.bounds[48 + c], kInf);
  }
}

TEST(Reference, LinearAgreesWithALongDoubleSum) {
  // Sizes round the tile and block sizes, so that every edge is met.
  for (const int64_t m : {1, 2, 3, 4, 5, 9}) {
    for (const int64_t n : {1, 3, 4, 7, 32, 33, 70}) {
      for (const int64_t k : {1, 2, 7, 8, 9, 127, 128, 129, 136, 300}) {
        const Graph graph = unwrap(makeLinear({"M", 1, 16, {16}}, n, k, DType::kF32));
        const std::vector<RefTensor> in = test::randomInputs(graph, {m}, static_cast<uint64_t>(m * 1000 + n * 10 + k));
        const RefTensor out = evaluateOne(graph, {m}, in);
        ASSERT_EQ(out.shape, (std::vector<int64_t>{m, n}));
        const Result<std::vector<RefTensor>> threaded = evaluateReference(graph, {m}, in, threadedFor());
        ASSERT_TRUE(threaded);
        EXPECT_EQ((*threaded)[0].values, out.values);
        EXPECT_EQ((*threaded)[0].bounds, out.bounds);
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            long double sum = 0, magnitude = 0;
            for (int64_t t = 0; t < k; ++t) {
              const long double term = static_cast<long double>(in[0].values[static_cast<size_t>(i * k + t)]) *
                                       in[1].values[static_cast<size_t>(j * k + t)];
              sum += term;
              magnitude += std::fabs(term);
            }
            const auto at = static_cast<size_t>(i * n + j);
            EXPECT_NEAR(out.values[at], static_cast<double>(sum), 1e-14 * static_cast<double>(magnitude) + 1e-300);
            EXPECT_GT(out.bounds[at], 0);
            EXPECT_LT(out.bounds[at], 1e-4 * (1 + static_cast<double>(magnitude)));
          }
        }
      }
    }
  }
}

// Sums as DotEngine asks for, slowly. FAILFROM: the first call that fails.
class SlowEngine final : public DotEngine {
 public:
  int calls = 0, failFrom = 1 << 30;
  Status dots(const double* x, int64_t rows, const double* w, int64_t columns, int64_t k, double* sums,
              double* reaches) override {
    if (++calls >= failFrom) {
      sums[0] = reaches[0] = std::numeric_limits<double>::quiet_NaN();
      return unavailable("no engine");
    }
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        double lanes[8] = {}, most[8] = {};
        const double* a = x + i * k;
        const double* b = w + j * k;
        for (int64_t t = 0; t < k; ++t) {
          lanes[t % 8] += a[t] * b[t];
          if (t % 128 != 127 && t + 1 != k) continue;
          for (int l = 0; l < 8; ++l) most[l] = std::max(most[l], std::fabs(lanes[l]));
        }
        double sum = 0, reach = 0;
        for (int l = 0; l < 8; ++l) sum += lanes[l], reach += most[l];
        sums[i * columns + j] = sum;
        reaches[i * columns + j] = reach;
      }
    }
    return Status::ok();
  }
};

TEST(Reference, AnEngineGivesWhatTheHostGives) {
  // The second product has operands with errors of their own on both sides.
  GraphBuilder b;
  const int32_t x = b.input("x", DType::kF32, {Dim::fixed(96), Dim::fixed(1200)});
  const int32_t w = b.input("w", DType::kF32, {Dim::fixed(1200), Dim::fixed(1200)}, true);
  const int32_t v = b.input("v", DType::kF32, {Dim::fixed(1200), Dim::fixed(1200)}, true);
  b.output(b.node("linear", {b.node("linear", {x, w}), b.node("mul", {w, v})}));
  const Graph graph = unwrap(b.finish());
  const std::vector<RefTensor> in = test::randomInputs(graph, {}, 5);
  const Result<std::vector<RefTensor>> host = evaluateReference(graph, {}, in, serialFor());
  SlowEngine engine;
  const Result<std::vector<RefTensor>> byEngine = evaluateReference(graph, {}, in, threadedFor(), &engine);
  ASSERT_TRUE(host && byEngine);
  EXPECT_EQ(engine.calls, 1 + 3);
  ASSERT_EQ((*byEngine)[0].shape, (*host)[0].shape);
  for (size_t i = 0; i < (*host)[0].values.size(); ++i) {
    ASSERT_NEAR((*byEngine)[0].values[i], (*host)[0].values[i], 1e-12 * (1 + std::fabs((*host)[0].values[i])));
    ASSERT_NEAR((*byEngine)[0].bounds[i], (*host)[0].bounds[i], 1e-12 * (1 + (*host)[0].bounds[i]));
  }
  // One that fails is done without, whenever it fails.
  SlowEngine failing;
  failing.failFrom = 3;
  const Result<std::vector<RefTensor>> without = evaluateReference(graph, {}, in, serialFor(), &failing);
  ASSERT_TRUE(without);
  EXPECT_EQ(failing.calls, 3);
  EXPECT_TRUE(std::isfinite((*without)[0].values[0]));
  EXPECT_NEAR((*without)[0].bounds[0], (*host)[0].bounds[0], 1e-12 * (1 + (*host)[0].bounds[0]));
  // Small products stay on the host.
  SlowEngine idle;
  const Graph small = unwrap(makeLinear({"M", 1, 16, {16}}, 64, 64, DType::kF32));
  ASSERT_TRUE(evaluateReference(small, {16}, test::randomInputs(small, {16}, 1), serialFor(), &idle));
  EXPECT_EQ(idle.calls, 0);
}

TEST(Reference, RefusesWrongInputs) {
  const Graph graph = unwrap(makeAdd({"M", 2, 4, {4}}, 3, DType::kF32));
  const std::vector<RefTensor> good = test::randomInputs(graph, {2}, 1);
  const auto refused = [&](const std::vector<int64_t>& symbols, const std::vector<RefTensor>& inputs, const char* why) {
    const Result<std::vector<RefTensor>> result = evaluateReference(graph, symbols, inputs, serialFor());
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(result.error().message().find(why), std::string::npos) << result.error().message();
  };
  EXPECT_TRUE(evaluateReference(graph, {2}, good, serialFor()));
  refused({}, good, "1 symbol values needed, got 0");
  refused({5}, good, "symbol 'M' must be from 2 to 4, is 5");
  refused({2}, {good[0]}, "2 inputs needed, got 1");
  refused({3}, good, "input 'a' must have shape [M, 3]");
  std::vector<RefTensor> shortBounds = good;
  shortBounds[1].bounds = {0};
  refused({2}, shortBounds, "input 'b'");
}

TEST(Reference, ToleranceClassScalesTheBound) {
  Graph graph = unwrap(makeAdd({"M", 1, 4, {4}}, 3, DType::kF32));
  const std::vector<RefTensor> in = test::randomInputs(graph, {2}, 1);
  graph.numerics.tolerance = ToleranceClass::kStrict;
  const RefTensor strict = evaluateOne(graph, {2}, in);
  graph.numerics.tolerance = ToleranceClass::kDefault;
  const RefTensor normal = evaluateOne(graph, {2}, in);
  graph.numerics.tolerance = ToleranceClass::kRelaxed;
  const RefTensor relaxed = evaluateOne(graph, {2}, in);
  for (size_t i = 0; i < strict.bounds.size(); ++i) {
    EXPECT_GT(strict.bounds[i], 0);
    EXPECT_EQ(normal.bounds[i], 2 * strict.bounds[i]);
    EXPECT_EQ(relaxed.bounds[i], 8 * strict.bounds[i]);
    EXPECT_EQ(normal.values[i], strict.values[i]);
  }
}

// ---- Bounds: honest implementations pass, those one precision lower fail.

enum class Data { kNormal, kUniform, kPositive, kCancelling, kAlternating, kMixedMagnitudes, kZipf };
constexpr Data kAllData[] = {Data::kNormal,      Data::kUniform,         Data::kPositive, Data::kCancelling,
                             Data::kAlternating, Data::kMixedMagnitudes, Data::kZipf};

const char* nameOf(Data data) {
  switch (data) {
    case Data::kNormal:
      return "normal";
    case Data::kUniform:
      return "uniform";
    case Data::kPositive:
      return "positive";
    case Data::kCancelling:
      return "cancelling";
    case Data::kAlternating:
      return "alternating";
    case Data::kMixedMagnitudes:
      return "mixed magnitudes";
    case Data::kZipf:
      return "zipf";
  }
  return "";
}

/// ROWS rows of COLUMNS f32 values. SECOND: the other operand of a product (it decides the signs of the terms).
std::vector<double> draw(Data data, int64_t rows, int64_t columns, bool second, Random& random) {
  std::vector<double> values;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      double v = random.normal();
      switch (data) {
        case Data::kNormal:
          break;
        case Data::kUniform:
          v = 2 * random.unit() - 1;
          break;
        case Data::kPositive:
          v = random.unit();
          break;
        case Data::kCancelling:  // large sums of one sign, undone by the second half
          v = 1 + 0.01 * v;
          if (second && c >= columns / 2) v = -v;
          break;
        case Data::kAlternating:
          v = 1 + 0.01 * v;
          if (second && c % 2 == 1) v = -v;
          break;
        case Data::kMixedMagnitudes:
          v = std::copysign(std::pow(10.0, 6 * random.unit() - 3), v);
          break;
        case Data::kZipf:
          v /= 1 + static_cast<double>(c);
          break;
      }
      values.push_back(roundTo(DType::kF32, v));
    }
  }
  return values;
}

using Terms = std::function<float(int64_t)>;
struct Order {
  const char* name;
  float (*sum)(int64_t n, const Terms& term);
};

float pairwise(int64_t begin, int64_t end, const Terms& term) {
  if (end - begin == 1) return term(begin);
  const int64_t middle = begin + (end - begin) / 2;
  return pairwise(begin, middle, term) + pairwise(middle, end, term);
}

template <int kLanes>
float inLanes(int64_t n, const Terms& term) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % kLanes] += term(i);
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

const Order kOrders[] = {
    {"sequential",
     [](int64_t n, const Terms& term) {
       float sum = 0;
       for (int64_t i = 0; i < n; ++i) sum += term(i);
       return sum;
     }},
    {"backwards",
     [](int64_t n, const Terms& term) {
       float sum = 0;
       for (int64_t i = n; i-- > 0;) sum += term(i);
       return sum;
     }},
    {"pairwise", [](int64_t n, const Terms& term) { return pairwise(0, n, term); }},
    {"16 lanes", inLanes<16>},
    {"4 lanes", inLanes<4>},
    {"128 lanes", inLanes<128>},
    {"lanes of four",  // 32 threads, each takes four neighbours
     [](int64_t n, const Terms& term) {
       float lanes[32] = {};
       for (int64_t i = 0; i < n; ++i) lanes[i / 4 % 32] += term(i);
       float sum = 0;
       for (float lane : lanes) sum += lane;
       return sum;
     }},
    {"blocks of 32",  // a tile's sum is added to a running one
     [](int64_t n, const Terms& term) {
       float sum = 0;
       for (int64_t i = 0; i < n; i += 32) {
         float block = 0;
         for (int64_t j = i; j < std::min(n, i + 32); ++j) block += term(j);
         sum += block;
       }
       return sum;
     }},
    {"split in four",
     [](int64_t n, const Terms& term) {
       float sum = 0;
       for (int64_t part = 0; part < 4; ++part) {
         float block = 0;
         for (int64_t j = part * n / 4; j < (part + 1) * n / 4; ++j) block += term(j);
         sum += block;
       }
       return sum;
     }},
};

/// Rounds to BITS significant bits, as tensor cores do with f32 operands (tf32: 11 with the hidden one).
double toBits(double value, int bits) {
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

TEST(Bounds, LinearAcceptsF32AndRefusesLess) {
  constexpr int64_t kRows = 2, kColumns = 12;
  for (const int64_t k : {128, 512, 1000, 2048, 4096, 8192}) {
    for (const Data data : kAllData) {
      Random random(static_cast<uint64_t>(k) * 10 + static_cast<uint64_t>(data));
      Graph graph = unwrap(makeLinear({"M", 1, 16, {16}}, kColumns, k, DType::kF32));
      std::vector<RefTensor> in = {tensor({kRows, k}, draw(data, kRows, k, false, random)),
                                   tensor({kColumns, k}, draw(data, kColumns, k, true, random))};
      // Honest ones pass even the strict class.
      graph.numerics.tolerance = ToleranceClass::kStrict;
      const RefTensor strict = evaluateOne(graph, {kRows}, in);
      const auto worst = [&](const Order& order, int bits, const RefTensor& ref) {
        double most = 0;
        for (int64_t i = 0; i < kRows; ++i) {
          for (int64_t j = 0; j < kColumns; ++j) {
            const auto operand = [&](size_t which, int64_t at) {
              const double v = in[which].values[static_cast<size_t>(at)];
              return static_cast<float>(bits == 24 ? v : toBits(v, bits));
            };
            const float y = order.sum(k, [&](int64_t t) { return operand(0, i * k + t) * operand(1, j * k + t); });
            const auto at = static_cast<size_t>(i * kColumns + j);
            most = std::max(most, std::fabs(y - ref.values[at]) / ref.bounds[at]);
          }
        }
        return most;
      };
      for (const Order& order : kOrders) {
        EXPECT_LT(worst(order, 24, strict), 1) << "k " << k << " " << nameOf(data) << " " << order.name;
      }
      // Lower precision fails the default class on data whose signs are mixed, at every length. (Where all terms
      // have one sign the roundings of the inputs cancel against a large sum; the guard uses both.)
      graph.numerics.tolerance = ToleranceClass::kDefault;
      const RefTensor normal = evaluateOne(graph, {kRows}, in);
      if (data == Data::kNormal || data == Data::kUniform) {
        EXPECT_GT(worst(kOrders[2], 11, normal), 1) << "tf32, k " << k << " " << nameOf(data);
        EXPECT_GT(worst(kOrders[2], 8, normal), 8) << "bf16, k " << k << " " << nameOf(data);
      }
    }
  }
}

TEST(Bounds, RmsNormAcceptsF32AndRefusesLess) {
  constexpr int64_t kRows = 3;
  for (const int64_t columns : {128, 1000, 2048, 4096, 8192}) {
    for (const Data data : kAllData) {
      Random random(static_cast<uint64_t>(columns) * 10 + static_cast<uint64_t>(data));
      Graph graph = unwrap(makeRmsNorm({"M", 1, 16, {16}}, 1, columns, 1e-6, DType::kF32));
      const std::vector<RefTensor> in = {tensor({kRows, columns}, draw(data, kRows, columns, false, random)),
                                         tensor({columns}, draw(Data::kNormal, 1, columns, false, random))};
      graph.numerics.tolerance = ToleranceClass::kStrict;
      const RefTensor strict = evaluateOne(graph, {kRows}, in);
      const auto worst = [&](const Order& order, int bits, const RefTensor& ref) {
        double most = 0;
        for (int64_t row = 0; row < kRows; ++row) {
          const auto x = [&](int64_t c) {
            const double v = in[0].values[static_cast<size_t>(row * columns + c)];
            return static_cast<float>(bits == 24 ? v : toBits(v, bits));
          };
          const float sum = order.sum(columns, [&](int64_t c) { return x(c) * x(c); });
          const float mean = sum * (1.0f / static_cast<float>(columns)) + 1e-6f;
          const float scale = 1.0f / std::sqrt(mean);
          for (int64_t c = 0; c < columns; ++c) {
            const auto at = static_cast<size_t>(row * columns + c);
            const float y = x(c) * scale * static_cast<float>(in[1].values[static_cast<size_t>(c)]);
            most = std::max(most, std::fabs(y - ref.values[at]) / ref.bounds[at]);
          }
        }
        return most;
      };
      for (const Order& order : kOrders) {
        // Running sums in f32 lose a tail that decays like 1/c^2 altogether: that is no rounding at random.
        const std::string_view name = order.name;
        if (data == Data::kZipf && (name == "sequential" || name == "4 lanes")) continue;
        EXPECT_LT(worst(order, 24, strict), 1) << columns << " " << nameOf(data) << " " << name;
      }
      graph.numerics.tolerance = ToleranceClass::kDefault;
      const RefTensor normal = evaluateOne(graph, {kRows}, in);
      EXPECT_GT(worst(kOrders[2], 11, normal), 1) << "tf32 " << columns << " " << nameOf(data);
      EXPECT_GT(worst(kOrders[2], 8, normal), 8) << "bf16 " << columns << " " << nameOf(data);
    }
  }
}

TEST(Bounds, ReduceSumAcceptsF32) {
  for (const int64_t columns : {1, 5, 128, 1000, 8192}) {
    for (const Data data : kAllData) {
      Random random(static_cast<uint64_t>(columns) * 10 + static_cast<uint64_t>(data));
      GraphBuilder b;
      b.output(b.node("reduce_sum", {b.input("x", DType::kF32, {Dim::fixed(4), Dim::fixed(columns)})}));
      b.numerics().tolerance = ToleranceClass::kStrict;
      const std::vector<RefTensor> in = {tensor({4, columns}, draw(data, 4, columns, true, random))};
      const RefTensor ref = evaluateOne(unwrap(b.finish()), {}, in);
      ASSERT_EQ(ref.shape, (std::vector<int64_t>{4, 1}));
      for (const Order& order : kOrders) {
        for (size_t row = 0; row < 4; ++row) {
          const double* x = in[0].values.data() + row * static_cast<size_t>(columns);
          const float y = order.sum(columns, [x](int64_t c) { return static_cast<float>(x[c]); });
          EXPECT_LE(std::fabs(y - ref.values[row]), ref.bounds[row])
              << columns << " " << nameOf(data) << " " << order.name;
        }
      }
    }
  }
}

TEST(Bounds, LowPrecisionResults) {
  // bf16 tensors, f32 sums: rounding the exact result once passes the strict class; bf16 sums fail the default one.
  constexpr int64_t kK = 2048, kColumns = 16;
  Graph graph = unwrap(makeLinear({"M", 1, 1, {1}}, kColumns, kK, DType::kBF16));
  const std::vector<RefTensor> in = test::randomInputs(graph, {1}, 5);
  graph.numerics.tolerance = ToleranceClass::kStrict;
  const RefTensor strict = evaluateOne(graph, {1}, in);
  double most = 0;
  for (size_t j = 0; j < kColumns; ++j) {
    EXPECT_LE(std::fabs(roundTo(DType::kBF16, strict.values[j]) - strict.values[j]), strict.bounds[j]);
    double sum = 0;
    for (size_t t = 0; t < kK; ++t) sum = roundTo(DType::kBF16, sum + in[0].values[t] * in[1].values[j * kK + t]);
    most = std::max(most, std::fabs(sum - strict.values[j]) / (2 * strict.bounds[j]));
  }
  EXPECT_GT(most, 1);
}

TEST(Bounds, ElementwisePropagation) {
  // Move the operands inside their bounds: the result moves inside its own.
  Random random(3);
  for (const char* op : {"add", "sub", "mul", "div", "maximum", "minimum", "neg", "sqrt", "rsqrt"}) {
    const OperatorDef& def = *findOperator(op);
    GraphBuilder b;
    std::vector<int32_t> ids;
    std::vector<RefTensor> in;
    for (int i = 0; i < def.operandCount; ++i) {
      ids.push_back(b.input("x" + std::to_string(i), DType::kF32, {Dim::fixed(500)}));
      RefTensor t = tensor({500}, {});
      for (int e = 0; e < 500; ++e) {
        const bool positive = std::string_view(op).ends_with("sqrt");
        t.values.push_back(roundTo(DType::kF32, positive ? 0.1 + random.unit() : random.normal()));
        t.bounds.push_back(1e-6 * random.unit());
      }
      in.push_back(std::move(t));
    }
    b.output(b.node(op, ids));
    b.numerics().tolerance = ToleranceClass::kStrict;
    const RefTensor ref = evaluateOne(unwrap(b.finish()), {}, in);
    for (size_t e = 0; e < 500; ++e) {
      double moved[2] = {};
      for (size_t i = 0; i < in.size(); ++i) {
        moved[i] = in[i].values[e] + (random.chance(50) ? 1 : -1) * in[i].bounds[e];
      }
      const double y = def.scalar(moved[0], moved[1]);
      // First order: leave a little for the second.
      const double slack = 1.01 + (std::isfinite(ref.bounds[e]) ? 0 : 1);
      EXPECT_LE(std::fabs(y - ref.values[e]), ref.bounds[e] * slack + 1e-9) << op << " " << moved[0] << " " << moved[1];
    }
  }
}

// ---- Composites agree with their expansion.

double relativeTo(double a, double b) {
  return b == 0 ? (a == 0 ? 1 : kInf) : a / b;
}

TEST(Reference, CompositesAgreeWithTheirExpansion) {
  int compared = 0, nodes = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const Graph graph = test::randomGraph(seed);
    Random random(seed);
    std::vector<int64_t> symbols;
    for (const Symbol& s : graph.symbols) symbols.push_back(random.between(s.min, s.max));
    const std::vector<RefTensor> in = test::randomInputs(graph, symbols, seed, seed % 2 == 0);
    const Result<Graph> expanded = expand(graph);
    ASSERT_TRUE(expanded);
    const auto a = evaluateReference(graph, symbols, in, serialFor());
    const auto b = evaluateReference(*expanded, symbols, in, threadedFor());
    ASSERT_TRUE(a) << a.error().toString();
    ASSERT_TRUE(b) << b.error().toString();
    nodes += static_cast<int>(graph.nodes.size());
    for (size_t o = 0; o < a->size(); ++o) {
      const RefTensor &x = (*a)[o], &y = (*b)[o];
      ASSERT_EQ(x.shape, y.shape);
      for (size_t i = 0; i < x.values.size(); ++i) {
        const double va = x.values[i], vb = y.values[i];
        ASSERT_FALSE(std::isnan(x.bounds[i]) || x.bounds[i] < 0) << seed;
        ASSERT_FALSE(std::isnan(y.bounds[i]) || y.bounds[i] < 0) << seed;
        if (std::isinf(x.bounds[i]) || std::isinf(y.bounds[i])) continue;
        if (!std::isfinite(va) || !std::isfinite(vb)) {
          EXPECT_TRUE((std::isnan(va) && std::isnan(vb)) || va == vb) << seed << " " << va << " " << vb;
          continue;
        }
        ++compared;
        // What cancels keeps the error of what it came from, which the bound knows: the reference's own roundings
        // are all of it where the contract is in f64.
        const double share = in[0].values.empty() || graph.inputs[0].type.dtype == DType::kF64 ? 1 : 1e-6;
        EXPECT_LE(std::fabs(va - vb), 1e-12 * std::fabs(va) + share * std::min(x.bounds[i], y.bounds[i]))
            << seed << " " << va << " " << vb << " " << graph.nodes[0].op << " " << graph.nodes.back().op;
      }
    }
  }
  EXPECT_GT(compared, 20000);
  EXPECT_GT(nodes, 2000);
}

TEST(Bounds, CompositeAndExpansionAreAlike) {
  // Neither may be a loophole of the other: within a small factor on average and for each element. In 16 bits the
  // expansion rounds every intermediate, the composite only the result.
  struct Case {
    DType dtype;
    double most;
  };
  for (const Case& c : {Case{DType::kF32, 4}, Case{DType::kF64, 4}, Case{DType::kBF16, 8}, Case{DType::kF16, 8}}) {
    for (const int64_t columns : {8, 128, 1024}) {
      std::vector<Graph> graphs = {unwrap(makeRmsNorm({"M", 1, 4, {4}}, 1, columns, 1e-6, c.dtype)),
                                   unwrap(makeLinear({"M", 1, 4, {4}}, 24, columns, c.dtype))};
      for (Graph& graph : graphs) {
        if (c.dtype == DType::kF64) graph.numerics.accumulate = DType::kF64;
        const std::vector<RefTensor> in = test::randomInputs(graph, {4}, 9);
        const RefTensor a = evaluateOne(graph, {4}, in), b = evaluateOne(unwrap(expand(graph)), {4}, in);
        for (size_t i = 0; i < a.bounds.size(); ++i) {
          const double ratio = relativeTo(a.bounds[i], b.bounds[i]);
          EXPECT_LE(ratio, c.most) << label(graph) << " " << i;
          EXPECT_GE(ratio, 1 / c.most) << label(graph) << " " << i;
        }
      }
    }
  }
}

TEST(Bounds, CompositesInRandomGraphsAreAlike) {
  test::RandomGraphOptions options;
  options.dtypes = {DType::kF32};
  double most = 1, least = 1;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Graph graph = test::randomGraph(seed, options);
    std::vector<int64_t> symbols;
    for (const Symbol& s : graph.symbols) symbols.push_back(s.max);
    const std::vector<RefTensor> in = test::randomInputs(graph, symbols, seed, true);
    const RefTensor a = evaluateOne(graph, symbols, in), b = evaluateOne(unwrap(expand(graph)), symbols, in);
    for (size_t i = 0; i < a.bounds.size(); ++i) {
      if (std::isinf(a.bounds[i]) && std::isinf(b.bounds[i])) continue;
      const double ratio = relativeTo(a.bounds[i], b.bounds[i]);
      if (std::isinf(a.bounds[i]) || std::isinf(b.bounds[i])) continue;  // a pole touched by one of them only
      most = std::max(most, ratio);
      least = std::min(least, ratio);
      if (ratio < 8 && ratio > 1.0 / 8) continue;
      std::string ops;
      for (const Node& node : graph.nodes) ops += node.op + " ";
      ADD_FAILURE() << seed << ": " << ops << a.values[i] << " +- " << a.bounds[i] << ", expanded " << b.bounds[i];
      break;
    }
  }
  EXPECT_LT(most, 8);
  EXPECT_GT(least, 1.0 / 8);
}

}  // namespace
}  // namespace ktune::op
