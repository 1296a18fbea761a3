#include "ir/dialect/KtuneDialect.h"

#include "ir/dialect/KtuneDialect.cpp.inc"
#include "llvm/ADT/TypeSwitch.h"

#define GET_ATTRDEF_CLASSES
#include "ir/dialect/KtuneAttributes.cpp.inc"

#define GET_OP_CLASSES
#include "ir/dialect/KtuneOps.cpp.inc"

namespace ktune::ir {

void KtuneDialect::initialize() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "ir/dialect/KtuneAttributes.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "ir/dialect/KtuneOps.cpp.inc"
      >();
}

void registerDialects(mlir::DialectRegistry& registry) {
  registry.insert<KtuneDialect, mlir::affine::AffineDialect, mlir::arith::ArithDialect, mlir::cf::ControlFlowDialect,
                  mlir::func::FuncDialect, mlir::linalg::LinalgDialect, mlir::LLVM::LLVMDialect,
                  mlir::math::MathDialect, mlir::memref::MemRefDialect, mlir::scf::SCFDialect,
                  mlir::tensor::TensorDialect, mlir::vector::VectorDialect>();
}

void loadDialects(mlir::MLIRContext& context) {
  mlir::DialectRegistry registry;
  registerDialects(registry);
  context.appendDialectRegistry(registry);
  context.loadAllAvailableDialects();
}

namespace {

constexpr llvm::StringLiteral kSchedulePrefix = "#ktune.schedule<";

std::string wholeText(llvm::StringRef inner) {
  return (kSchedulePrefix + inner + ">").str();
}

std::string innerText(const schedule::KernelSchedule& schedule) {
  std::string text = schedule.text();
  return text.substr(kSchedulePrefix.size(), text.size() - kSchedulePrefix.size() - 1);
}

mlir::LogicalResult verifyTileAccess(mlir::Operation* op, mlir::MemRefType buffer, mlir::RankedTensorType tile) {
  if (tile.getRank() != 2) return op->emitOpError("a tile has rows and columns, got ") << tile;
  if (buffer.getElementType() != tile.getElementType())
    return op->emitOpError("buffer holds ") << buffer.getElementType() << ", tile has " << tile.getElementType();
  return mlir::success();
}

mlir::RankedTensorType tileType(mlir::Value value) {
  return llvm::cast<mlir::RankedTensorType>(value.getType());
}

}  // namespace

mlir::Attribute ScheduleAttr::parse(mlir::AsmParser& parser, mlir::Type) {
  llvm::SMLoc where = parser.getCurrentLocation();
  std::string inner;
  auto item = [&]() -> mlir::ParseResult {
    llvm::StringRef name;
    if (parser.parseKeyword(&name) || parser.parseEqual()) return mlir::failure();
    if (!inner.empty()) inner += ", ";
    inner += (name + " = ").str();
    int64_t number = 0;
    mlir::OptionalParseResult parsed = parser.parseOptionalInteger(number);
    if (parsed.has_value()) {
      inner += std::to_string(number);
      return *parsed;
    }
    llvm::StringRef word;
    if (parser.parseKeyword(&word)) return mlir::failure();
    inner += word.str();
    return mlir::success();
  };
  if (parser.parseCommaSeparatedList(mlir::AsmParser::Delimiter::LessGreater, item)) return {};
  Result<schedule::KernelSchedule> schedule = schedule::KernelSchedule::parse(wholeText(inner));
  if (!schedule) {
    parser.emitError(where, schedule.error().message());
    return {};
  }
  return scheduleAttr(parser.getContext(), *schedule);
}

void ScheduleAttr::print(mlir::AsmPrinter& printer) const {
  printer << "<" << getText() << ">";
}

mlir::Attribute GenomeAttr::parse(mlir::AsmParser& parser, mlir::Type) {
  llvm::SmallVector<int64_t> fuse;
  llvm::SmallVector<ScheduleAttr> kernels;
  auto bit = [&]() -> mlir::ParseResult { return parser.parseInteger(fuse.emplace_back()); };
  auto kernel = [&]() -> mlir::ParseResult { return parser.parseAttribute(kernels.emplace_back()); };
  using Delimiter = mlir::AsmParser::Delimiter;
  if (parser.parseLess() || parser.parseKeyword("fuse") || parser.parseEqual() ||
      parser.parseCommaSeparatedList(Delimiter::Square, bit) || parser.parseComma() || parser.parseKeyword("kernels") ||
      parser.parseEqual() || parser.parseCommaSeparatedList(Delimiter::Square, kernel) || parser.parseGreater())
    return {};
  return get(parser.getContext(), fuse, kernels);
}

void GenomeAttr::print(mlir::AsmPrinter& printer) const {
  printer << "<fuse = [";
  llvm::interleaveComma(getFuse(), printer);
  printer << "], kernels = [";
  llvm::interleaveComma(getKernels(), printer, [&](ScheduleAttr kernel) { printer.printAttribute(kernel); });
  printer << "]>";
}

schedule::KernelSchedule scheduleOf(ScheduleAttr attribute) {
  Result<schedule::KernelSchedule> parsed = schedule::KernelSchedule::parse(wholeText(attribute.getText()));
  return parsed ? *parsed : schedule::KernelSchedule{};
}

ScheduleAttr scheduleAttr(mlir::MLIRContext* context, const schedule::KernelSchedule& schedule) {
  return ScheduleAttr::get(context, innerText(schedule));
}

schedule::PlanGenome genomeOf(GenomeAttr attribute) {
  schedule::PlanGenome genome;
  for (int64_t bit : attribute.getFuse()) genome.fuse.push_back(bit != 0);
  for (ScheduleAttr kernel : attribute.getKernels()) genome.kernels.push_back(scheduleOf(kernel));
  return genome;
}

GenomeAttr genomeAttr(mlir::MLIRContext* context, const schedule::PlanGenome& genome) {
  llvm::SmallVector<int64_t> fuse(genome.fuse.begin(), genome.fuse.end());
  llvm::SmallVector<ScheduleAttr> kernels;
  for (const schedule::KernelSchedule& kernel : genome.kernels) kernels.push_back(scheduleAttr(context, kernel));
  return GenomeAttr::get(context, fuse, kernels);
}

mlir::LogicalResult LoadTileOp::verify() {
  return verifyTileAccess(*this, llvm::cast<mlir::MemRefType>(getBuffer().getType()), tileType(getResult()));
}

mlir::LogicalResult StoreTileOp::verify() {
  return verifyTileAccess(*this, llvm::cast<mlir::MemRefType>(getBuffer().getType()), tileType(getTile()));
}

mlir::LogicalResult MmaOp::verify() {
  auto accumulator = tileType(getAccumulator()), lhs = tileType(getLhs()), rhs = tileType(getRhs());
  if (accumulator.getRank() != 2 || lhs.getRank() != 2 || rhs.getRank() != 2)
    return emitOpError("tiles have rows and columns");
  if (lhs.getDimSize(0) != accumulator.getDimSize(0) || rhs.getDimSize(0) != accumulator.getDimSize(1) ||
      lhs.getDimSize(1) != rhs.getDimSize(1))
    return emitOpError("wants accumulator MxN, lhs MxK and rhs NxK, got ") << accumulator << ", " << lhs << ", " << rhs;
  return mlir::success();
}

llvm::StringRef combineName(op::Combine combine) {
  switch (combine) {
    case op::Combine::kSum:
      return "sum";
    case op::Combine::kMaximum:
      return "maximum";
    case op::Combine::kMinimum:
      return "minimum";
  }
  return "";
}

std::optional<op::Combine> combineOf(llvm::StringRef name) {
  for (op::Combine combine : {op::Combine::kSum, op::Combine::kMaximum, op::Combine::kMinimum})
    if (combineName(combine) == name) return combine;
  return std::nullopt;
}

mlir::Attribute identityOf(op::Combine combine, mlir::Type element) {
  mlir::Builder b(element.getContext());
  auto floating = llvm::dyn_cast<mlir::FloatType>(element);
  if (combine == op::Combine::kSum || !floating) return b.getZeroAttr(element);
  return b.getFloatAttr(element, llvm::APFloat::getInf(floating.getFloatSemantics(), combine == op::Combine::kMaximum));
}

mlir::Value combined(mlir::OpBuilder& b, mlir::Location loc, op::Combine combine, mlir::Value x, mlir::Value y) {
  const bool floats = llvm::isa<mlir::FloatType>(mlir::getElementTypeOrSelf(x.getType()));
  switch (combine) {
    case op::Combine::kSum:
      return floats ? mlir::arith::AddFOp::create(b, loc, x, y).getResult()
                    : mlir::arith::AddIOp::create(b, loc, x, y).getResult();
    case op::Combine::kMaximum:
      return mlir::arith::MaximumFOp::create(b, loc, x, y);
    case op::Combine::kMinimum:
      return mlir::arith::MinimumFOp::create(b, loc, x, y);
  }
  return {};
}

mlir::LogicalResult ReduceOp::verify() {
  auto from = tileType(getTile()), to = tileType(getResult());
  if (from.getRank() != 2 || to.getRank() != 2 || to.getDimSize(0) != from.getDimSize(0) || to.getDimSize(1) != 1)
    return emitOpError("wants tensor<RxC> -> tensor<Rx1>, got ") << from << " -> " << to;
  if (!combineOf(getCombine())) return emitOpError("combines by sum, maximum or minimum, not by ") << getCombine();
  return mlir::success();
}

mlir::LogicalResult MaskOp::verify() {
  if (!combineOf(getCombine())) return emitOpError("combines by sum, maximum or minimum, not by ") << getCombine();
  return mlir::success();
}

mlir::LogicalResult BroadcastOp::verify() {
  auto from = tileType(getTile()), to = tileType(getResult());
  bool fits = from.getRank() == 2 && to.getRank() == 2 && from.getElementType() == to.getElementType();
  for (int dim = 0; fits && dim < 2; ++dim)
    fits = from.getDimSize(dim) == 1 || from.getDimSize(dim) == to.getDimSize(dim);
  if (!fits) return emitOpError("cannot repeat ") << from << " to " << to;
  return mlir::success();
}

}  // namespace ktune::ir
