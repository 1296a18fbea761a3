#include "ir/lower/Lower.h"
#include "ir/op/GraphJson.h"
#include "ir/op/Operator.h"

namespace ktune::ir {

using namespace mlir;

Type elementType(MLIRContext* context, op::DType dtype) {
  switch (dtype) {
    case op::DType::kF64:
      return Float64Type::get(context);
    case op::DType::kF32:
      return Float32Type::get(context);
    case op::DType::kF16:
      return Float16Type::get(context);
    case op::DType::kBF16:
      return BFloat16Type::get(context);
    case op::DType::kI8:
      return IntegerType::get(context, 8);
    case op::DType::kI32:
      return IntegerType::get(context, 32);
    case op::DType::kI64:
      return IntegerType::get(context, 64);
    case op::DType::kBool:
      return IntegerType::get(context, 1);
    case op::DType::kF8E4M3:
      return Float8E4M3FNType::get(context);
    case op::DType::kF8E5M2:
      return Float8E5M2Type::get(context);
  }
  return {};
}

namespace {

RankedTensorType tensorType(MLIRContext* context, const op::ValueType& type) {
  SmallVector<int64_t> shape;
  for (const op::Dim& dim : type.shape) shape.push_back(dim.isStatic() ? dim.factor : ShapedType::kDynamic);
  return RankedTensorType::get(shape, elementType(context, type.dtype));
}

/// One scalar step of an elementwise primitive.
using ScalarBuilder = Value (*)(OpBuilder&, Location, Value, Value);
template <typename Op>
Value unary(OpBuilder& b, Location loc, Value a, Value) {
  return Op::create(b, loc, a);
}
template <typename Op>
Value binary(OpBuilder& b, Location loc, Value a, Value c) {
  return Op::create(b, loc, a, c);
}
struct ScalarEntry {
  llvm::StringLiteral name;
  ScalarBuilder onFloats, onIntegers;
};
constexpr ScalarEntry kScalars[] = {
    {"add", binary<arith::AddFOp>, binary<arith::AddIOp>},
    {"sub", binary<arith::SubFOp>, binary<arith::SubIOp>},
    {"mul", binary<arith::MulFOp>, binary<arith::MulIOp>},
    {"div", binary<arith::DivFOp>, nullptr},
    {"maximum", binary<arith::MaximumFOp>, binary<arith::MaxSIOp>},
    {"minimum", binary<arith::MinimumFOp>, binary<arith::MinSIOp>},
    {"neg", unary<arith::NegFOp>, nullptr},
    {"sqrt", unary<math::SqrtOp>, nullptr},
    {"rsqrt", unary<math::RsqrtOp>, nullptr},
    {"abs", unary<math::AbsFOp>, nullptr},
    {"exp", unary<math::ExpOp>, nullptr},
    {"log", unary<math::LogOp>, nullptr},
    {"tanh", unary<math::TanhOp>, nullptr},
    {"erf", unary<math::ErfOp>, nullptr},
};

/// tensor.empty of the result, its dynamic sizes taken from an operand dim that stands for the same extent.
Value emptyResult(OpBuilder& b, Location loc, RankedTensorType type, const op::ValueType& result,
                  ArrayRef<const op::ValueType*> operandTypes, ValueRange operands) {
  SmallVector<Value> sizes;
  for (const op::Dim& dim : result.shape) {
    if (dim.isStatic()) continue;
    for (size_t i = 0; i < operands.size(); ++i) {
      const op::Shape& shape = operandTypes[i]->shape;
      auto at = llvm::find(shape, dim);
      if (at == shape.end()) continue;
      sizes.push_back(tensor::DimOp::create(b, loc, operands[i], at - shape.begin()));
      break;
    }
  }
  return tensor::EmptyOp::create(b, loc, type.getShape(), type.getElementType(), sizes);
}

/// Which loop dims index an operand of an elementwise operation: right-aligned, 0 where it is repeated.
AffineMap broadcastMap(MLIRContext* context, const op::Shape& operand, const op::Shape& result) {
  SmallVector<AffineExpr> exprs;
  size_t skip = result.size() - operand.size();
  for (size_t i = 0; i < operand.size(); ++i) {
    bool repeated = operand[i] != result[skip + i];
    exprs.push_back(repeated ? getAffineConstantExpr(0, context) : getAffineDimExpr(skip + i, context));
  }
  return AffineMap::get(result.size(), 0, exprs, context);
}

/// The operand types of a node as the graph has them; a node's own graph is needed to look them up.
SmallVector<const op::ValueType*> lookUp(const std::vector<op::ValueType>& types, const op::Node& node) {
  SmallVector<const op::ValueType*> result;
  for (int32_t id : node.operands) result.push_back(&types[static_cast<size_t>(id)]);
  return result;
}

Value buildElementwise(OpBuilder& b, Location loc, const ScalarEntry& entry, ArrayRef<const op::ValueType*> types,
                       const op::ValueType& result, ValueRange operands) {
  MLIRContext* context = b.getContext();
  RankedTensorType type = tensorType(context, result);
  SmallVector<AffineMap> maps;
  for (const op::ValueType* operand : types) maps.push_back(broadcastMap(context, operand->shape, result.shape));
  maps.push_back(b.getMultiDimIdentityMap(result.shape.size()));
  Value empty = emptyResult(b, loc, type, result, types, operands);
  SmallVector<utils::IteratorType> iterators(result.shape.size(), utils::IteratorType::parallel);
  auto body = [&](OpBuilder& inner, Location innerLoc, ValueRange args) {
    auto scalar = op::isFloat(result.dtype) ? entry.onFloats : entry.onIntegers;
    Value value = scalar(inner, innerLoc, args[0], operands.size() > 1 ? args[1] : Value());
    linalg::YieldOp::create(inner, innerLoc, value);
  };
  return linalg::GenericOp::create(b, loc, TypeRange{type}, operands, ValueRange{empty}, maps, iterators, body)
      .getResult(0);
}

/// The result that reductions and contractions start from.
Value startResult(OpBuilder& b, Location loc, op::Combine combine, Value empty) {
  Type element = cast<RankedTensorType>(empty.getType()).getElementType();
  Value start = arith::ConstantOp::create(b, loc, cast<TypedAttr>(identityOf(combine, element)));
  return linalg::FillOp::create(b, loc, ValueRange{start}, ValueRange{empty}).getResult(0);
}

Value buildReduction(OpBuilder& b, Location loc, op::Combine combine, ArrayRef<const op::ValueType*> types,
                     const op::ValueType& result, ValueRange operands) {
  MLIRContext* context = b.getContext();
  RankedTensorType type = tensorType(context, result);
  size_t rank = result.shape.size();
  Value init = startResult(b, loc, combine, emptyResult(b, loc, type, result, types, operands));
  SmallVector<AffineExpr> out;
  for (size_t i = 0; i + 1 < rank; ++i) out.push_back(getAffineDimExpr(i, context));
  out.push_back(getAffineConstantExpr(0, context));
  SmallVector<AffineMap> maps{b.getMultiDimIdentityMap(rank), AffineMap::get(rank, 0, out, context)};
  SmallVector<utils::IteratorType> iterators(rank, utils::IteratorType::parallel);
  iterators.back() = utils::IteratorType::reduction;
  auto body = [combine](OpBuilder& inner, Location innerLoc, ValueRange args) {
    linalg::YieldOp::create(inner, innerLoc, combined(inner, innerLoc, combine, args[1], args[0]));
  };
  return linalg::GenericOp::create(b, loc, TypeRange{type}, operands, ValueRange{init}, maps, iterators, body)
      .getResult(0);
}

Value buildContraction(OpBuilder& b, Location loc, ArrayRef<const op::ValueType*> types, const op::ValueType& result,
                       ValueRange operands) {
  MLIRContext* context = b.getContext();
  RankedTensorType type = tensorType(context, result);
  size_t rank = result.shape.size();  // Loops: the result's dims, then k.
  Value init = startResult(b, loc, op::Combine::kSum, emptyResult(b, loc, type, result, types, operands));
  SmallVector<AffineExpr> x, y;
  for (size_t i = 0; i < rank; ++i) y.push_back(getAffineDimExpr(i, context));
  x.assign(y.begin(), y.end() - 1);
  AffineExpr k = getAffineDimExpr(rank, context);
  x.push_back(k);
  SmallVector<AffineExpr> w{getAffineDimExpr(rank - 1, context), k};
  SmallVector<AffineMap> maps{AffineMap::get(rank + 1, 0, x, context), AffineMap::get(rank + 1, 0, w, context),
                              AffineMap::get(rank + 1, 0, y, context)};
  SmallVector<utils::IteratorType> iterators(rank, utils::IteratorType::parallel);
  iterators.push_back(utils::IteratorType::reduction);
  auto body = [](OpBuilder& inner, Location innerLoc, ValueRange args) {
    Value product = isa<FloatType>(args[0].getType()) ? Value(arith::MulFOp::create(inner, innerLoc, args[0], args[1]))
                                                      : Value(arith::MulIOp::create(inner, innerLoc, args[0], args[1]));
    linalg::YieldOp::create(inner, innerLoc, combined(inner, innerLoc, op::Combine::kSum, args[2], product));
  };
  return linalg::GenericOp::create(b, loc, TypeRange{type}, operands, ValueRange{init}, maps, iterators, body)
      .getResult(0);
}

Attribute attributeOf(OpBuilder& b, const op::Attribute& value) {
  if (const int64_t* integer = std::get_if<int64_t>(&value)) return b.getI64IntegerAttr(*integer);
  if (const double* number = std::get_if<double>(&value)) return b.getF64FloatAttr(*number);
  return b.getStringAttr(std::get<std::string>(value));
}

}  // namespace

namespace {

FailureOr<Value> buildUnmarked(OpBuilder& b, Location loc, const op::Graph& graph, const op::Node& node,
                               const op::ValueType& resultType, ValueRange operands) {
  const op::OperatorDef* def = op::findOperator(node.op);
  Result<std::vector<op::ValueType>> types = op::inferTypes(graph);
  if (!def || !types) return emitError(loc, "operator '") << node.op << "' is unknown or badly typed";
  SmallVector<const op::ValueType*> operandTypes = lookUp(*types, node);
  switch (def->kind) {
    case op::OperatorKind::kConstant: {
      RankedTensorType type = tensorType(b.getContext(), resultType);
      Type element = type.getElementType();
      double value = op::numberAttribute(node, "value");
      auto floating = dyn_cast<FloatType>(element);
      Attribute rounded = floating ? Attribute(b.getFloatAttr(floating, value))
                                   : Attribute(b.getIntegerAttr(element, static_cast<int64_t>(value)));
      auto constant = arith::ConstantOp::create(b, loc, DenseElementsAttr::get(type, rounded));
      // A kernel that computes wider than it stores may use the constant as it was written.
      if (floating && floating.getWidth() < 32) constant->setAttr(kValueAttr, b.getF64FloatAttr(value));
      return Value(constant);
    }
    case op::OperatorKind::kElementwise: {
      const auto* entry = llvm::find_if(kScalars, [&](const ScalarEntry& e) { return e.name == node.op; });
      bool floats = op::isFloat(resultType.dtype);
      if (entry == std::end(kScalars) || !(floats ? entry->onFloats : entry->onIntegers))
        return emitError(loc, "no lowering of '") << node.op << "' on " << op::dtypeName(resultType.dtype);
      return buildElementwise(b, loc, *entry, operandTypes, resultType, operands);
    }
    case op::OperatorKind::kReduction:
      return buildReduction(b, loc, def->combine, operandTypes, resultType, operands);
    case op::OperatorKind::kContraction:
      return buildContraction(b, loc, operandTypes, resultType, operands);
    case op::OperatorKind::kComposite:
      break;
  }
  return emitError(loc, "'") << node.op << "' is a composite: it must be decomposed first";
}

}  // namespace

FailureOr<Value> buildPrimitive(OpBuilder& b, Location loc, const op::Graph& graph, const op::Node& node,
                                const op::ValueType& resultType, ValueRange operands) {
  FailureOr<Value> value = buildUnmarked(b, loc, graph, node, resultType, operands);
  if (succeeded(value)) value->getDefiningOp()->setAttr(kPrimitiveAttr, b.getUnitAttr());
  return value;
}

ktune::Result<OwningOpRef<ModuleOp>> importProblem(MLIRContext& context, const schedule::Problem& problem) {
  const op::Graph& graph = problem.source;
  KTUNE_ASSIGN(std::vector<op::ValueType> types, op::inferTypes(graph));
  OpBuilder b(&context);
  Location loc = b.getUnknownLoc();
  OwningOpRef<ModuleOp> module = ModuleOp::create(loc);
  b.setInsertionPointToEnd(module->getBody());

  SmallVector<Type> inputs, outputs;
  for (const op::Input& input : graph.inputs) inputs.push_back(tensorType(&context, input.type));
  for (const op::Output& output : graph.outputs)
    outputs.push_back(tensorType(&context, types[static_cast<size_t>(output.value)]));
  auto function = func::FuncOp::create(b, loc, "operator", b.getFunctionType(inputs, outputs));
  std::vector<op::Bucket> buckets = op::bucketsOf(graph);
  function->setAttr(kDescriptionAttr, b.getStringAttr(op::toJson(graph).dump()));
  function->setAttr(kBucketAttr, b.getI64IntegerAttr(llvm::find(buckets, problem.bucket) - buckets.begin()));

  Block* entry = function.addEntryBlock();
  b.setInsertionPointToEnd(entry);
  SmallVector<Value> values(entry->getArguments());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const op::Node& node = graph.nodes[i];
    const op::ValueType& type = types[static_cast<size_t>(graph.resultOf(i))];
    SmallVector<Value> operands;
    for (int32_t id : node.operands) operands.push_back(values[static_cast<size_t>(id)]);
    if (op::findOperator(node.op)->kind == op::OperatorKind::kComposite) {
      auto named = OperatorOp::create(b, loc, tensorType(&context, type), node.op, operands);
      for (const auto& [name, value] : node.attributes) named->setAttr(name, attributeOf(b, value));
      values.push_back(named.getResult());
      continue;
    }
    FailureOr<Value> value = buildPrimitive(b, loc, graph, node, type, operands);
    if (failed(value)) return unsupported("no lowering of '" + node.op + "'");
    values.push_back(*value);
  }
  SmallVector<Value> results;
  for (const op::Output& output : graph.outputs) results.push_back(values[static_cast<size_t>(output.value)]);
  func::ReturnOp::create(b, loc, results);
  return module;
}

}  // namespace ktune::ir
