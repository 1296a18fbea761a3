#include "ir/emit/cuda/TileToCuda.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "ir/lower/Lower.h"

namespace ktune::emit {

using namespace mlir;
using schedule::Generator;
using schedule::KernelSchedule;

namespace {

/// What stands for a tile in the source: an array of a thread's elements, or a number.
struct Name {
  std::string text;
  bool oneRow = false, oneColumn = false;
  bool literal = false;
};

struct Buffer {
  std::string name, type, stride;
  int64_t alignment = 1;
  bool written = false, shared = false;
};

class KernelPrinter {
 public:
  explicit KernelPrinter(func::FuncOp kernel)
      : kernel(kernel), s(ir::scheduleOf(kernel->getAttrOfType<ir::ScheduleAttr>(ir::kScheduleAttr))) {}

  ktune::Result<std::string> print() {
    auto roleText = kernel->getAttrOfType<StringAttr>(ir::kRoleAttr);
    auto nameList = kernel->getAttrOfType<ArrayAttr>(ir::kNamesAttr);
    if (!roleText || !nameList) return internalError("the kernel was not made for cuda");
    combined = roleText.getValue() == "combined";
    kernel.walk([&](ir::StoreTileOp store) { written.insert(store.getBuffer()); });
    kernel.walk([&](ir::ReduceOp) { ++reductionsLeft; });
    SmallVector<StringRef> words;
    StringRef(kReserved).split(words, ' ');
    for (StringRef word : words) used.insert(word.str());
    for (auto [i, argument] : llvm::enumerate(kernel.getArguments())) {
      const std::string name = fresh(cast<StringAttr>(nameList[i]).getValue().str());
      if (isa<IndexType>(argument.getType())) {
        indices[argument] = name;
        continue;
      }
      Buffer buffer;
      buffer.name = name;
      buffer.type = storageType(cast<MemRefType>(argument.getType()).getElementType());
      buffer.alignment = kernel.getArgAttrOfType<IntegerAttr>(i, ir::kAlignmentAttr).getInt();
      buffer.written = written.count(argument) != 0;
      buffer.shared = kernel.getArgAttr(i, ir::kAliasedAttr) != nullptr;
      buffers[argument] = buffer;
    }
    for (auto [i, argument] : llvm::enumerate(kernel.getArguments())) {
      if (isa<IndexType>(argument.getType())) continue;
      auto stride = kernel.getArgAttrOfType<DenseI64ArrayAttr>(i, ir::kStrideAttr);
      std::string text = std::to_string(stride[0]);
      if (stride[1] >= 0) {
        // Symbols are the last arguments.
        const size_t symbols = llvm::count_if(kernel.getArgumentTypes(), [](Type t) { return isa<IndexType>(t); });
        Value symbol = kernel.getArgument(kernel.getNumArguments() - symbols + static_cast<size_t>(stride[1]));
        text = (stride[0] == 1 ? "" : text + " * ") + indices[symbol];
      }
      buffers[argument].stride = text;
    }
    printSignature();
    printBlock(kernel.getBody().front());
    flush();
    depth = 0;
    line("}");
    if (!problem.empty()) return internalError(problem);
    return out;
  }

 private:
  // Names that no value gets: C++, CUDA, and what the source is written with.
  static constexpr llvm::StringLiteral kReserved =
      "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t "
      "char32_t class compl concept const consteval constexpr constinit const_cast continue co_await "
      "co_return co_yield decltype default delete do double dynamic_cast else enum explicit export extern "
      "false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr "
      "operator or or_eq private protected public register reinterpret_cast requires return short signed "
      "sizeof static static_assert static_cast struct switch template this thread_local throw true try "
      "typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq "
      "threadIdx blockIdx blockDim gridDim warpSize "
      "Sum Maximum Minimum magnitude exponential logarithm hyperbolicTangent errorFunction squareRoot "
      "widen L i j shared rowTile columnTile least load store mask reduceRows inverseRoot maximum minimum "
      "bf16 f16 f32 f64 int64 uint32 uint16 contractDot contractSimt contractMma DotLayout SimtLayout "
      "MmaLayout BlockLayout rasterise ktune";
  func::FuncOp kernel;
  KernelSchedule s;
  bool combined = false;
  std::string out, problem;
  int depth = 0;
  int reductionsLeft = 0;
  std::set<std::string> used;
  std::map<std::string, int> counters;
  DenseSet<Value> written;
  DenseMap<Value, std::string> indices;
  DenseMap<Value, Buffer> buffers;
  // One entry is copied to another by lookup(): operator[] on the left moves what operator[] on the right refers to.
  DenseMap<Value, Name> tiles;
  int64_t tileRows = 1, tileColumns = 1;
  // Elementwise operations of one shape that follow each other share one loop nest.
  std::vector<std::string> declared, pending;
  bool pendingOneRow = false, pendingOneColumn = false;

  void line(const std::string& text) { out += std::string(static_cast<size_t>(depth) * 2, ' ') + text + "\n"; }
  void fail(const std::string& why) {
    if (problem.empty()) problem = why;
  }
  /// An identifier that was not used yet, made from WANTED.
  std::string fresh(std::string wanted) {
    for (char& c : wanted)
      if (!isalnum(static_cast<unsigned char>(c))) c = '_';
    if (wanted.empty() || isdigit(static_cast<unsigned char>(wanted[0]))) wanted = "v" + wanted;
    while (wanted.size() > 1 && wanted.find("__") != std::string::npos) wanted.erase(wanted.find("__"), 1);
    std::string name = wanted;
    while (!used.insert(name).second) name = wanted + std::to_string(++counters[wanted] + 1);
    return name;
  }

  // --- Types and numbers --------------------------------------------------------------------------------------------

  std::string storageType(Type type) {
    if (type.isF64()) return "f64";
    if (type.isF32()) return "f32";
    if (type.isF16()) return "f16";
    if (type.isBF16()) return "bf16";
    fail("no CUDA C++ type for this element type");
    return "f32";
  }
  /// The type that elements of TYPE are computed in.
  std::string computeType(Type type) { return getElementTypeOrSelf(type).isF64() ? "double" : "float"; }
  static std::string literal(double value, bool wide) {
    if (std::isnan(value)) return wide ? "__longlong_as_double(0x7ff8000000000000ll)" : "__int_as_float(0x7fc00000)";
    if (std::isinf(value)) {
      const char* sign = value < 0 ? "-" : "";
      return sign + std::string(wide ? "__longlong_as_double(0x7ff0000000000000ll)" : "__int_as_float(0x7f800000)");
    }
    char text[48];
    std::snprintf(text, sizeof text, wide ? "%.17g" : "%.9g", value);
    std::string number = text;
    if (number.find_first_of(".e") == std::string::npos) number += ".0";
    return wide ? number : number + "f";
  }

  // --- The head -----------------------------------------------------------------------------------------------------

  std::string layout() {
    if (combined || s.generator != Generator::kContraction) {
      int64_t threads = s.threads, columnThreads = s.columnThreads, lanes = s.lanes;
      if (combined) {
        auto shape = kernel->getAttrOfType<DenseI64ArrayAttr>(ir::kBlockAttr);
        threads = shape[2], columnThreads = shape[3], lanes = shape[4];
      }
      return "BlockLayout<" + numbers({tileRows, tileColumns, threads, columnThreads, lanes}) + ">";
    }
    if (s.instruction == 0)
      return "DotLayout<" + numbers({s.blockRows, s.threadColumns, s.warpColumns, s.warpDepth}) + ">";
    if (s.instruction == 1)
      return "SimtLayout<" + numbers({s.blockRows, s.blockColumns, s.threadRows, s.threadColumns, epilogueLanes()}) +
             ">";
    return "MmaLayout<" + numbers({s.blockRows, s.blockColumns, s.warpRows, s.warpColumns}) + ">";
  }
  /// Neighbouring elements of a register block that every row of the epilogue's buffers has whole.
  int64_t epilogueLanes() {
    auto shape = kernel->getAttrOfType<DenseI64ArrayAttr>(ir::kBlockAttr);
    int64_t lanes = shape[4];
    while (s.threadColumns % lanes != 0) lanes /= 2;
    return lanes;
  }
  static std::string numbers(std::initializer_list<int64_t> list) {
    std::string text;
    for (int64_t n : list) text += (text.empty() ? "" : ", ") + std::to_string(n);
    return text;
  }

  void printSignature() {
    auto shape = kernel->getAttrOfType<DenseI64ArrayAttr>(ir::kBlockAttr);
    tileRows = shape[0];
    tileColumns = shape[1];
    line("extern \"C\" __global__ void __launch_bounds__(" + std::to_string(shape[2]) + ")");
    std::string head = kernel.getSymName().str() + "(";
    bool first = true;
    for (Value argument : kernel.getArguments()) {
      if (!first) head += ", ";
      first = false;
      auto buffer = buffers.find(argument);
      if (buffer == buffers.end()) {
        head += "int64 " + indices[argument];
        continue;
      }
      const Buffer& b = buffer->second;
      head += (b.written ? "" : "const ") + b.type + "*" + (b.written || b.shared ? " " : " __restrict__ ") + b.name;
    }
    line(head + ") {");
    depth = 1;
    line("using L = " + layout() + ";");
    if (s.generator != Generator::kContraction) return;
    if (!combined && s.instruction == 2) line("KTUNE_DYNAMIC_SHARED(shared);");
    line("int64 rowTile, columnTile;");
    line("rasterise<" + std::to_string(combined ? 1 : s.rasterColumns) + ">(rowTile, columnTile);");
  }

  // --- Statements ---------------------------------------------------------------------------------------------------

  void printBlock(Block& block) {
    for (Operation& op : block.without_terminator()) printOperation(op);
  }

  void printOperation(Operation& op) {
    if (op.getNumResults() == 1 && isa<IndexType>(op.getResult(0).getType())) return printIndex(op);
    if (auto constant = dyn_cast<arith::ConstantOp>(op)) return printConstant(constant);
    if (auto compare = dyn_cast<arith::CmpIOp>(op)) {
      indices[compare.getResult()] = "(" + indices[compare.getLhs()] + " == " + indices[compare.getRhs()] + ")";
      return;
    }
    if (auto broadcast = dyn_cast<ir::BroadcastOp>(op)) {
      tiles[broadcast.getResult()] = tiles.lookup(broadcast.getTile());
      return;
    }
    if (isa<arith::TruncFOp, arith::ExtFOp>(op) &&
        computeType(op.getOperand(0).getType()) == computeType(op.getResult(0).getType())) {
      tiles[op.getResult(0)] = tiles.lookup(op.getOperand(0));
      return;
    }
    if (op.getNumResults() == 1 && op.getNumRegions() == 0 && op.getDialect() &&
        (op.getDialect()->getNamespace() == "arith" || op.getDialect()->getNamespace() == "math"))
      return printElementwise(op);
    flush();
    if (auto load = dyn_cast<ir::LoadTileOp>(op)) return printLoad(load);
    if (auto store = dyn_cast<ir::StoreTileOp>(op)) return printStore(store);
    if (auto mask = dyn_cast<ir::MaskOp>(op)) return printMask(mask);
    if (auto reduce = dyn_cast<ir::ReduceOp>(op)) return printReduce(reduce);
    if (auto contract = dyn_cast<ir::ContractOp>(op)) return printContract(contract);
    if (auto loop = dyn_cast<scf::ForOp>(op)) return printLoop(loop);
    if (auto branch = dyn_cast<scf::IfOp>(op)) return printBranch(branch);
    fail("no CUDA C++ for " + op.getName().getStringRef().str());
  }

  void printIndex(Operation& op) {
    Value result = op.getResult(0);
    auto binary = [&](const char* sign) {
      const std::string& a = indices[op.getOperand(0)];
      const std::string& b = indices[op.getOperand(1)];
      flush();
      const std::string name = fresh(hintOf(op));
      line("const int64 " + name + " = " + a + " " + sign + " " + b + ";");
      indices[result] = name;
    };
    if (auto times = dyn_cast<arith::MulIOp>(op); times && indices[op.getOperand(1)] == "1") {
      indices[result] = indices.lookup(op.getOperand(0));
    } else if (auto constant = dyn_cast<arith::ConstantOp>(op)) {
      indices[result] = std::to_string(cast<IntegerAttr>(constant.getValue()).getInt());
    } else if (auto id = dyn_cast<ir::TileIdOp>(op)) {
      const bool contraction = s.generator == Generator::kContraction;
      // A map over one row has its tiles along x.
      const bool alongX = s.generator == Generator::kMap && kernel->hasAttr(ir::kOneRowAttr);
      const char* names[] = {contraction ? "rowTile" : "int64(blockIdx.x)",
                             contraction ? "columnTile"
                             : alongX    ? "int64(blockIdx.x)"
                                         : "int64(blockIdx.y)",
                             "int64(blockIdx.z)"};
      indices[result] = names[id.getDim()];
    } else if (isa<arith::AddIOp>(op)) {
      binary("+");
    } else if (isa<arith::SubIOp>(op)) {
      binary("-");
    } else if (isa<arith::MulIOp>(op)) {
      binary("*");
    } else if (isa<arith::DivUIOp>(op)) {
      binary("/");
    } else if (isa<arith::MinSIOp>(op)) {
      flush();
      const std::string name = fresh("end");
      line("const int64 " + name + " = least(" + indices[op.getOperand(0)] + ", " + indices[op.getOperand(1)] + ");");
      indices[result] = name;
    } else {
      fail("no CUDA C++ for " + op.getName().getStringRef().str());
    }
  }
  /// A name for a position, from what it is a product of.
  std::string hintOf(Operation& op) {
    if (auto id = op.getOperand(0).getDefiningOp<ir::TileIdOp>()) {
      const char* names[] = {"row", "column", "part"};
      return names[id.getDim()];
    }
    return "at";
  }

  void printConstant(arith::ConstantOp constant) {
    auto dense = dyn_cast<DenseElementsAttr>(constant.getValue());
    if (!dense || !dense.isSplat() || !isa<FloatType>(dense.getElementType()))
      return fail("no CUDA C++ for a constant");
    double value = dense.getSplatValue<APFloat>().convertToDouble();
    if (auto exact = constant->getAttrOfType<FloatAttr>(ir::kValueAttr)) value = exact.getValueAsDouble();
    tiles[constant.getResult()] = {literal(value, computeType(constant.getType()) == "double"), false, false, true};
  }

  std::string element(Value tile) {
    const Name& name = tiles[tile];
    if (name.literal) return name.text;
    return name.text + (name.oneRow ? "[0]" : "[i]") + (name.oneColumn ? "[0]" : "[j]");
  }
  std::string dims(bool oneRow, bool oneColumn) {
    return std::string(oneRow ? "[1]" : "[L::kRows]") + (oneColumn ? "[1]" : "[L::kColumns]");
  }
  bool oneRowOf(Value tile) { return cast<RankedTensorType>(tile.getType()).getDimSize(0) == 1 && tileRows != 1; }
  bool oneColumnOf(Value tile) { return cast<RankedTensorType>(tile.getType()).getDimSize(1) == 1 && tileColumns != 1; }
  /// Declares the array of TILE.
  std::string declare(Value tile, const std::string& wanted) {
    Name name{fresh(wanted), oneRowOf(tile), oneColumnOf(tile), false};
    tiles[tile] = name;
    return computeType(tile.getType()) + " " + name.text + dims(name.oneRow, name.oneColumn);
  }
  /// TILE as an array: a number or a repeated row is written out.
  std::string arrayOf(Value tile) {
    const Name name = tiles[tile];
    const bool oneRow = oneRowOf(tile), oneColumn = oneColumnOf(tile);
    if (!name.literal && name.oneRow == oneRow && name.oneColumn == oneColumn) return name.text;
    const std::string array = fresh(name.literal ? "filled" : name.text);
    line(computeType(tile.getType()) + " " + array + dims(oneRow, oneColumn) + ";");
    nest(oneRow, oneColumn,
         {array + (oneRow ? "[0]" : "[i]") + (oneColumn ? "[0]" : "[j]") + " = " + element(tile) + ";"});
    return array;
  }

  void unrolled(const std::string& loop) {
    out += "#pragma unroll\n";
    line(loop);
  }

  void nest(bool oneRow, bool oneColumn, const std::vector<std::string>& body) {
    const int before = depth;
    // Unrolled, or arrays would have to lie in memory.
    if (!oneRow) unrolled("for (int i = 0; i < L::kRows; ++i) {"), ++depth;
    if (!oneColumn) unrolled("for (int j = 0; j < L::kColumns; ++j) {"), ++depth;
    for (const std::string& statement : body) line(statement);
    while (depth > before) --depth, line("}");
  }

  void flush() {
    if (pending.empty()) return;
    for (const std::string& declaration : declared) line(declaration + ";");
    std::vector<std::string> body = std::move(pending);
    declared.clear();
    pending.clear();
    nest(pendingOneRow, pendingOneColumn, body);
  }

  void printElementwise(Operation& op) {
    Value result = op.getResult(0);
    const bool oneRow = oneRowOf(result), oneColumn = oneColumnOf(result);
    if (!pending.empty() && (oneRow != pendingOneRow || oneColumn != pendingOneColumn)) flush();
    pendingOneRow = oneRow;
    pendingOneColumn = oneColumn;
    auto a = [&] { return element(op.getOperand(0)); };
    auto b = [&] { return element(op.getOperand(1)); };
    std::string hint, value;
    if (isa<arith::AddFOp>(op)) {
      hint = "sum", value = a() + " + " + b();
    } else if (isa<arith::SubFOp>(op)) {
      hint = "difference", value = a() + " - " + b();
    } else if (isa<arith::MulFOp>(op)) {
      hint = "product", value = a() + " * " + b();
    } else if (isa<arith::DivFOp>(op)) {
      hint = "quotient", value = a() + " / " + b();
    } else if (isa<arith::MaximumFOp>(op)) {
      hint = "larger", value = "maximum(" + a() + ", " + b() + ")";
    } else if (isa<arith::MinimumFOp>(op)) {
      hint = "smaller", value = "minimum(" + a() + ", " + b() + ")";
    } else if (isa<arith::NegFOp>(op)) {
      hint = "negative", value = "-" + a();
    } else if (isa<math::SqrtOp>(op)) {
      hint = "root", value = "squareRoot(" + a() + ")";
    } else if (isa<math::RsqrtOp>(op)) {
      hint = "scale", value = "inverseRoot(" + a() + ")";
    } else if (isa<math::AbsFOp>(op)) {
      hint = "magnitude", value = "magnitude(" + a() + ")";
    } else if (isa<math::ExpOp>(op)) {
      hint = "power", value = "exponential(" + a() + ")";
    } else if (isa<math::LogOp>(op)) {
      hint = "logarithm", value = "logarithm(" + a() + ")";
    } else if (isa<math::TanhOp>(op)) {
      hint = "tangent", value = "hyperbolicTangent(" + a() + ")";
    } else if (isa<math::ErfOp>(op)) {
      hint = "error", value = "errorFunction(" + a() + ")";
    } else {
      return fail("no CUDA C++ for " + op.getName().getStringRef().str());
    }
    declared.push_back(declare(result, hint));
    pending.push_back(element(result) + " = " + value + ";");
  }

  std::string index(Value value) { return value ? indices[value] : std::string("0"); }
  static const char* flag(bool value) { return value ? "true" : "false"; }
  std::string access(Value tile, Value rowLimit, Value columnLimit, int64_t alignment, bool stream) {
    return std::string("<L, ") + flag(oneRowOf(tile)) + ", " + flag(oneColumnOf(tile)) + ", " + flag(bool(rowLimit)) +
           ", " + flag(bool(columnLimit)) + ", " + std::to_string(alignment) + ", " + flag(stream) + ">";
  }

  void printLoad(ir::LoadTileOp load) {
    const Buffer& buffer = buffers[load.getBuffer()];
    line(declare(load.getResult(), buffer.name + "_tile") + ";");
    const bool wide = !oneRowOf(load.getResult()) && !oneColumnOf(load.getResult());
    line("load" +
         access(load.getResult(), load.getRowLimit(), load.getColumnLimit(), buffer.alignment,
                wide && s.streamLoads != 0 && s.generator != Generator::kContraction) +
         "(" + tiles[load.getResult()].text + ", " + buffer.name + ", " + buffer.stride + ", " + index(load.getRow()) +
         ", " + index(load.getColumn()) + ", " + index(load.getRowLimit()) + ", " + index(load.getColumnLimit()) +
         ");");
  }

  void printStore(ir::StoreTileOp store) {
    const Buffer& buffer = buffers[store.getBuffer()];
    const std::string array = arrayOf(store.getTile());
    line("store" +
         access(store.getTile(), store.getRowLimit(), store.getColumnLimit(), buffer.alignment, store.getStream()) +
         "(" + array + ", " + buffer.name + ", " + buffer.stride + ", " + index(store.getRow()) + ", " +
         index(store.getColumn()) + ", " + index(store.getRowLimit()) + ", " + index(store.getColumnLimit()) + ");");
  }

  static const char* combineClass(StringRef combine) {
    return combine == "sum" ? "Sum" : combine == "maximum" ? "Maximum" : "Minimum";
  }

  void printMask(ir::MaskOp mask) {
    const std::string array = arrayOf(mask.getTile());
    line(declare(mask.getResult(), "masked") + ";");
    line("mask<L, " + std::string(combineClass(mask.getCombine())) + ">(" + tiles[mask.getResult()].text + ", " +
         array + ", " + index(mask.getColumn()) + ", " + index(mask.getLimit()) + ");");
  }

  void printReduce(ir::ReduceOp reduce) {
    const std::string array = arrayOf(reduce.getTile());
    line(declare(reduce.getResult(), reduce.getCombine() == "sum" ? "total" : "extreme") + ";");
    const bool last = --reductionsLeft == 0 && !reduce->getParentOfType<scf::ForOp>();
    line("reduceRows<L, " + std::string(combineClass(reduce.getCombine())) + ", " + flag(!last) + ">(" +
         tiles[reduce.getResult()].text + ", " + array + ");");
  }

  void printContract(ir::ContractOp contract) {
    const Buffer& x = buffers[contract.getLhs()];
    const Buffer& w = buffers[contract.getRhs()];
    line(declare(contract.getResult(), "products") + ";");
    std::string call, shared;
    if (s.instruction == 0) {
      call = "contractDot<" + numbers({s.blockRows, s.threadColumns, s.warpColumns, s.warpDepth, s.lanes,
                                       s.stageDepth / s.lanes, x.alignment, w.alignment});
    } else if (s.instruction == 1) {
      call = "contractSimt<" + numbers({s.blockRows, s.blockColumns, s.threadRows, s.threadColumns, s.stageDepth,
                                        s.lanes, x.alignment, w.alignment});
    } else {
      call = "contractMma<" + numbers({s.blockRows, s.blockColumns, s.warpRows, s.warpColumns, s.stageDepth, s.stages});
      shared = "shared, ";
    }
    line(call + ">(" + tiles[contract.getResult()].text + ", " + shared + x.name + ", " + x.stride + ", " + w.name +
         ", " + w.stride + ", " + index(contract.getRow()) + ", " + index(contract.getColumn()) + ", " +
         index(contract.getBegin()) + ", " + index(contract.getEnd()) + ", " + index(contract.getRowLimit()) + ", " +
         index(contract.getColumnLimit()) + ");");
  }

  void copy(Value from, Value like, const std::string& to) {
    const bool oneRow = oneRowOf(like), oneColumn = oneColumnOf(like);
    nest(oneRow, oneColumn,
         {to + (oneRow ? "[0]" : "[i]") + (oneColumn ? "[0]" : "[j]") + " = " + element(from) + ";"});
  }

  void printLoop(scf::ForOp loop) {
    for (auto [init, carried, result] : llvm::zip(loop.getInitArgs(), loop.getRegionIterArgs(), loop.getResults())) {
      line(declare(carried, "running") + ";");
      copy(init, carried, tiles[carried].text);
      tiles[result] = tiles.lookup(carried);
    }
    const std::string variable = fresh("position");
    indices[loop.getInductionVar()] = variable;
    line("for (int64 " + variable + " = " + index(loop.getLowerBound()) + "; " + variable + " < " +
         index(loop.getUpperBound()) + "; " + variable + " += " + index(loop.getStep()) + ") {");
    ++depth;
    printBlock(*loop.getBody());
    flush();
    for (auto [next, carried] : llvm::zip(loop.getBody()->getTerminator()->getOperands(), loop.getRegionIterArgs()))
      copy(next, carried, tiles[carried].text);
    --depth;
    line("}");
  }

  void printBranch(scf::IfOp branch) {
    line("if " + indices[branch.getCondition()] + " {");
    ++depth;
    printBlock(*branch.thenBlock());
    flush();
    --depth;
    line("}");
  }
};

}  // namespace

ktune::Result<std::string> printKernel(func::FuncOp kernel) {
  return KernelPrinter(kernel).print();
}

}  // namespace ktune::emit
