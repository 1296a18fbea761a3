// Builds descriptions in C++: names values, keeps ids, leaves verification to verify().
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ir/op/Graph.h"

namespace ktune::op {

/// Usage:
///   GraphBuilder b;
///   int32_t m = b.symbol("M", 1, 16, {1, 16});
///   int32_t x = b.input("x", DType::kF32, {Dim::symbolic(m), Dim::fixed(4096)});
///   int32_t w = b.input("weight", DType::kF32, {Dim::fixed(4096)}, /*constant=*/true);
///   b.output(b.node("rms_norm", {x, w}, {{"eps", 1e-6}}));
///   Result<Graph> g = b.finish();   // verified
class GraphBuilder {
 public:
  int32_t symbol(std::string name, int64_t min, int64_t max, std::vector<int64_t> edges = {});
  /// REQUIRES: all inputs are added before the first node (value ids depend on it).
  int32_t input(std::string name, DType dtype, Shape shape, bool constant = false);
  /// The result is named "v<N>" unless RESULT is given.
  int32_t node(std::string op, std::vector<int32_t> operands, std::map<std::string, Attribute> attributes = {},
               std::string result = {});
  void output(int32_t value, int32_t aliasInput = -1);
  NumericContract& numerics() { return graph_.numerics; }
  Graph& graph() { return graph_; }
  /// The normalised (see normalised()), verified graph. Errors: as verify(); kInvalidArgument when an input was added
  /// after a node.
  [[nodiscard]] Result<Graph> finish() const;

 private:
  Graph graph_;
  bool inputAfterNode_ = false;
};

/// The descriptions that models ask for most; SHAPES as in docs/operators.md.
/// y[M, columns] = rms_norm(x[rowsPerToken*M, columns], weight[columns], eps).
[[nodiscard]] Result<Graph> makeRmsNorm(const Symbol& tokens, int64_t rowsPerToken, int64_t columns, double eps,
                                        DType dtype);
/// y[M, n] = x[M, k] * w[n, k]^T.
[[nodiscard]] Result<Graph> makeLinear(const Symbol& tokens, int64_t n, int64_t k, DType dtype);
/// y[M, columns] = a[M, columns] + b[M, columns].
[[nodiscard]] Result<Graph> makeAdd(const Symbol& tokens, int64_t columns, DType dtype);
/// Both in place: residual[M, columns] += x[M, columns]; x = rms_norm(residual, weight[columns], eps).
[[nodiscard]] Result<Graph> makeAddRmsNorm(const Symbol& tokens, int64_t columns, double eps, DType dtype);
/// y[M, columns] = OP(gate[M, columns], up[M, columns]), OP one of silu_mul, gelu_mul, gelu_tanh_mul; gate and up are
/// the halves of one tensor [M, 2 * columns].
[[nodiscard]] Result<Graph> makeGated(std::string_view op, const Symbol& tokens, int64_t columns, DType dtype);

}  // namespace ktune::op
