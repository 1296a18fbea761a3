#include "ir/emit/cpu/TileToVector.h"

#include "ir/lower/Lower.h"
#include "mlir/Dialect/Math/Transforms/Passes.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace ktune::emit {

using namespace mlir;

namespace {

/// A tile in registers: per row, columns / lanes pieces (vectors of LANES, or scalars when lanes is 1). A partial tile
/// holds one vector per element instead, whose lanes still have to be summed.
struct Tile {
  int64_t rows = 0, columns = 0, lanes = 1;
  bool partial = false;
  SmallVector<Value> pieces;
  [[nodiscard]] int64_t perRow() const { return columns / lanes; }
  [[nodiscard]] Value& at(int64_t row, int64_t piece) { return pieces[static_cast<size_t>(row * perRow() + piece)]; }
};

struct Buffer {
  Value pointer;
  Value rowStride;  ///< Elements between rows, i64.
  Type element;
};

class Emitter {
 public:
  Emitter(func::FuncOp kernel, schedule::KernelSchedule schedule)
      : kernel(kernel), schedule(std::move(schedule)), b(kernel), loc(kernel.getLoc()) {}

  LogicalResult run() {
    auto pointer = LLVM::LLVMPointerType::get(b.getContext());
    auto function = func::FuncOp::create(b, loc, kernel.getName(), b.getFunctionType({pointer, i64(), i64()}, {}));
    Block* entry = function.addEntryBlock();
    b.setInsertionPointToEnd(entry);
    entryBlock = entry;
    Value arguments = entry->getArgument(0);
    SmallVector<std::pair<unsigned, MemRefType>> memrefs;
    for (BlockArgument argument : kernel.getArguments()) {
      Value slot = gep(arguments, pointer, constant(argument.getArgNumber()));
      if (auto type = dyn_cast<MemRefType>(argument.getType())) {
        buffers[argument] = {LLVM::LoadOp::create(b, loc, pointer, slot), Value(), type.getElementType()};
        memrefs.push_back({argument.getArgNumber(), type});
      } else {
        scalars[argument] = LLVM::LoadOp::create(b, loc, i64(), slot);
        symbols.push_back(scalars[argument]);
      }
    }
    for (auto [number, type] : memrefs) {
      auto columns = kernel.getArgAttrOfType<DenseI64ArrayAttr>(number, ir::kStrideAttr);
      if (!columns) return kernel.emitError("buffer argument lacks ktune.stride");
      buffers[kernel.getArgument(number)].rowStride = extent(columns[0], columns[1]);
    }
    auto grid = kernel->getAttrOfType<DenseI64ArrayAttr>(ir::kGridAttr);
    if (!grid || grid.size() != 6) return kernel.emitError("lacks ktune.grid");
    Value rowTiles = ceilDiv(extent(grid[0], grid[1]), grid[2]);

    auto loop = scf::ForOp::create(b, loc, entry->getArgument(1), entry->getArgument(2), constant(1));
    b.setInsertionPointToStart(loop.getBody());
    Value tile = loop.getInductionVar();
    tileIds[0] = arith::RemUIOp::create(b, loc, tile, rowTiles);
    tileIds[1] = arith::DivUIOp::create(b, loc, tile, rowTiles);
    emitBlock(kernel.getBody().front());

    b.setInsertionPointToEnd(entry);
    // The pool's hand-over orders ordinary stores only; non-temporal ones need a fence of their own.
    if (streamed) LLVM::FenceOp::create(b, loc, LLVM::AtomicOrdering::seq_cst, StringRef());
    func::ReturnOp::create(b, loc);
    kernel.erase();
    return success(!failed);
  }

 private:
  func::FuncOp kernel;
  schedule::KernelSchedule schedule;
  OpBuilder b;
  Location loc;
  Block* entryBlock = nullptr;
  DenseMap<Value, Buffer> buffers;
  DenseMap<Value, Value> scalars;
  DenseMap<Value, Tile> tiles;
  SmallVector<Value> symbols;
  Value tileIds[2];
  bool streamed = false, failed = false;

  // --- Small things -------------------------------------------------------------------------------------------------

  Type i64() { return b.getI64Type(); }
  Value constant(int64_t n) { return arith::ConstantOp::create(b, loc, b.getI64IntegerAttr(n)); }
  Value add(Value x, Value y) { return arith::AddIOp::create(b, loc, x, y); }
  Value add(Value x, int64_t n) { return n == 0 ? x : add(x, constant(n)); }
  Value multiply(Value x, Value y) { return arith::MulIOp::create(b, loc, x, y); }
  Value extent(int64_t factor, int64_t symbol) {
    return symbol < 0 ? constant(factor) : multiply(symbols[static_cast<size_t>(symbol)], constant(factor));
  }
  Value ceilDiv(Value n, int64_t divisor) {
    return arith::DivUIOp::create(b, loc, add(n, divisor - 1), constant(divisor));
  }
  Value gep(Value base, Type element, Value index) {
    return LLVM::GEPOp::create(b, loc, LLVM::LLVMPointerType::get(b.getContext()), element, base,
                               ArrayRef<LLVM::GEPArg>{index});
  }
  static int64_t bytesOf(Type element) { return element.getIntOrFloatBitWidth() / 8; }
  Type pieceType(Type element, int64_t lanes) { return lanes == 1 ? element : Type(VectorType::get({lanes}, element)); }
  Value splat(Type type, TypedAttr value) {
    if (auto vector = dyn_cast<VectorType>(type))
      return arith::ConstantOp::create(b, loc, DenseElementsAttr::get(vector, Attribute(value)));
    return arith::ConstantOp::create(b, loc, value);
  }
  Value zero(Type type) { return splat(type, b.getZeroAttr(getElementTypeOrSelf(type))); }

  Tile emptyTile(RankedTensorType type) {
    Tile tile{type.getDimSize(0), type.getDimSize(1), 1, false, {}};
    if (tile.columns % schedule.vector == 0) tile.lanes = schedule.vector;
    tile.pieces.resize(static_cast<size_t>(tile.rows * tile.perRow()));
    return tile;
  }
  Tile emptyTile(Value value) { return emptyTile(cast<RankedTensorType>(value.getType())); }
  static Type elementOf(Value value) { return getElementTypeOrSelf(value.getType()); }

  /// Which of the lanes starting at COLUMN lie before LIMIT: vector<LANES x i1>.
  Value laneMask(Value column, Value limit, int64_t lanes) {
    Value left = arith::SubIOp::create(b, loc, limit, column);
    left = arith::MinSIOp::create(b, loc, left, constant(lanes));
    left = arith::MaxSIOp::create(b, loc, left, constant(0));
    left = arith::TruncIOp::create(b, loc, b.getI32Type(), left);
    SmallVector<int32_t> numbers(static_cast<size_t>(lanes));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int32_t>(i);
    auto type = VectorType::get({lanes}, b.getI32Type());
    Value iota = arith::ConstantOp::create(b, loc, DenseElementsAttr::get(type, ArrayRef<int32_t>(numbers)));
    Value wide = vector::BroadcastOp::create(b, loc, type, left);
    return arith::CmpIOp::create(b, loc, arith::CmpIPredicate::slt, iota, wide);
  }

  // --- Operations ---------------------------------------------------------------------------------------------------

  void emitBlock(Block& block) {
    for (Operation& op : block.without_terminator()) emit(op);
  }

  void emit(Operation& op) {
    loc = op.getLoc();
    if (auto id = dyn_cast<ir::TileIdOp>(op)) {
      scalars[id.getResult()] = tileIds[id.getDim()];
    } else if (auto load = dyn_cast<ir::LoadTileOp>(op)) {
      emitLoad(load);
    } else if (auto store = dyn_cast<ir::StoreTileOp>(op)) {
      emitStore(store);
    } else if (auto mma = dyn_cast<ir::MmaOp>(op)) {
      emitMma(mma);
    } else if (auto reduce = dyn_cast<ir::ReduceOp>(op)) {
      emitReduce(reduce);
    } else if (auto broadcast = dyn_cast<ir::BroadcastOp>(op)) {
      emitBroadcast(broadcast);
    } else if (auto mask = dyn_cast<ir::MaskOp>(op)) {
      emitMask(mask);
    } else if (auto loop = dyn_cast<scf::ForOp>(op)) {
      emitFor(loop);
    } else if (auto branch = dyn_cast<scf::IfOp>(op)) {
      emitIf(branch);
    } else if (auto alloca = dyn_cast<memref::AllocaOp>(op)) {
      emitAlloca(alloca);
    } else if (op.getNumResults() == 1 && isa<RankedTensorType>(op.getResult(0).getType())) {
      emitOnPieces(op);
    } else if (op.getNumResults() == 1 && isa<arith::ArithDialect>(op.getDialect())) {
      emitScalar(op);
    } else {
      failed = true;
      op.emitError("has no place in a tile function");
    }
  }

  /// Index arithmetic, on i64.
  void emitScalar(Operation& op) {
    Value result = op.getResult(0);
    if (auto constantOp = dyn_cast<arith::ConstantOp>(op)) {
      scalars[result] = isa<IndexType>(result.getType())
                            ? constant(cast<IntegerAttr>(constantOp.getValue()).getInt())
                            : arith::ConstantOp::create(b, loc, constantOp.getValue()).getResult();
      return;
    }
    OperationState state(loc, op.getName());
    for (Value operand : op.getOperands()) state.addOperands(scalars.lookup(operand));
    state.addTypes(isa<IndexType>(result.getType()) ? i64() : result.getType());
    state.addAttributes(op.getAttrs());
    scalars[result] = b.create(state)->getResult(0);
  }

  /// Elementwise operations and splat constants: once per piece.
  void emitOnPieces(Operation& op) {
    Value result = op.getResult(0);
    Tile tile = emptyTile(result);
    Type type = pieceType(elementOf(result), tile.lanes);
    if (auto constantOp = dyn_cast<arith::ConstantOp>(op)) {
      auto dense = cast<DenseElementsAttr>(constantOp.getValue());
      Value piece = splat(type, cast<TypedAttr>(dense.getSplatValue<Attribute>()));
      llvm::fill(tile.pieces, piece);
      tiles[result] = tile;
      return;
    }
    if (!isa<arith::ArithDialect, math::MathDialect>(op.getDialect())) {
      failed = true;
      op.emitError("has no place in a tile function");
      return;
    }
    for (size_t i = 0; i < tile.pieces.size(); ++i) {
      OperationState state(loc, op.getName());
      for (Value operand : op.getOperands()) state.addOperands(tiles[operand].pieces[i]);
      state.addTypes(type);
      state.addAttributes(op.getAttrs());
      Operation* piece = b.create(state);
      // A fused multiply-add rounds once: it can only be nearer to the exact result.
      if (auto fast = dyn_cast<arith::ArithFastMathInterface>(piece))
        piece->setAttr(fast.getFastMathAttrName(),
                       arith::FastMathFlagsAttr::get(b.getContext(), arith::FastMathFlags::contract));
      tile.pieces[i] = piece->getResult(0);
    }
    tiles[result] = tile;
  }

  /// Row ROW + i, or the last row before LIMIT.
  Value rowAt(Value row, int64_t i, Value limit) {
    Value at = add(row, i);
    return limit && i > 0 ? arith::MinSIOp::create(b, loc, at, add(limit, -1)).getResult() : at;
  }

  void emitLoad(ir::LoadTileOp load) {
    Buffer buffer = buffers.lookup(load.getBuffer());
    Tile tile = emptyTile(load.getResult());
    Type type = pieceType(buffer.element, tile.lanes);
    int64_t bytes = bytesOf(buffer.element);
    Value row = scalars.lookup(load.getRow()), column = scalars.lookup(load.getColumn());
    Value rowLimit = load.getRowLimit() ? scalars.lookup(load.getRowLimit()) : Value();
    Value limit = load.getColumnLimit() ? scalars.lookup(load.getColumnLimit()) : Value();
    int64_t prefetch = static_cast<int64_t>(load.getPrefetch());
    for (int64_t i = 0; i < tile.rows; ++i) {
      Value start = multiply(rowAt(row, i, rowLimit), buffer.rowStride);
      for (int64_t p = 0; p < tile.perRow(); ++p) {
        Value at = add(column, p * tile.lanes);
        Value address = gep(buffer.pointer, buffer.element, add(start, at));
        if (prefetch > 0 && (p * tile.lanes * bytes) % 64 == 0) {
          Value ahead = gep(address, b.getI8Type(), constant(prefetch * 64));
          LLVM::Prefetch::create(b, loc, ahead, /*rw=*/0, /*hint=*/3, /*cache=*/1);
        }
        if (!limit) {
          tile.at(i, p) = LLVM::LoadOp::create(b, loc, type, address, static_cast<unsigned>(bytes));
        } else if (tile.lanes > 1) {
          Value mask = laneMask(at, limit, tile.lanes);
          tile.at(i, p) = LLVM::MaskedLoadOp::create(b, loc, type, address, mask, zero(type),
                                                     b.getI32IntegerAttr(static_cast<int32_t>(bytes)), UnitAttr());
        } else {
          Value inside = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::slt, at, limit);
          Value safe = arith::MinSIOp::create(b, loc, at, add(limit, -1));
          Value safeAddress = gep(buffer.pointer, buffer.element, add(start, safe));
          Value loaded = LLVM::LoadOp::create(b, loc, type, safeAddress, static_cast<unsigned>(bytes));
          tile.at(i, p) = arith::SelectOp::create(b, loc, inside, loaded, zero(type));
        }
      }
    }
    tiles[load.getResult()] = tile;
  }

  void emitStore(ir::StoreTileOp store) {
    Buffer buffer = buffers.lookup(store.getBuffer());
    Tile tile = tiles[store.getTile()];
    int64_t bytes = bytesOf(buffer.element);
    Value row = scalars.lookup(store.getRow()), column = scalars.lookup(store.getColumn());
    Value rowLimit = store.getRowLimit() ? scalars.lookup(store.getRowLimit()) : Value();
    Value limit = store.getColumnLimit() ? scalars.lookup(store.getColumnLimit()) : Value();
    auto storeRow = [&](int64_t i) {
      Value start = multiply(add(row, i), buffer.rowStride);
      for (int64_t p = 0; p < tile.perRow(); ++p) {
        Value at = add(column, p * tile.lanes);
        Value address = gep(buffer.pointer, buffer.element, add(start, at));
        Value piece = tile.at(i, p);
        if (!limit) {
          bool stream = store.getStream() && tile.lanes > 1;
          unsigned alignment = static_cast<unsigned>(stream ? bytes * tile.lanes : bytes);
          streamed |= stream;
          LLVM::StoreOp::create(b, loc, piece, address, alignment, /*isVolatile=*/false, /*isNonTemporal=*/stream);
        } else if (tile.lanes > 1) {
          LLVM::MaskedStoreOp::create(b, loc, piece, address, laneMask(at, limit, tile.lanes),
                                      b.getI32IntegerAttr(static_cast<int32_t>(bytes)));
        } else {
          when(arith::CmpIOp::create(b, loc, arith::CmpIPredicate::slt, at, limit),
               [&] { LLVM::StoreOp::create(b, loc, piece, address, static_cast<unsigned>(bytes)); });
        }
      }
    };
    for (int64_t i = 0; i < tile.rows; ++i) {
      if (rowLimit && i > 0)  // The first row of a block always exists.
        when(arith::CmpIOp::create(b, loc, arith::CmpIPredicate::slt, add(row, i), rowLimit), [&] { storeRow(i); });
      else
        storeRow(i);
    }
  }

  void when(Value condition, llvm::function_ref<void()> body) {
    auto branch = scf::IfOp::create(b, loc, condition, /*withElseRegion=*/false);
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(branch.thenBlock());
    body();
  }

  void emitMma(ir::MmaOp mma) {
    Tile accumulator = tiles[mma.getAccumulator()], lhs = tiles[mma.getLhs()], rhs = tiles[mma.getRhs()];
    if (!accumulator.partial || lhs.lanes == 1) {
      failed = true;
      mma.emitError("accumulates outside a loop of its own, or over a depth that is no multiple of the vector");
      return;
    }
    for (int64_t p = 0; p < lhs.perRow(); ++p)
      for (int64_t i = 0; i < accumulator.rows; ++i)
        for (int64_t j = 0; j < accumulator.columns; ++j) {
          Value& sum = accumulator.pieces[static_cast<size_t>(i * accumulator.columns + j)];
          sum = vector::FMAOp::create(b, loc, lhs.at(i, p), rhs.at(j, p), sum);
        }
    tiles[mma.getResult()] = accumulator;
  }

  Value acrossLanes(op::Combine combine, Value vector) {
    using enum vector::CombiningKind;
    const auto kind = combine == op::Combine::kSum ? ADD : combine == op::Combine::kMaximum ? MAXIMUMF : MINIMUMF;
    return vector::ReductionOp::create(b, loc, kind, vector,
                                       kind == ADD ? arith::FastMathFlags::reassoc : arith::FastMathFlags::none);
  }
  /// The verifiers have seen to it that COMBINE is one.
  static op::Combine combineOf(StringRef combine) { return *ir::combineOf(combine); }

  /// Sums the lanes of a partial tile, giving an ordinary one.
  Tile finishPartial(const Tile& partial, Value value) {
    Tile tile = emptyTile(value);
    SmallVector<Value> sums;
    for (Value piece : partial.pieces) sums.push_back(acrossLanes(op::Combine::kSum, piece));
    if (tile.lanes == 1) {
      tile.pieces = sums;
      return tile;
    }
    auto type = VectorType::get({tile.lanes}, elementOf(value));
    for (size_t i = 0; i < tile.pieces.size(); ++i)
      tile.pieces[i] = vector::FromElementsOp::create(
          b, loc, type,
          ArrayRef<Value>(sums).slice(i * static_cast<size_t>(tile.lanes), static_cast<size_t>(tile.lanes)));
    return tile;
  }

  void emitReduce(ir::ReduceOp reduce) {
    const op::Combine combine = combineOf(reduce.getCombine());
    Tile tile = tiles[reduce.getTile()];
    Tile result = emptyTile(reduce.getResult());
    for (int64_t i = 0; i < tile.rows; ++i) {
      // A tree over the pieces keeps the additions independent.
      SmallVector<Value> pieces;
      for (int64_t p = 0; p < tile.perRow(); ++p) pieces.push_back(tile.at(i, p));
      while (pieces.size() > 1) {
        SmallVector<Value> half;
        for (size_t p = 0; p + 1 < pieces.size(); p += 2)
          half.push_back(ir::combined(b, loc, combine, pieces[p], pieces[p + 1]));
        if (pieces.size() % 2) half.push_back(pieces.back());
        pieces = half;
      }
      result.at(i, 0) = tile.lanes == 1 ? pieces[0] : acrossLanes(combine, pieces[0]);
    }
    tiles[reduce.getResult()] = result;
  }

  void emitBroadcast(ir::BroadcastOp broadcast) {
    Tile from = tiles[broadcast.getTile()];
    Tile to = emptyTile(broadcast.getResult());
    Type type = pieceType(elementOf(broadcast.getResult()), to.lanes);
    for (int64_t i = 0; i < to.rows; ++i) {
      int64_t row = from.rows == 1 ? 0 : i;
      if (from.columns == to.columns) {
        for (int64_t p = 0; p < to.perRow(); ++p) to.at(i, p) = from.at(row, p);
        continue;
      }
      Value piece = from.at(row, 0);
      if (to.lanes > 1) piece = vector::BroadcastOp::create(b, loc, type, piece);
      for (int64_t p = 0; p < to.perRow(); ++p) to.at(i, p) = piece;
    }
    tiles[broadcast.getResult()] = to;
  }

  void emitMask(ir::MaskOp mask) {
    Tile tile = tiles[mask.getTile()];
    Value column = scalars.lookup(mask.getColumn()), limit = scalars.lookup(mask.getLimit());
    Type element = elementOf(mask.getResult());
    Value neutral =
        splat(pieceType(element, tile.lanes), cast<TypedAttr>(ir::identityOf(combineOf(mask.getCombine()), element)));
    for (int64_t p = 0; p < tile.perRow(); ++p) {
      Value at = add(column, p * tile.lanes);
      Value inside = tile.lanes > 1 ? laneMask(at, limit, tile.lanes)
                                    : Value(arith::CmpIOp::create(b, loc, arith::CmpIPredicate::slt, at, limit));
      for (int64_t i = 0; i < tile.rows; ++i)
        tile.at(i, p) = arith::SelectOp::create(b, loc, inside, tile.at(i, p), neutral);
    }
    tiles[mask.getResult()] = tile;
  }

  void emitAlloca(memref::AllocaOp alloca) {
    auto type = alloca.getType();
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(entryBlock);  // Once per call, not per tile.
    Value count = constant(type.getNumElements());
    auto pointer = LLVM::LLVMPointerType::get(b.getContext());
    Value memory = LLVM::AllocaOp::create(b, loc, pointer, type.getElementType(), count, /*alignment=*/64);
    buffers[alloca.getResult()] = {memory, constant(type.getDimSize(1)), type.getElementType()};
  }

  // --- Control flow -------------------------------------------------------------------------------------------------

  /// True when a loop's carried value is the accumulator of a matrix product in its body.
  static bool accumulatesProducts(BlockArgument carried) {
    return llvm::any_of(carried.getUses(), [](OpOperand& use) {
      auto mma = dyn_cast<ir::MmaOp>(use.getOwner());
      return mma && use.get() == mma.getAccumulator();
    });
  }

  static bool isZeroConstant(Value value) {
    auto constantOp = value.getDefiningOp<arith::ConstantOp>();
    auto dense = constantOp ? dyn_cast<DenseElementsAttr>(constantOp.getValue()) : DenseElementsAttr();
    return dense && dense.isSplat() && isa<FloatType>(dense.getElementType()) &&
           dense.getSplatValue<APFloat>().isZero();
  }

  Tile initialTile(Value init, BlockArgument carried) {
    Tile tile = tiles[init];
    if (tile.partial || !accumulatesProducts(carried)) return tile;
    if (!isZeroConstant(init)) {
      failed = true;
      emitError(loc, "a matrix product's accumulator must start at zero");
    }
    auto type = cast<RankedTensorType>(init.getType());
    Tile partial{type.getDimSize(0), type.getDimSize(1), 1, true, {}};
    Value piece = zero(pieceType(type.getElementType(), schedule.vector));
    partial.pieces.assign(static_cast<size_t>(partial.rows * partial.columns), piece);
    return partial;
  }

  void emitFor(scf::ForOp loop) {
    SmallVector<Tile> carried;
    SmallVector<Value> inits;
    for (auto [init, argument] : llvm::zip(loop.getInitArgs(), loop.getRegionIterArgs())) {
      carried.push_back(initialTile(init, argument));
      inits.append(carried.back().pieces);
    }
    auto emitted = scf::ForOp::create(b, loc, scalars.lookup(loop.getLowerBound()),
                                      scalars.lookup(loop.getUpperBound()), scalars.lookup(loop.getStep()), inits);
    auto unpack = [&](ValueRange flat) {
      SmallVector<Tile> result = carried;
      size_t next = 0;
      for (Tile& tile : result)
        for (Value& piece : tile.pieces) piece = flat[next++];
      return result;
    };
    {
      OpBuilder::InsertionGuard guard(b);
      b.setInsertionPointToStart(emitted.getBody());
      scalars[loop.getInductionVar()] = emitted.getInductionVar();
      SmallVector<Tile> inside = unpack(emitted.getRegionIterArgs());
      for (auto [argument, tile] : llvm::zip(loop.getRegionIterArgs(), inside)) tiles[argument] = tile;
      emitBlock(*loop.getBody());
      SmallVector<Value> yielded;
      for (Value value : loop.getBody()->getTerminator()->getOperands()) yielded.append(tiles[value].pieces);
      if (!inits.empty()) scf::YieldOp::create(b, loc, yielded);
    }
    SmallVector<Tile> results = unpack(emitted.getResults());
    for (auto [result, tile] : llvm::zip(loop.getResults(), results)) {
      // A partial sum stays partial only on its way into a further loop of products.
      bool goesOn = llvm::all_of(result.getUses(), [](OpOperand& use) {
        auto next = dyn_cast<scf::ForOp>(use.getOwner());
        return next && accumulatesProducts(next.getTiedLoopRegionIterArg(&use));
      });
      tiles[result] = tile.partial && !goesOn ? finishPartial(tile, result) : tile;
    }
  }

  void emitIf(scf::IfOp branch) {
    when(scalars.lookup(branch.getCondition()), [&] { emitBlock(*branch.thenBlock()); });
  }
};

struct TileToVectorPass : PassWrapper<TileToVectorPass, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(TileToVectorPass)
  void getDependentDialects(DialectRegistry& registry) const final { ir::registerDialects(registry); }
  StringRef getArgument() const final { return "ktune-tile-to-vector"; }
  StringRef getDescription() const final { return "Lower tile functions to vectors and memory for the cpu device"; }
  void runOnOperation() final {
    SmallVector<func::FuncOp> kernels;
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (function->hasAttr(ir::kScheduleAttr)) kernels.push_back(function);
    for (func::FuncOp kernel : kernels) {
      // The new function takes over the symbol.
      auto schedule = ir::scheduleOf(kernel->getAttrOfType<ir::ScheduleAttr>(ir::kScheduleAttr));
      if (mlir::failed(Emitter(kernel, schedule).run())) return signalPassFailure();
    }
  }
};

struct MathPass : PassWrapper<MathPass, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(MathPass)
  void getDependentDialects(DialectRegistry& registry) const final { ir::registerDialects(registry); }
  StringRef getArgument() const final { return "ktune-math"; }
  StringRef getDescription() const final { return "Make polynomials of exp, log, tanh and erf of f32"; }
  void runOnOperation() final {
    // Most kernels have none.
    const WalkResult found = getOperation().walk([](Operation* op) {
      return isa<math::ExpOp, math::LogOp, math::TanhOp, math::ErfOp>(op) ? WalkResult::interrupt()
                                                                          : WalkResult::advance();
    });
    if (!found.wasInterrupted()) return;
    RewritePatternSet patterns(&getContext());
    populateMathPolynomialApproximationPatterns(patterns, [](StringRef name) {
      return name == math::ExpOp::getOperationName() || name == math::LogOp::getOperationName() ||
             name == math::TanhOp::getOperationName() || name == math::ErfOp::getOperationName();
    });
    // Nothing else is rewritten: folding would take time, and LLVM does it.
    GreedyRewriteConfig config;
    config.enableFolding(false).enableConstantCSE(false);
    if (mlir::failed(applyPatternsGreedily(getOperation(), std::move(patterns), config))) signalPassFailure();
  }
};

}  // namespace

std::unique_ptr<Pass> createTileToVectorPass() {
  return std::make_unique<TileToVectorPass>();
}
std::unique_ptr<Pass> createMathPass() {
  return std::make_unique<MathPass>();
}
void registerCpuPasses() {
  registerPass(createTileToVectorPass);
  registerPass(createMathPass);
}

}  // namespace ktune::emit
