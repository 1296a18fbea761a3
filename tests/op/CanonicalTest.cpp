#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "ir/op/Builder.h"
#include "ir/op/Canonical.h"
#include "op/RandomGraph.h"

namespace ktune::op {
namespace {

constexpr const char* kHardware = "cpu;GenuineIntel;6;143";

/// A description in which every field is there.
Graph richGraph() {
  GraphBuilder b;
  const int32_t m = b.symbol("M", 1, 16, {1, 16});
  const int32_t x = b.input("x", DType::kF32, {Dim::symbolic(m, 2), Dim::fixed(8)});
  const int32_t y = b.input("y", DType::kF32, {Dim::symbolic(m, 2), Dim::fixed(8)});
  const int32_t w = b.input("weight", DType::kF32, {Dim::fixed(8)}, /*constant=*/true);
  b.graph().inputs[static_cast<size_t>(y)].strides = {16, 1};
  const int32_t one = b.node("constant", {}, {{"value", 1.0}});
  const int32_t n = b.node("rms_norm", {x, w}, {{"eps", 1e-6}}, "normal");
  const int32_t s = b.node("add", {n, one}, {}, "sum");
  b.output(b.node("mul", {s, y}, {}, "out"), x);
  b.output(s);
  Result<Graph> graph = b.finish();
  EXPECT_TRUE(graph) << graph.status().toString();
  return graph ? *graph : Graph();
}

struct Mutation {
  const char* field;
  std::function<void(Graph&)> change;
};

/// One change for every field. The structured bindings below fail to compile when a field is added: add it here.
std::vector<Mutation> mutations() {
  const Graph sample = richGraph();
  [[maybe_unused]] const auto& [symbols, inputs, nodes, outputs, numerics] = sample;
  [[maybe_unused]] const auto& [sName, sMin, sMax, sEdges] = symbols[0];
  [[maybe_unused]] const auto& [iName, iType, iStrides, iAlignment, iConstant] = inputs[0];
  [[maybe_unused]] const auto& [tDtype, tShape] = iType;
  [[maybe_unused]] const auto& [dFactor, dSymbol] = tShape[0];
  [[maybe_unused]] const auto& [nOp, nOperands, nAttributes, nResult] = nodes[0];
  [[maybe_unused]] const auto& [oValue, oAlias, oAlignment] = outputs[0];
  [[maybe_unused]] const auto& [cAccumulate, cTolerance, cDeterministic, cInvariant] = numerics;
  return {
      {"symbols.count",
       [](Graph& g) {
         g.symbols.push_back({"N", 1, 1, {1}});
       }},
      {"symbol.name", [](Graph& g) { g.symbols[0].name = "T"; }},
      {"symbol.min", [](Graph& g) { g.symbols[0].min = 2; }},
      {"symbol.max", [](Graph& g) { g.symbols[0].max = 17; }},
      {"symbol.edges value", [](Graph& g) { g.symbols[0].edges[0] = 2; }},
      {"symbol.edges count", [](Graph& g) { g.symbols[0].edges.insert(g.symbols[0].edges.begin() + 1, 8); }},
      {"symbol.edges empty", [](Graph& g) { g.symbols[0].edges.clear(); }},
      {"inputs.count", [](Graph& g) { g.inputs.pop_back(); }},
      {"inputs.order", [](Graph& g) { std::swap(g.inputs[0], g.inputs[1]); }},
      {"input.name", [](Graph& g) { g.inputs[0].name = "x2"; }},
      {"input.dtype", [](Graph& g) { g.inputs[0].type.dtype = DType::kBF16; }},
      {"input.rank", [](Graph& g) { g.inputs[0].type.shape.push_back(Dim::fixed(1)); }},
      {"input.dim.factor", [](Graph& g) { g.inputs[0].type.shape[0].factor = 3; }},
      {"input.dim.symbol", [](Graph& g) { g.inputs[0].type.shape[0].symbol = -1; }},
      {"input.dim.last", [](Graph& g) { g.inputs[0].type.shape[1].factor = 9; }},
      {"input.strides", [](Graph& g) { g.inputs[1].strides[0] = 17; }},
      {"input.strides empty", [](Graph& g) { g.inputs[1].strides.clear(); }},
      {"input.strides given",
       [](Graph& g) {
         g.inputs[0].strides = {8, 1};
       }},
      {"input.alignment", [](Graph& g) { g.inputs[0].alignmentBytes = 32; }},
      {"input.constant", [](Graph& g) { g.inputs[0].constant = true; }},
      {"input.constant off", [](Graph& g) { g.inputs[2].constant = false; }},
      {"nodes.count", [](Graph& g) { g.nodes.pop_back(); }},
      {"nodes.order", [](Graph& g) { std::swap(g.nodes[0], g.nodes[1]); }},
      {"node.op", [](Graph& g) { g.nodes[2].op = "sub"; }},
      {"node.operand", [](Graph& g) { g.nodes[2].operands[1] = 0; }},
      {"node.operands.order", [](Graph& g) { std::swap(g.nodes[2].operands[0], g.nodes[2].operands[1]); }},
      {"node.operands.count", [](Graph& g) { g.nodes[2].operands.pop_back(); }},
      {"node.attribute.value", [](Graph& g) { g.nodes[1].attributes["eps"] = 1e-5; }},
      {"node.attribute.last bit", [](Graph& g) { g.nodes[1].attributes["eps"] = std::nextafter(1e-6, 1.0); }},
      {"node.attribute.type", [](Graph& g) { g.nodes[0].attributes["value"] = int64_t{1}; }},
      {"node.attribute.text", [](Graph& g) { g.nodes[0].attributes["dtype"] = std::string("f64"); }},
      {"node.attribute.name",
       [](Graph& g) {
         g.nodes[1].attributes.clear();
         g.nodes[1].attributes["epsilon"] = 1e-6;
       }},
      {"node.attribute.absent", [](Graph& g) { g.nodes[1].attributes.clear(); }},
      {"node.attribute.more", [](Graph& g) { g.nodes[3].attributes["a"] = int64_t{0}; }},
      {"node.result", [](Graph& g) { g.nodes[1].result = "renamed"; }},
      {"outputs.count", [](Graph& g) { g.outputs.pop_back(); }},
      {"outputs.order", [](Graph& g) { std::swap(g.outputs[0], g.outputs[1]); }},
      {"output.value", [](Graph& g) { g.outputs[1].value = g.resultOf(1); }},
      {"output.alias", [](Graph& g) { g.outputs[0].aliasInput = 1; }},
      {"output.alias none", [](Graph& g) { g.outputs[0].aliasInput = -1; }},
      {"output.alignment", [](Graph& g) { g.outputs[0].alignmentBytes = 128; }},
      {"numerics.accumulate", [](Graph& g) { g.numerics.accumulate = DType::kF64; }},
      {"numerics.tolerance", [](Graph& g) { g.numerics.tolerance = ToleranceClass::kStrict; }},
      {"numerics.tolerance relaxed", [](Graph& g) { g.numerics.tolerance = ToleranceClass::kRelaxed; }},
      {"numerics.deterministic", [](Graph& g) { g.numerics.deterministic = false; }},
      {"numerics.batchInvariant", [](Graph& g) { g.numerics.batchInvariant = true; }},
  };
}

TEST(Key, EveryFieldChangesIt) {
  const Graph base = richGraph();
  std::map<std::string, std::string> seen;  // key -> field
  seen[keyOf(base, kHardware).hex()] = "unchanged";
  for (const Mutation& mutation : mutations()) {
    Graph changed = base;
    mutation.change(changed);
    ASSERT_FALSE(changed == base) << mutation.field << " changes nothing";
    EXPECT_NE(canonicalBytes(changed), canonicalBytes(base)) << mutation.field;
    const auto [it, isNew] = seen.emplace(keyOf(changed, kHardware).hex(), mutation.field);
    EXPECT_TRUE(isNew) << mutation.field << " has the key of " << it->second;
  }
  for (const char* hardware : {"", "cpu;GenuineIntel;6;14", "cpu;GenuineIntel;6;143 ", "cuda;H200;132"}) {
    const auto [it, isNew] = seen.emplace(keyOf(base, hardware).hex(), hardware);
    EXPECT_TRUE(isNew) << "hardware '" << hardware << "' has the key of " << it->second;
  }
}

TEST(Key, IsTheSameEverywhereAndAlways) {
  // A failure here means that every cache in the world misses: raise the version in docs/key.md on purpose, or undo
  // the change of format.
  const Result<Graph> graph = makeRmsNorm({"M", 1, 16, {1, 16}}, 32, 128, 1e-6, DType::kF32);
  ASSERT_TRUE(graph);
  EXPECT_EQ(keyOf(*graph, kHardware).hex(), "08955896e19b68444e96fdd4f0906590");
  EXPECT_EQ(keyOf(richGraph(), kHardware).hex(), "c1947f8f1d986fe0201ba72f7bf9973c");
}

TEST(Key, CanonicalBytesAreThoseOfTheDocument) {
  GraphBuilder b;
  const int32_t m = b.symbol("M", 1, 2);
  const int32_t x = b.input("x", DType::kBF16, {Dim::symbolic(m, 3)});
  b.output(b.node("neg", {x}, {}, "y"));
  const Result<Graph> graph = b.finish();
  ASSERT_TRUE(graph);
  // The example of docs/key.md.
  const std::string expected =
      "01000000"
      "01000000"
      "01000000"
      "4d"
      "0100000000000000"
      "0200000000000000"
      "01000000"
      "0200000000000000"
      "01000000"
      "01000000"
      "78"
      "03"
      "01000000"
      "0300000000000000"
      "00000000"
      "00000000"
      "4000000000000000"
      "00"
      "01000000"
      "03000000"
      "6e6567"
      "01000000"
      "00000000"
      "00000000"
      "01000000"
      "79"
      "01000000"
      "01000000"
      "ffffffff"
      "4000000000000000"
      "01"
      "00"
      "01"
      "00";
  std::string hex;
  for (const char c : canonicalBytes(*graph)) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<unsigned char>(c) >> 4];
    hex += kDigits[static_cast<unsigned char>(c) & 15];
  }
  EXPECT_EQ(hex, expected);
}

TEST(Canonical, RoundTripsRandomGraphs) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const Graph graph = test::randomGraph(seed);
    ASSERT_TRUE(verify(graph).isOk()) << seed << ": " << verify(graph).toString();
    const std::string bytes = canonicalBytes(graph);
    const Result<Graph> back = fromCanonicalBytes(bytes);
    ASSERT_TRUE(back) << seed << ": " << back.error().toString();
    EXPECT_TRUE(*back == graph) << seed;
    EXPECT_EQ(canonicalBytes(*back), bytes) << seed;
  }
}

TEST(Canonical, RandomGraphsCoverTheTable) {
  std::map<std::string, int> count;
  for (uint64_t seed = 0; seed < 8000; ++seed) {
    for (const Node& node : test::randomGraph(seed).nodes) ++count[node.op];
  }
  for (const OperatorDef* def : operatorTable()) EXPECT_GE(count[std::string(def->name)], 20) << def->name;
}

TEST(Canonical, EveryTruncationIsCorrupt) {
  for (const Graph& graph : {richGraph(), test::randomGraph(5), test::randomGraph(6)}) {
    const std::string bytes = canonicalBytes(graph);
    for (size_t n = 0; n < bytes.size(); ++n) {
      const Result<Graph> result = fromCanonicalBytes(std::string_view(bytes).substr(0, n));
      ASSERT_FALSE(result) << n;
      EXPECT_EQ(result.error().code(), StatusCode::kCorrupt) << n << ": " << result.error().toString();
    }
    const Result<Graph> longer = fromCanonicalBytes(bytes + '\0');
    ASSERT_FALSE(longer);
    EXPECT_EQ(longer.error().code(), StatusCode::kCorrupt);
  }
}

TEST(Canonical, FlippedBytesNeverCrash) {
  test::Random random(7);
  int refused = 0;
  for (int i = 0; i < 30000; ++i) {
    std::string bytes = canonicalBytes(i % 2 == 0 ? richGraph() : test::randomGraph(static_cast<uint64_t>(i % 64)));
    const int64_t flips = random.between(1, 3);
    for (int64_t f = 0; f < flips; ++f) {
      char& byte = bytes[static_cast<size_t>(random.between(0, static_cast<int64_t>(bytes.size()) - 1))];
      byte = static_cast<char>(byte ^ (random.chance(50) ? 1 << random.between(0, 7) : random.between(1, 255)));
    }
    const Result<Graph> result = fromCanonicalBytes(bytes);
    if (result) {
      // What decodes is a description, and the bytes are its only form.
      EXPECT_EQ(canonicalBytes(*result), bytes);
      EXPECT_TRUE(verify(*result).isOk());
      continue;
    }
    ++refused;
    const StatusCode code = result.error().code();
    EXPECT_TRUE(code == StatusCode::kCorrupt || code == StatusCode::kInvalidArgument ||
                code == StatusCode::kUnsupported)
        << result.error().toString();
    for (const char c : result.error().message()) EXPECT_TRUE(c >= ' ' && c <= '~') << result.error().message();
  }
  EXPECT_GT(refused, 15000);
}

TEST(Canonical, GarbageIsCorrupt) {
  test::Random random(11);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(static_cast<size_t>(random.between(0, 300)), '\0');
    for (char& c : bytes) c = static_cast<char>(random.between(0, 255));
    if (i % 2 == 0 && bytes.size() > 4) bytes.replace(0, 4, std::string("\1\0\0\0", 4));
    EXPECT_FALSE(fromCanonicalBytes(bytes));
  }
}

TEST(Canonical, AttributesOutOfOrderAreCorrupt) {
  Graph graph = richGraph();
  std::string bytes = canonicalBytes(graph);
  // "dtype" and "value" of the constant: make the first name the larger one.
  const size_t at = bytes.find("dtype");
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 5, "zzzzz");
  const Result<Graph> result = fromCanonicalBytes(bytes);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), StatusCode::kCorrupt);
  EXPECT_NE(result.error().message().find("out of order"), std::string::npos) << result.error().message();
}

}  // namespace
}  // namespace ktune::op
