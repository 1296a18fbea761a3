// A scalar known when the description is written.

#include <cmath>

#include "ir/op/Operator.h"
#include "ir/op/ReferenceKernels.h"

namespace ktune::op {
namespace {

Result<ValueType> infer(const Graph&, const Node& node, std::span<const ValueType>) {
  Result<DType> dtype = parseDType(textAttribute(node, "dtype"));
  if (!dtype) return dtype.error().withPrefix("attribute 'dtype'");
  const double value = numberAttribute(node, "value");
  if (*dtype == DType::kI32) {
    if (roundTo(DType::kI32, value) != value) {
      return invalidArgument("attribute 'value' must be an integer of 32 bits for dtype i32, is " +
                             std::to_string(value));
    }
  } else {
    const Status isFloat = requireFloat(node.op, *dtype);
    if (!isFloat.isOk()) return unsupported(isFloat.message() + ", or i32");
    if (!std::isfinite(roundTo(*dtype, value))) {
      return invalidArgument("attribute 'value' is too large for dtype " + std::string(dtypeName(*dtype)));
    }
  }
  return ValueType{*dtype, {}};
}

/// The value as written; a kernel may hold it rounded to the dtype.
Status reference(const RefContext& context, const Node& node, std::span<const RefTensor* const>, RefTensor& result) {
  allocate(result, {});
  result.values[0] = numberAttribute(node, "value");
  result.bounds[0] = std::fabs(roundTo(context.resultType, result.values[0]) - result.values[0]);
  return Status::ok();
}

double operations(const Node&, std::span<const ValueType>, const ValueType&, const std::vector<int64_t>&) {
  return 0;
}

OperatorDef define() {
  OperatorDef def;
  def.name = "constant";
  def.kind = OperatorKind::kConstant;
  def.operandCount = 0;
  def.summary = "y = value, a scalar of rank 0";
  def.attributes = {
      {"value", AttributeDef::Type::kNumber, /*required=*/true, 0.0, "the number"},
      {"dtype", AttributeDef::Type::kText, /*required=*/false, std::string("f32"), "its element type"},
  };
  def.infer = infer;
  def.reference = reference;
  def.operations = operations;
  return def;
}

}  // namespace

extern const OperatorDef kOperator_constant;
const OperatorDef kOperator_constant = define();

}  // namespace ktune::op
