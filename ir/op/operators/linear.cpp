// A linear layer without bias, as models write it: the weight is [out features, in features].

#include "ir/op/Operator.h"
#include "ir/op/ReferenceKernels.h"

namespace ktune::op {
namespace {

Result<int32_t> decompose(ExpandBuilder& builder, const Node&, std::span<const int32_t> operands,
                          std::span<const ValueType>) {
  return builder.add("matmul", {operands[0], operands[1]});
}

Status reference(const RefContext& context, const Node&, std::span<const RefTensor* const> operands,
                 RefTensor& result) {
  return contractionReference(context, *operands[0], *operands[1], result);
}

OperatorDef define() {
  OperatorDef def;
  def.name = "linear";
  def.kind = OperatorKind::kComposite;
  def.operandCount = 2;
  def.summary = "y[..., n] = sum over k of x[..., k] * weight[n, k]";
  def.infer = inferContraction;
  def.decompose = decompose;
  def.reference = reference;
  def.operations = contractionOperations;
  return def;
}

}  // namespace

extern const OperatorDef kOperator_linear;
const OperatorDef kOperator_linear = define();

}  // namespace ktune::op
