#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "ir/op/Builder.h"
#include "ir/op/Graph.h"
#include "ir/op/Operator.h"
#include "op/RandomGraph.h"

namespace ktune::op {
namespace {

Graph chain() {
  GraphBuilder b;
  const int32_t m = b.symbol("M", 1, 16, {1, 16});
  const int32_t x = b.input("x", DType::kF32, {Dim::symbolic(m), Dim::fixed(4096)});
  const int32_t w = b.input("weight", DType::kF32, {Dim::fixed(4096)}, /*constant=*/true);
  b.output(b.node("rms_norm", {x, w}, {{"eps", 1e-6}}, "y"));
  Result<Graph> graph = b.finish();
  EXPECT_TRUE(graph) << graph.status().toString();
  return graph ? *graph : Graph();
}

TEST(Graph, BuildersVerify) {
  const Symbol tokens{"M", 1, 2048, {1, 16, 2048}};
  const Result<Graph> norm = makeRmsNorm(tokens, 32, 128, 1e-6, DType::kF32);
  ASSERT_TRUE(norm) << norm.error().toString();
  EXPECT_EQ(label(*norm), "rms_norm_f32_32Mx128");
  EXPECT_EQ(norm->inputs[0].name, "x");
  EXPECT_EQ(norm->inputs[1].name, "weight");
  EXPECT_EQ(norm->nodes[0].result, "y");
  const Result<Graph> linear = makeLinear(tokens, 6144, 4096, DType::kF32);
  ASSERT_TRUE(linear) << linear.error().toString();
  EXPECT_EQ(label(*linear), "linear_f32_Mx6144x4096");
  const Result<Graph> add = makeAdd(tokens, 4096, DType::kBF16);
  ASSERT_TRUE(add) << add.error().toString();
  EXPECT_EQ(label(*add), "add_bf16_Mx4096");
  EXPECT_EQ(add->inputs[0].name, "a");
  EXPECT_EQ(label(chain()), "rms_norm_f32_Mx4096");
  EXPECT_EQ(label(Graph()), "invalid");
}

TEST(Graph, LabelOfLongChainsAndScalars) {
  GraphBuilder b;
  int32_t v = b.node("constant", {}, {{"value", 2.0}});
  for (int i = 0; i < 9; ++i) v = b.node("neg", {v});
  b.output(v);
  const Result<Graph> graph = b.finish();
  ASSERT_TRUE(graph) << graph.error().toString();
  EXPECT_EQ(label(*graph), "constant_neg_neg_neg_neg_neg_and4_f32_scalar");
}

TEST(Graph, FinishNormalises) {
  GraphBuilder b;
  const int32_t m = b.symbol("M", 1, 16);
  const int32_t x = b.input("x", DType::kF32, {Dim::symbolic(m), Dim::fixed(8)});
  const int32_t w = b.input("w", DType::kF32, {Dim::fixed(8)});
  b.graph().inputs[0].strides = {8, 1};
  b.output(b.node("rms_norm", {x, w}));
  b.output(b.node("rms_norm", {x, w}, {{"eps", int64_t{1}}}));
  const Result<Graph> graph = b.finish();
  ASSERT_TRUE(graph) << graph.error().toString();
  EXPECT_EQ(graph->symbols[0].edges, std::vector<int64_t>{16});
  EXPECT_TRUE(graph->inputs[0].strides.empty());
  EXPECT_EQ(graph->nodes[0].attributes.at("eps"), Attribute(1e-6));
  EXPECT_EQ(graph->nodes[1].attributes.at("eps"), Attribute(1.0));
  EXPECT_EQ(graph->nodes[0].result, "v2");
  EXPECT_TRUE(normalised(*graph) == *graph);
}

TEST(Graph, InputAfterNodeIsRefused) {
  GraphBuilder b;
  const int32_t x = b.input("x", DType::kF32, {Dim::fixed(8)});
  b.output(b.node("neg", {x}));
  b.input("late", DType::kF32, {});
  const Result<Graph> graph = b.finish();
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().message(), "inputs: add all of them before the first node (value ids depend on it)");
}

struct BadCase {
  std::string expected;  ///< A fragment of the message.
  std::function<void(Graph&)> change;
  StatusCode code = StatusCode::kInvalidArgument;
};

TEST(Graph, VerifyNamesWhatIsWrong) {
  const int64_t huge = int64_t{1} << 62;
  const BadCase cases[] = {
      {"symbols[0] '1M': name '1M' must be a letter", [](Graph& g) { g.symbols[0].name = "1M"; }},
      {"name '' must be", [](Graph& g) { g.symbols[0].name = ""; }},
      {"symbols[1] 'M': name 'M' is used twice", [](Graph& g) { g.symbols.push_back(g.symbols[0]); }},
      {"symbols[0] 'M': min must be at least 1, is 0", [](Graph& g) { g.symbols[0].min = 0; }},
      {"max must be at least min (17), is 16", [](Graph& g) { g.symbols[0].min = 17; }},
      {"max must be at most 2^62", [=](Graph& g) { g.symbols[0].max = huge + 1; }},
      {"the last edge must equal max (17), is 16", [](Graph& g) { g.symbols[0].max = 17; }},
      {"edges[1] is 1",
       [](Graph& g) {
         g.symbols[0].edges = {1, 1, 16};
       }},
      {"edges[0] is 0",
       [](Graph& g) {
         g.symbols[0].edges = {0, 16};
       }},
      {"more than 4096 buckets",
       [](Graph& g) {
         g.symbols[0].max = 5000;
         g.symbols[0].edges.clear();
         for (int64_t e = 1; e <= 5000; ++e) g.symbols[0].edges.push_back(e);
       }},
      {"symbols: at most 8 are allowed, got 9",
       [](Graph& g) {
         for (int i = 0; i < 8; ++i) g.symbols.push_back({"S" + std::to_string(i), 1, 1, {1}});
       }},
      {"inputs[1] 'x': name 'x' is used twice", [](Graph& g) { g.inputs[1].name = "x"; }},
      {"inputs[0] 'a b': name 'a b'", [](Graph& g) { g.inputs[0].name = "a b"; }},
      {"inputs[0] 'x': shape[1] must be at least 1, is 0", [](Graph& g) { g.inputs[0].type.shape[1].factor = 0; }},
      {"inputs[0] 'x': shape[0]: symbol index 1 is not one of the 1",
       [](Graph& g) { g.inputs[0].type.shape[0].symbol = 1; }},
      {"symbol index -2", [](Graph& g) { g.inputs[0].type.shape[0].symbol = -2; }},
      {"shape has 9 dims; at most 8", [](Graph& g) { g.inputs[0].type.shape.assign(9, Dim::fixed(1)); }},
      {"inputs[0] 'x': shape has more than 2^62 elements", [=](Graph& g) { g.inputs[0].type.shape[1].factor = huge; }},
      {"more than 2^62 elements", [=](Graph& g) { g.inputs[0].type.shape[0].factor = huge; }},
      {"strides has 1 entries; give one for each of the 2 dims", [](Graph& g) { g.inputs[0].strides = {1}; }},
      {"strides[1] must be at least 1, is 0; write a broadcast",
       [](Graph& g) {
         g.inputs[0].strides = {4096, 0};
       }},
      {"strides overlap: stride 4095 is less than the 4096",
       [](Graph& g) {
         g.inputs[0].strides = {4095, 1};
       }},
      {"strides reach past 2^62",
       [=](Graph& g) {
         g.inputs[0].strides = {huge / 2, 1};
       }},
      {"alignment must be a power of two from 1 to 2^30 bytes, is 48",
       [](Graph& g) { g.inputs[0].alignmentBytes = 48; }},
      {"is 0", [](Graph& g) { g.inputs[0].alignmentBytes = 0; }},
      {"inputs[0] 'x': dtype number 77", [](Graph& g) { g.inputs[0].type.dtype = static_cast<DType>(77); }},
      {"inputs: at most 64", [](Graph& g) { g.inputs.resize(65); }},
      {"nodes: at most 1024 are allowed, got 1025; split", [](Graph& g) { g.nodes.resize(1025); }},
      {"nodes[0] (rmsnorm): unknown operator 'rmsnorm'; did you mean 'rms_norm'? known: add, sub,",
       [](Graph& g) { g.nodes[0].op = "rmsnorm"; }},
      {"unknown operator 'frobnicate'; known: add", [](Graph& g) { g.nodes[0].op = "frobnicate"; }},
      {"nodes[0] (rms_norm): takes 2 operands, got 1", [](Graph& g) { g.nodes[0].operands.pop_back(); }},
      {"nodes[0] (rms_norm): operand 1 is value 2, which is not", [](Graph& g) { g.nodes[0].operands[1] = 2; }},
      {"operand 0 is value -1", [](Graph& g) { g.nodes[0].operands[0] = -1; }},
      {"nodes[0] (rms_norm): operand 1 'weight' must have shape [4096], has [4097]",
       [](Graph& g) { g.inputs[1].type.shape[0].factor = 4097; }},
      {"operand 1 'weight' must have the dtype of operand 0, f32, has bf16",
       [](Graph& g) { g.inputs[1].type.dtype = DType::kBF16; }},
      {"operand 0 'x' must have a last dim that is static, has shape [4096, M]",
       [](Graph& g) { std::swap(g.inputs[0].type.shape[0], g.inputs[0].type.shape[1]); }},
      {"rms_norm has no dtype i8; use f64", [](Graph& g) { g.inputs[0].type.dtype = DType::kI8; },
       StatusCode::kUnsupported},
      {"unknown attribute 'epsilon'; known: eps", [](Graph& g) { g.nodes[0].attributes["epsilon"] = 1.0; }},
      {"attribute 'eps' must be a number", [](Graph& g) { g.nodes[0].attributes["eps"] = std::string("1e-6"); }},
      {"attribute 'eps' must be a number", [](Graph& g) { g.nodes[0].attributes["eps"] = int64_t{1}; }},
      {"attribute 'eps' must be finite", [](Graph& g) { g.nodes[0].attributes["eps"] = std::nan(""); }},
      {"attribute 'eps' must not be -0", [](Graph& g) { g.nodes[0].attributes["eps"] = -0.0; }},
      {"attribute 'eps' must not be negative", [](Graph& g) { g.nodes[0].attributes["eps"] = -1e-6; }},
      {"nodes[0] (constant): attribute 'value' (the number) is missing",
       [](Graph& g) {
         g.nodes[0] = {"constant", {}, {}, "y"};
       }},
      {"attribute 'dtype': unknown dtype 'half'",
       [](Graph& g) {
         g.nodes[0] = {"constant", {}, {{"value", 1.0}, {"dtype", std::string("half")}}, "y"};
       }},
      {"attribute 'dtype' must be printable",
       [](Graph& g) {
         g.nodes[0] = {"constant", {}, {{"value", 1.0}, {"dtype", std::string("\xff")}}, "y"};
       }},
      {"too large for dtype f16",
       [](Graph& g) {
         g.nodes[0] = {"constant", {}, {{"value", 1e6}, {"dtype", std::string("f16")}}, "y"};
       }},
      {"must be an integer of 32 bits",
       [](Graph& g) {
         g.nodes[0] = {"constant", {}, {{"value", 1.5}, {"dtype", std::string("i32")}}, "y"};
       }},
      {"nodes[0] (rms_norm): name 'x' is used twice", [](Graph& g) { g.nodes[0].result = "x"; }},
      {"operand 1 'weight' of shape [4095] does not broadcast with operand 0 'x' of shape [M, 4096]",
       [](Graph& g) {
         g.nodes[0] = {"add", {0, 1}, {}, "y"};
         g.inputs[1].type.shape[0].factor = 4095;
       }},
      {"add has no dtype bool; use f64, f32, f16 or bf16, or i32",
       [](Graph& g) {
         g.nodes[0] = {"add", {0, 0}, {}, "y"};
         g.inputs[0].type.dtype = DType::kBool;
       },
       StatusCode::kUnsupported},
      {"sqrt has no dtype i32",
       [](Graph& g) {
         g.nodes[0] = {"sqrt", {0}, {}, "y"};
         g.inputs[0].type.dtype = DType::kI32;
       },
       StatusCode::kUnsupported},
      {"nodes[0] (linear): operand 1 'weight' must have shape [N, 4096] (N static), has [4096]",
       [](Graph& g) {
         g.nodes[0] = {"linear", {0, 1}, {}, "y"};
       }},
      {"(N static), has [4096, 5]",
       [](Graph& g) {
         g.nodes[0] = {"matmul", {0, 1}, {}, "y"};
         g.inputs[1].type.shape.push_back(Dim::fixed(5));
       }},
      {"outputs: give at least one", [](Graph& g) { g.outputs.clear(); }},
      {"outputs[0]: value 3 does not exist; there are 3", [](Graph& g) { g.outputs[0].value = 3; }},
      {"outputs[0] 'x': is an input", [](Graph& g) { g.outputs[0].value = 0; }},
      {"outputs[1] 'y': is an output already", [](Graph& g) { g.outputs.push_back(g.outputs[0]); }},
      {"outputs[0] 'y': alias 2 is not an input", [](Graph& g) { g.outputs[0].aliasInput = 2; }},
      {"outputs[0] 'y': is f32[M, 4096] and cannot alias input 'weight', which is f32[4096]",
       [](Graph& g) { g.outputs[0].aliasInput = 1; }},
      {"cannot alias input 'x', whose strides are not dense",
       [](Graph& g) {
         g.outputs[0].aliasInput = 0;
         g.inputs[0].strides = {8192, 1};
       }},
      {"cannot alias input 'x', which is constant",
       [](Graph& g) {
         g.outputs[0].aliasInput = 0;
         g.inputs[0].constant = true;
       }},
      {"input 'x' is aliased by another output",
       [](Graph& g) {
         g.nodes.push_back({"neg", {0}, {}, "z"});
         g.outputs[0].aliasInput = 0;
         g.outputs.push_back({3, 0, 64});
       }},
      {"outputs[0] 'y': alignment must be a power of two", [](Graph& g) { g.outputs[0].alignmentBytes = 3; }},
      {"numerics.accumulate must be f64, f32, f16 or bf16, is i32",
       [](Graph& g) { g.numerics.accumulate = DType::kI32; }},
      {"numerics.tolerance: number 9", [](Graph& g) { g.numerics.tolerance = static_cast<ToleranceClass>(9); }},
  };
  ASSERT_TRUE(verify(chain()).isOk());
  for (const BadCase& c : cases) {
    Graph graph = chain();
    c.change(graph);
    const Status status = verify(graph);
    EXPECT_EQ(status.code(), c.code) << c.expected << "\n" << status.toString();
    EXPECT_NE(status.message().find(c.expected), std::string::npos) << c.expected << "\n" << status.message();
    EXPECT_EQ(expand(graph).status().message(), status.message());
  }
}

TEST(Graph, Broadcasting) {
  GraphBuilder b;
  const int32_t m = b.symbol("M", 1, 4);
  const int32_t x = b.input("x", DType::kF16, {Dim::symbolic(m, 2), Dim::fixed(1), Dim::fixed(8)});
  const int32_t y = b.input("y", DType::kF16, {Dim::fixed(5), Dim::fixed(1)});
  const int32_t s = b.node("add", {x, y});
  const int32_t c = b.node("constant", {}, {{"value", 1.0}, {"dtype", std::string("f16")}});
  b.output(b.node("mul", {c, s}));
  const Result<Graph> graph = b.finish();
  ASSERT_TRUE(graph) << graph.error().toString();
  const Result<std::vector<ValueType>> types = inferTypes(*graph);
  ASSERT_TRUE(types);
  EXPECT_EQ(shapeText(*graph, types->back().shape), "[2*M, 5, 8]");
  EXPECT_EQ(types->back().dtype, DType::kF16);
}

TEST(Graph, ExpandRmsNorm) {
  const Result<Graph> expanded = expand(chain());
  ASSERT_TRUE(expanded) << expanded.error().toString();
  std::string ops;
  std::set<std::string> names;
  for (const Node& node : expanded->nodes) {
    ops += node.op + " ";
    EXPECT_TRUE(names.insert(node.result).second) << node.result;
  }
  EXPECT_EQ(ops, "mul reduce_sum constant mul constant add rsqrt mul mul ");
  EXPECT_EQ(expanded->nodes.back().result, "y");
  EXPECT_EQ(expanded->outputs[0].value, expanded->resultOf(expanded->nodes.size() - 1));
  EXPECT_TRUE(expanded->inputs == chain().inputs);
}

TEST(Graph, ExpandMakesFreshNames) {
  // The names that the expansion of rms_norm would take are taken already.
  GraphBuilder b;
  const int32_t x = b.input("y_mul0", DType::kF32, {Dim::fixed(8)});
  const int32_t w = b.input("y_mul1", DType::kF32, {Dim::fixed(8)});
  const int32_t n = b.node("rms_norm", {x, w}, {}, "y");
  b.output(b.node("neg", {n}, {}, "y_rsqrt2"));
  const Result<Graph> graph = b.finish();
  ASSERT_TRUE(graph);
  const Result<Graph> expanded = expand(*graph);
  ASSERT_TRUE(expanded) << expanded.error().toString();
}

TEST(Graph, ExpandIsIdempotentAndKeepsTypes) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Graph graph = test::randomGraph(seed);
    const Result<Graph> expanded = expand(graph);
    ASSERT_TRUE(expanded) << seed << ": " << expanded.error().toString();
    for (const Node& node : expanded->nodes) EXPECT_NE(findOperator(node.op)->kind, OperatorKind::kComposite);
    const Result<Graph> again = expand(*expanded);
    ASSERT_TRUE(again);
    EXPECT_TRUE(*again == *expanded) << seed;
    const auto types = inferTypes(graph), expandedTypes = inferTypes(*expanded);
    ASSERT_EQ(graph.outputs.size(), expanded->outputs.size());
    for (size_t i = 0; i < graph.outputs.size(); ++i) {
      const int32_t before = graph.outputs[i].value, after = expanded->outputs[i].value;
      EXPECT_TRUE((*types)[static_cast<size_t>(before)] == (*expandedTypes)[static_cast<size_t>(after)]);
      EXPECT_EQ(graph.valueName(before), expanded->valueName(after));
      EXPECT_EQ(graph.outputs[i].aliasInput, expanded->outputs[i].aliasInput);
    }
    EXPECT_NE(label(graph), "invalid");
  }
}

TEST(Graph, TooLargeExpansionIsRefused) {
  GraphBuilder b;
  int32_t x = b.input("x", DType::kF32, {Dim::fixed(8)});
  const int32_t w = b.input("w", DType::kF32, {Dim::fixed(8)});
  for (int i = 0; i < 1000; ++i) x = b.node("rms_norm", {x, w});
  b.output(x);
  const Result<Graph> graph = b.finish();
  ASSERT_TRUE(graph) << graph.error().toString();
  const Result<Graph> expanded = expand(*graph);
  ASSERT_FALSE(expanded);
  EXPECT_NE(expanded.error().message().find("at most 1024"), std::string::npos) << expanded.error().message();
}

TEST(Graph, Work) {
  const Result<Graph> linear = makeLinear({"M", 1, 16, {16}}, 6144, 4096, DType::kF32);
  ASSERT_TRUE(linear);
  const Work work = workOf(*linear, {16});
  EXPECT_EQ(work.operations, 2.0 * 16 * 6144 * 4096);
  EXPECT_EQ(work.bytes, 4.0 * (16 * 4096 + 6144.0 * 4096 + 16 * 6144));
  const Result<Graph> add = makeAdd({"M", 1, 16, {16}}, 4096, DType::kBF16);
  ASSERT_TRUE(add);
  EXPECT_EQ(workOf(*add, {3}).bytes, 3 * 3 * 4096 * 2);
  EXPECT_EQ(workOf(*add, {3}).operations, 3 * 4096);
  EXPECT_EQ(workOf(*add, {}).bytes, 0);
  EXPECT_GT(workOf(chain(), {4}).operations, 4 * 4 * 4096);
}

TEST(Graph, ShapesAndStrides) {
  const Graph graph = chain();
  EXPECT_EQ(shapeText(graph, graph.inputs[0].type.shape), "[M, 4096]");
  EXPECT_EQ(shapeText(graph, {}), "[]");
  EXPECT_EQ(*elementCount(graph.inputs[0].type.shape, {3}), 3 * 4096);
  EXPECT_EQ(*elementCount({}, {}), 1);
  EXPECT_FALSE(elementCount(graph.inputs[0].type.shape, {}));
  EXPECT_FALSE(elementCount({Dim::fixed(int64_t{1} << 40), Dim::fixed(int64_t{1} << 40)}, {}));
  EXPECT_EQ(stridesOf(graph.inputs[0], {3}), (std::vector<int64_t>{4096, 1}));
  Input padded = graph.inputs[0];
  padded.strides = {5000, 1};
  EXPECT_EQ(stridesOf(padded, {3}), (std::vector<int64_t>{5000, 1}));
}

TEST(OperatorTable, EveryDefinitionIsComplete) {
  std::set<std::string_view> names;
  for (const OperatorDef* def : operatorTable()) {
    EXPECT_TRUE(names.insert(def->name).second) << def->name;
    EXPECT_EQ(findOperator(def->name), def);
    EXPECT_FALSE(def->summary.empty()) << def->name;
    EXPECT_NE(def->infer, nullptr) << def->name;
    EXPECT_NE(def->reference, nullptr) << def->name;
    EXPECT_NE(def->operations, nullptr) << def->name;
    EXPECT_EQ(def->decompose != nullptr, def->kind == OperatorKind::kComposite) << def->name;
    EXPECT_EQ(def->scalar != nullptr, def->kind == OperatorKind::kElementwise) << def->name;
    for (const AttributeDef& a : def->attributes) {
      EXPECT_FALSE(a.meaning.empty()) << def->name << "." << a.name;
      if (!a.required) {
        EXPECT_EQ(a.otherwise.index(), static_cast<size_t>(a.type)) << def->name << "." << a.name;
      }
    }
  }
  EXPECT_EQ(findOperator("nothing"), nullptr);
}

}  // namespace
}  // namespace ktune::op
