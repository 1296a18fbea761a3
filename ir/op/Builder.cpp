#include "ir/op/Builder.h"

#include <algorithm>

namespace ktune::op {

int32_t GraphBuilder::symbol(std::string name, int64_t min, int64_t max, std::vector<int64_t> edges) {
  graph_.symbols.push_back({std::move(name), min, max, std::move(edges)});
  return static_cast<int32_t>(graph_.symbols.size() - 1);
}

int32_t GraphBuilder::input(std::string name, DType dtype, Shape shape, bool constant) {
  inputAfterNode_ = inputAfterNode_ || !graph_.nodes.empty();
  Input in;
  in.name = std::move(name);
  in.type = {dtype, std::move(shape)};
  in.constant = constant;
  graph_.inputs.push_back(std::move(in));
  return static_cast<int32_t>(graph_.inputs.size() - 1);
}

int32_t GraphBuilder::node(std::string op, std::vector<int32_t> operands, std::map<std::string, Attribute> attributes,
                           std::string result) {
  const auto id = static_cast<int32_t>(graph_.valueCount());
  if (result.empty()) result = "v" + std::to_string(id);
  graph_.nodes.push_back({std::move(op), std::move(operands), std::move(attributes), std::move(result)});
  return id;
}

void GraphBuilder::output(int32_t value, int32_t aliasInput) {
  Output out;
  out.value = value;
  out.aliasInput = aliasInput;
  graph_.outputs.push_back(out);
}

Result<Graph> GraphBuilder::finish() const {
  if (inputAfterNode_) return invalidArgument("inputs: add all of them before the first node (value ids depend on it)");
  Graph graph = normalised(graph_);
  KTUNE_TRY(verify(graph));
  return graph;
}

Result<Graph> makeRmsNorm(const Symbol& tokens, int64_t rowsPerToken, int64_t columns, double eps, DType dtype) {
  GraphBuilder b;
  const int32_t m = b.symbol(tokens.name, tokens.min, tokens.max, tokens.edges);
  const int32_t x = b.input("x", dtype, {Dim::symbolic(m, rowsPerToken), Dim::fixed(columns)});
  const int32_t weight = b.input("weight", dtype, {Dim::fixed(columns)}, /*constant=*/true);
  b.output(b.node("rms_norm", {x, weight}, {{"eps", eps}}, "y"));
  return b.finish();
}

Result<Graph> makeLinear(const Symbol& tokens, int64_t n, int64_t k, DType dtype) {
  GraphBuilder b;
  const int32_t m = b.symbol(tokens.name, tokens.min, tokens.max, tokens.edges);
  const int32_t x = b.input("x", dtype, {Dim::symbolic(m), Dim::fixed(k)});
  const int32_t weight = b.input("weight", dtype, {Dim::fixed(n), Dim::fixed(k)}, /*constant=*/true);
  b.output(b.node("linear", {x, weight}, {}, "y"));
  return b.finish();
}

Result<Graph> makeAdd(const Symbol& tokens, int64_t columns, DType dtype) {
  GraphBuilder builder;
  const int32_t m = builder.symbol(tokens.name, tokens.min, tokens.max, tokens.edges);
  const int32_t a = builder.input("a", dtype, {Dim::symbolic(m), Dim::fixed(columns)});
  const int32_t b = builder.input("b", dtype, {Dim::symbolic(m), Dim::fixed(columns)});
  builder.output(builder.node("add", {a, b}, {}, "y"));
  return builder.finish();
}

Result<Graph> makeAddRmsNorm(const Symbol& tokens, int64_t columns, double eps, DType dtype) {
  GraphBuilder b;
  const int32_t m = b.symbol(tokens.name, tokens.min, tokens.max, tokens.edges);
  const int32_t x = b.input("x", dtype, {Dim::symbolic(m), Dim::fixed(columns)});
  const int32_t residual = b.input("residual", dtype, {Dim::symbolic(m), Dim::fixed(columns)});
  const int32_t weight = b.input("weight", dtype, {Dim::fixed(columns)}, /*constant=*/true);
  const int32_t sum = b.node("add", {x, residual}, {}, "sum");
  b.output(sum, residual);
  b.output(b.node("rms_norm", {sum, weight}, {{"eps", eps}}, "y"), x);
  return b.finish();
}

Result<Graph> makeGated(std::string_view op, const Symbol& tokens, int64_t columns, DType dtype) {
  GraphBuilder b;
  const int32_t m = b.symbol(tokens.name, tokens.min, tokens.max, tokens.edges);
  const int32_t gate = b.input("gate", dtype, {Dim::symbolic(m), Dim::fixed(columns)});
  const int32_t up = b.input("up", dtype, {Dim::symbolic(m), Dim::fixed(columns)});
  for (Input& input : b.graph().inputs) input.strides = {2 * columns, 1};
  // The second half starts where the first ends.
  int64_t& alignment = b.graph().inputs[static_cast<size_t>(up)].alignmentBytes;
  while (columns * dtypeBytes(dtype) % alignment != 0) alignment /= 2;
  b.output(b.node(std::string(op), {gate, up}, {}, "y"));
  return b.finish();
}

}  // namespace ktune::op
