// ktune-decompose: named operators become the linalg operations of their primitives, by the operator table's own
// expansion. Knows no operator by name.
#include "ir/lower/Lower.h"
#include "ir/op/Builder.h"
#include "ir/op/Operator.h"

namespace ktune::ir {

using namespace mlir;

namespace {

FailureOr<op::DType> dtypeOf(Type type) {
  for (int i = 0; i < op::kDTypeCount; ++i)
    if (elementType(type.getContext(), static_cast<op::DType>(i)) == type) return static_cast<op::DType>(i);
  return failure();
}

/// A description with just this operation in it. A dynamic extent becomes a symbol of its position: operands that
/// meet in one operator agree there or the IR was wrong to begin with.
FailureOr<op::Graph> descriptionOf(OperatorOp named) {
  op::GraphBuilder builder;
  std::map<int64_t, int32_t> symbols;
  std::vector<int32_t> operands;
  for (auto [index, operand] : llvm::enumerate(named.getOperands())) {
    auto type = cast<RankedTensorType>(operand.getType());
    FailureOr<op::DType> dtype = dtypeOf(type.getElementType());
    if (failed(dtype)) return named.emitOpError("has no description for operand type ") << type;
    op::Shape shape;
    for (int64_t dim = 0; dim < type.getRank(); ++dim) {
      if (!type.isDynamicDim(dim)) {
        shape.push_back(op::Dim::fixed(type.getDimSize(dim)));
        continue;
      }
      if (!symbols.count(dim)) symbols[dim] = builder.symbol("d" + std::to_string(dim), 1, int64_t{1} << 20);
      shape.push_back(op::Dim::symbolic(symbols[dim]));
    }
    operands.push_back(builder.input("x" + std::to_string(index), *dtype, shape));
  }
  std::map<std::string, op::Attribute> attributes;
  for (NamedAttribute entry : named->getAttrs()) {
    if (entry.getName() == named.getCalleeAttrName()) continue;
    std::string name = entry.getName().str();
    if (auto number = dyn_cast<FloatAttr>(entry.getValue())) attributes[name] = number.getValueAsDouble();
    if (auto integer = dyn_cast<IntegerAttr>(entry.getValue())) attributes[name] = integer.getInt();
    if (auto text = dyn_cast<StringAttr>(entry.getValue())) attributes[name] = text.getValue().str();
  }
  builder.output(builder.node(named.getCallee().str(), operands, attributes, "result"));
  Result<op::Graph> graph = builder.finish();
  if (!graph) return named.emitOpError() << graph.error().message();
  return *graph;
}

LogicalResult decompose(OperatorOp named) {
  FailureOr<op::Graph> described = descriptionOf(named);
  if (failed(described)) return failure();
  Result<op::Graph> expanded = op::expand(*described);
  if (!expanded) return named.emitOpError() << expanded.error().message();
  Result<std::vector<op::ValueType>> types = op::inferTypes(*expanded);
  if (!types) return named.emitOpError() << types.error().message();

  OpBuilder b(named);
  SmallVector<Value> values(named.getOperands());
  for (size_t i = 0; i < expanded->nodes.size(); ++i) {
    const op::Node& node = expanded->nodes[i];
    SmallVector<Value> operands;
    for (int32_t id : node.operands) operands.push_back(values[static_cast<size_t>(id)]);
    FailureOr<Value> value = buildPrimitive(b, named.getLoc(), *expanded, node,
                                            (*types)[static_cast<size_t>(expanded->resultOf(i))], operands);
    if (failed(value)) return failure();
    values.push_back(*value);
  }
  named.getResult().replaceAllUsesWith(values[static_cast<size_t>(expanded->outputs[0].value)]);
  named.erase();
  return success();
}

struct DecomposePass : PassWrapper<DecomposePass, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(DecomposePass)
  void getDependentDialects(DialectRegistry& registry) const final { registerDialects(registry); }
  StringRef getArgument() const final { return "ktune-decompose"; }
  StringRef getDescription() const final { return "Replace named operators by linalg operations of their primitives"; }
  void runOnOperation() final {
    SmallVector<OperatorOp> named;
    getOperation().walk([&](OperatorOp op) { named.push_back(op); });
    for (OperatorOp op : named)
      if (failed(decompose(op))) return signalPassFailure();
  }
};

}  // namespace

std::unique_ptr<Pass> createDecomposePass() {
  return std::make_unique<DecomposePass>();
}

void registerLowerPasses() {
  registerPass(createDecomposePass);
  registerPass(createGeneratePass);
}

}  // namespace ktune::ir
