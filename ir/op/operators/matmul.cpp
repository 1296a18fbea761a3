// The contraction primitive.

#include "ir/op/Operator.h"
#include "ir/op/ReferenceKernels.h"

namespace ktune::op {
namespace {

Status reference(const RefContext& context, const Node&, std::span<const RefTensor* const> operands,
                 RefTensor& result) {
  return contractionReference(context, *operands[0], *operands[1], result);
}

OperatorDef define() {
  OperatorDef def;
  def.name = "matmul";
  def.kind = OperatorKind::kContraction;
  def.operandCount = 2;
  def.summary = "y[..., n] = sum over k of x[..., k] * w[n, k]";
  def.infer = inferContraction;
  def.reference = reference;
  def.operations = contractionOperations;
  return def;
}

}  // namespace

extern const OperatorDef kOperator_matmul;
const OperatorDef kOperator_matmul = define();

}  // namespace ktune::op
