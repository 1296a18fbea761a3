#include <gtest/gtest.h>

#include "ir/op/Builder.h"
#include "ir/op/Canonical.h"
#include "ir/op/GraphJson.h"
#include "op/RandomGraph.h"

namespace ktune::op {
namespace {

constexpr std::string_view kFull = R"({
  "symbols": [{"name": "M", "min": 1, "max": 16, "edges": [1, 16]}],
  "inputs": [
    {"name": "x", "dtype": "f32", "shape": ["32*M", 128], "alignment": 64, "constant": false},
    {"name": "weight", "dtype": "f32", "shape": [128], "constant": true}],
  "nodes": [{"op": "rms_norm", "inputs": ["x", "weight"], "result": "y", "attributes": {"eps": 1e-6}}],
  "outputs": [{"value": "y", "alias": "x", "alignment": 64}],
  "numerics": {"accumulate": "f32", "tolerance": "default", "deterministic": true, "batch_invariant": false}
})";

Json parsed(std::string_view text) {
  Result<Json> json = parseJson(text, "test");
  EXPECT_TRUE(json) << json.status().toString() << "\n" << text;
  return json ? *json : Json();
}

TEST(GraphJson, ReadsTheFullForm) {
  const Result<Graph> graph = fromJson(parsed(kFull), "");
  ASSERT_TRUE(graph) << graph.error().toString();
  Result<Graph> expected = makeRmsNorm({"M", 1, 16, {1, 16}}, 32, 128, 1e-6, DType::kF32);
  ASSERT_TRUE(expected);
  expected->outputs[0].aliasInput = 0;
  EXPECT_TRUE(*graph == *expected);
}

TEST(GraphJson, DefaultsAreThoseOfTheFullForm) {
  const Result<Graph> graph = fromJson(parsed(R"({
    "symbols": [{"name": "M", "max": 16}],
    "inputs": [{"name": "x", "dtype": "f32", "shape": ["M", 128], "strides": [128, 1]},
               {"name": "weight", "dtype": "f32", "shape": [128], "constant": true}],
    "nodes": [{"op": "rms_norm", "inputs": ["x", "weight"], "result": "y"}],
    "outputs": [{"value": "y"}]})"),
                                       "");
  ASSERT_TRUE(graph) << graph.error().toString();
  const Result<Graph> expected = makeRmsNorm({"M", 1, 16, {16}}, 1, 128, 1e-6, DType::kF32);
  ASSERT_TRUE(expected);
  EXPECT_TRUE(*graph == *expected);
  // Written with every default.
  const Json json = toJson(*graph);
  EXPECT_EQ(json["nodes"][0]["attributes"]["eps"], 1e-6);
  EXPECT_EQ(json["symbols"][0]["edges"], Json::array({16}));
  EXPECT_EQ(json["numerics"]["deterministic"], true);
}

TEST(GraphJson, IntegersServeAsNumbers) {
  const Result<Graph> graph =
      fromJson(parsed(R"({"nodes": [{"op": "constant", "result": "c", "attributes": {"value": 3}}],
                 "outputs": [{"value": "c"}]})"),
               "");
  ASSERT_TRUE(graph) << graph.error().toString();
  EXPECT_EQ(graph->nodes[0].attributes.at("value"), Attribute(3.0));
}

TEST(GraphJson, RoundTripsRandomGraphs) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const Graph graph = test::randomGraph(seed);
    const std::string text = toJson(graph).dump();
    const Result<Graph> back = fromJson(parsed(text), "seed");
    ASSERT_TRUE(back) << seed << ": " << back.error().toString() << "\n" << text;
    EXPECT_TRUE(*back == graph) << seed << "\n" << text;
    EXPECT_EQ(toJson(*back).dump(), text) << seed;
    EXPECT_EQ(canonicalBytes(*back), canonicalBytes(graph)) << seed;
  }
}

struct BadCase {
  std::string pointer;  ///< Where in kFull ...
  std::string value;    ///< ... this JSON is put (empty: the field is erased).
  std::string expected;
};

TEST(GraphJson, ErrorsNameThePath) {
  const BadCase cases[] = {
      {"/extra", "1", "extra"},
      {"/symbols", "3", "symbols"},
      {"/symbols/0", "3", "symbols[0]: expected an object"},
      {"/symbols/0/name", "3", "symbols[0].name: expected a string"},
      {"/symbols/0/name", "", "symbols[0].name: is missing"},
      {"/symbols/0/max", "\"16\"", "symbols[0].max: expected an integer"},
      {"/symbols/0/max", "1.5", "symbols[0].max: expected an integer"},
      {"/symbols/0/max", "99999999999999999999", "symbols[0].max: expected an integer"},
      {"/symbols/0/edges", "7", "symbols[0].edges"},
      {"/symbols/0/edges", "[1, \"16\"]", "symbols[0].edges[1]: expected an integer"},
      {"/symbols/0/edges", "[1, 18446744073709551615]", "symbols[0].edges[1]: expected an integer"},
      {"/symbols/0/edges", "[1, 15]", "symbols[0] 'M': the last edge must equal max (16), is 15"},
      {"/symbols/0/step", "1", "symbols[0]"},
      {"/inputs/1/name", "\"x\"", "nodes[0].inputs[1]: unknown value 'weight'"},
      {"/inputs/0/dtype", "\"float\"", "inputs[0].dtype: unknown dtype 'float'; known: f64"},
      {"/inputs/0/dtype", "null", "inputs[0].dtype: expected a string"},
      {"/inputs/0/shape", "\"M\"", "inputs[0].shape"},
      {"/inputs/0/shape", "", "inputs[0].shape: is missing"},
      {"/inputs/0/shape/0", "\"N\"", "inputs[0].shape[0]: unknown symbol 'N'; known: M"},
      {"/inputs/0/shape/0", "\"x*M\"", "inputs[0].shape[0]: 'x*M' is no dim"},
      {"/inputs/0/shape/0", "\"32*\"", "inputs[0].shape[0]: unknown symbol ''"},
      {"/inputs/0/shape/0", "\"0*M\"", "inputs[0] 'x': shape[0] must be at least 1, is 0"},
      {"/inputs/0/shape/0", "null", "inputs[0].shape[0]: expected an integer, a symbol"},
      {"/inputs/0/shape/1", "1.5", "inputs[0].shape[1]: expected an integer"},
      {"/inputs/0/shape/1", "-4", "inputs[0] 'x': shape[1] must be at least 1, is -4"},
      {"/inputs/0/strides", "[1]", "inputs[0] 'x': strides has 1 entries"},
      {"/inputs/0/strides", "[true, 1]", "inputs[0].strides[0]: expected an integer"},
      {"/inputs/0/alignment", "3", "inputs[0] 'x': alignment must be a power of two"},
      {"/inputs/0/constant", "1", "inputs[0].constant"},
      {"/inputs/0/aligment", "64", "aligment"},
      {"/nodes", "", "nodes: is missing"},
      {"/nodes/0/op", "\"rmsnorm\"", "unknown operator 'rmsnorm'; did you mean 'rms_norm'?"},
      {"/nodes/0/inputs/1", "\"w\"",
       "nodes[0].inputs[1]: unknown value 'w'; it must be an input or the result of an "
       "earlier node: x, weight"},
      {"/nodes/0/inputs/1", "\"y\"", "nodes[0].inputs[1]: unknown value 'y'"},
      {"/nodes/0/inputs/1", "7", "nodes[0].inputs[1]: expected a string"},
      {"/nodes/0/result", "", "nodes[0].result: is missing"},
      {"/nodes/0/result", "\"x\"", "nodes[0].result: name 'x' is used twice"},
      {"/nodes/0/attributes", "[]", "nodes[0].attributes: expected an object"},
      {"/nodes/0/attributes/eps", "true", "nodes[0].attributes.eps: expected a number or a string"},
      {"/nodes/0/attributes/eps", "\"small\"", "nodes[0] (rms_norm): attribute 'eps' must be a number"},
      {"/nodes/0/attributes/epsilon", "1e-6", "unknown attribute 'epsilon'; known: eps"},
      {"/outputs/0/value", "\"z\"", "outputs[0].value: unknown value 'z'"},
      {"/outputs/0/alias", "\"z\"", "outputs[0].alias: unknown value 'z'"},
      {"/outputs/0/alias", "\"y\"", "outputs[0].alias: 'y' is not an input"},
      {"/outputs/0/alias", "\"weight\"", "outputs[0] 'y': is f32[32*M, 128] and cannot alias input 'weight'"},
      {"/outputs/0/name", "\"y\"", "outputs[0]"},
      {"/numerics/accumulate", "\"i8\"", "numerics.accumulate must be f64"},
      {"/numerics/accumulate", "\"single\"", "numerics.accumulate: unknown dtype 'single'"},
      {"/numerics/tolerance", "\"loose\"",
       "numerics.tolerance: unknown class 'loose'; known: default, strict, relaxed"},
      {"/numerics/deterministic", "\"yes\"", "numerics.deterministic"},
      {"/numerics/batchInvariant", "true", "batchInvariant"},
  };
  for (const BadCase& c : cases) {
    Json json = parsed(kFull);
    const Json::json_pointer pointer(c.pointer);
    if (c.value.empty()) {
      json[pointer.parent_pointer()].erase(pointer.back());
    } else {
      json[pointer] = parsed(c.value);
    }
    const Result<Graph> graph = fromJson(json, "manifest.json: operators[3]");
    ASSERT_FALSE(graph) << c.pointer << " " << c.value;
    const std::string& message = graph.error().message();
    EXPECT_EQ(graph.error().code(), StatusCode::kInvalidArgument) << message;
    EXPECT_EQ(message.rfind("manifest.json: operators[3]", 0), 0u) << message;
    EXPECT_NE(message.find(c.expected), std::string::npos) << "expected: " << c.expected << "\n     got: " << message;
  }
  EXPECT_FALSE(fromJson(Json::array(), "x"));
  EXPECT_FALSE(fromJson(Json(), ""));
  EXPECT_FALSE(fromJson(Json::object(), ""));
}

}  // namespace
}  // namespace ktune::op
