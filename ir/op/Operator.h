// The operator table: one OperatorDef per operator, one file per operator (or family of scalar operators) under
// operators/, one line in cmake/KtuneOperators.cmake. Nothing else in the code names an operator.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/op/Graph.h"

namespace ktune::op {

/// How generators may treat an operator. Composites are expanded before any generator sees them.
enum class OperatorKind : uint8_t {
  kComposite,
  kConstant,     ///< No operands; a scalar from the attribute "value".
  kElementwise,  ///< Every result element depends on the elements at its (broadcast) position.
  kReduction,    ///< Combines the elements of the last dim, which stays with extent 1.
  kContraction,  ///< x[..., M, K] * w[N, K]^T -> [..., M, N].
};

/// How a reduction combines two elements.
enum class Combine : uint8_t {
  kSum,
  kMaximum,  ///< NaN wins.
  kMinimum,
};

/// What an attribute may be.
struct AttributeDef {
  std::string_view name;
  enum class Type : uint8_t { kInteger, kNumber, kText } type;
  bool required = true;
  Attribute otherwise = int64_t{0};  ///< The default when not required.
  std::string_view meaning;
};

/// A tensor of the fp64 reference: dense row-major values, and for each the bound on the error that an honest
/// implementation at the contract's precision may make (absolute, in the units of the value).
struct RefTensor {
  std::vector<int64_t> shape;
  std::vector<double> values;
  std::vector<double> bounds;
};

/// Runs BODY(begin, end) over [0, count) in pieces, possibly on several threads.
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t begin, int64_t end)>& body)>;

class DotEngine;  // ir/op/Reference.h

struct RefContext {
  const NumericContract* numerics = nullptr;
  DType resultType = DType::kF32;
  const ParallelFor* parallelFor = nullptr;
  DotEngine* dotEngine = nullptr;  ///< For large contractions; may be null.
};

/// One operator. All functions are pure.
struct OperatorDef {
  std::string_view name;
  OperatorKind kind = OperatorKind::kElementwise;
  int operandCount = 0;
  std::string_view summary;  ///< One line with the formula, for docs/operators.md.
  std::vector<AttributeDef> attributes;

  /// Type of the result, or why the operands do not fit (kInvalidArgument / kUnsupported), without the node's name.
  Result<ValueType> (*infer)(const Graph& graph, const Node& node, std::span<const ValueType> operands) = nullptr;
  /// Composites only: appends primitives (or other composites) to BUILDER, whose value ids stand for the operands;
  /// returns the id of the result.
  Result<int32_t> (*decompose)(class ExpandBuilder& builder, const Node& node, std::span<const int32_t> operands,
                               std::span<const ValueType> operandTypes) = nullptr;
  /// The fp64 reference with error bounds, straight from the formula (never through decompose).
  Status (*reference)(const RefContext& context, const Node& node, std::span<const RefTensor* const> operands,
                      RefTensor& result) = nullptr;
  Combine combine = Combine::kSum;  ///< Reductions only.
  /// Elementwise only: more than arithmetic and roots, which devices may have for some types only.
  bool transcendental = false;
  /// Elementwise only: the scalar function (b is ignored by unary operators).
  double (*scalar)(double a, double b) = nullptr;
  /// Operations (multiply and add count one each) of one evaluation.
  double (*operations)(const Node& node, std::span<const ValueType> operands, const ValueType& result,
                       const std::vector<int64_t>& symbolValues) = nullptr;
};

/// All operators, in table order.
[[nodiscard]] std::span<const OperatorDef* const> operatorTable();
/// nullptr when there is none of that name.
[[nodiscard]] const OperatorDef* findOperator(std::string_view name);
/// The attribute's value or its default. REQUIRES: the node is verified.
[[nodiscard]] double numberAttribute(const Node& node, std::string_view name);
/// Likewise for a text attribute.
[[nodiscard]] std::string textAttribute(const Node& node, std::string_view name);

/// What decompose() appends to.
class ExpandBuilder {
 public:
  ExpandBuilder(Graph& graph, std::vector<ValueType>& types) : graph_(graph), types_(types) {}
  /// Appends a node; infers its type. Errors: as the operator's infer.
  Result<int32_t> add(std::string_view op, std::vector<int32_t> operands,
                      std::map<std::string, Attribute> attributes = {});
  Result<int32_t> constant(DType dtype, double value);
  [[nodiscard]] const ValueType& typeOf(int32_t value) const { return types_[static_cast<size_t>(value)]; }

 private:
  Graph& graph_;
  std::vector<ValueType>& types_;
};

}  // namespace ktune::op
