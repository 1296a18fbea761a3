// ktune-generate: the three generators. Each builds one tile function per kernel of the genome, reading what to compute
// from the bodies of linalg operations (so any elementwise chain works) and how from the schedule.
#include <algorithm>
#include <numeric>
#include <tuple>

#include "ir/lower/Lower.h"
#include "ir/lower/PlanLayout.h"
#include "ir/op/GraphJson.h"
#include "ir/op/Operator.h"

namespace ktune::ir {

using namespace mlir;
using schedule::Generator;
using schedule::Group;
using schedule::KernelSchedule;
using schedule::Problem;

namespace {

/// The decomposed function: which operation computes which value of Problem::primitives.
struct Computation {
  SmallVector<Operation*> nodes;  ///< By node index.
  DenseMap<Value, int32_t> ids;   ///< SSA value -> value id.
};

/// One position of a kernel's loops: where the tile at hand starts, its size, and which of its edges may overhang.
struct Step {
  Value row, column;
  int64_t rows = 1, columns = 1;
  Value rowLimit, columnLimit;     ///< Null: the tile lies inside.
  DenseMap<int32_t, Value> tiles;  ///< Values already at hand here.
};

class KernelBuilder {
 public:
  KernelBuilder(ModuleOp module, const Computation& computation, const Problem& problem, const Group& group,
                const KernelSchedule& schedule, StringRef symbol, KernelRole role)
      : b(module.getBodyRegion()),
        computation(computation),
        problem(problem),
        group(group),
        s(schedule),
        role(role),
        space(iterationSpace(problem, group)) {
    b.setInsertionPointToEnd(module.getBody());
    SmallVector<int32_t> values(group.inputs.begin(), group.inputs.end());
    values.append(group.outputs.begin(), group.outputs.end());
    SmallVector<Type> types;
    for (int32_t value : values) types.push_back(bufferType(value));
    if (role != KernelRole::kWhole)
      types.push_back(MemRefType::get({ShapedType::kDynamic, space.columns.factor}, partialsType()));
    types.append(problem.primitives.symbols.size(), b.getIndexType());
    kernel = func::FuncOp::create(b, loc, symbol, b.getFunctionType(types, {}));
    kernel->setAttr(kScheduleAttr, scheduleAttr(b.getContext(), schedule));
    if (isCuda()) {
      describeForCuda(values);
    } else {
      KernelGrid grid = gridOf(problem, group, schedule);
      kernel->setAttr(
          kGridAttr, b.getDenseI64ArrayAttr({grid.rows.factor, grid.rows.symbol, grid.rows.divisor, grid.columns.factor,
                                             grid.columns.symbol, grid.columns.divisor}));
    }
    Block* entry = kernel.addEntryBlock();
    for (auto [i, value] : llvm::enumerate(values)) {
      op::Dim stride = space.flat ? flatColumns(value) : schedule::rowStrideOf(problem, value);
      kernel.setArgAttr(i, kStrideAttr, b.getDenseI64ArrayAttr({stride.factor, stride.symbol}));
      buffers[value] = entry->getArgument(i);
    }
    size_t next = values.size();
    if (role != KernelRole::kWhole) {
      kernel.setArgAttr(next, kStrideAttr, b.getDenseI64ArrayAttr({space.columns.factor, space.columns.symbol}));
      partials = entry->getArgument(next++);
    }
    for (size_t i = 0; i < problem.primitives.symbols.size(); ++i) symbols.push_back(entry->getArgument(next + i));
    b.setInsertionPointToEnd(entry);
  }

  LogicalResult build() {
    switch (group.generator) {
      case Generator::kMap:
        isCuda() ? buildCudaMap() : buildMap();
        break;
      case Generator::kRow:
        isCuda() ? buildCudaRow() : buildRow();
        break;
      case Generator::kContraction:
        isCuda() ? buildCudaContraction() : buildContraction();
        break;
    }
    func::ReturnOp::create(b, loc);
    return failure(failed);
  }

 private:
  OpBuilder b;
  const Computation& computation;
  const Problem& problem;
  const Group& group;
  const KernelSchedule& s;
  KernelRole role;
  IterationSpace space;
  Location loc = b.getUnknownLoc();
  func::FuncOp kernel;
  DenseMap<int32_t, Value> buffers;
  SmallVector<Value> symbols;
  Value partials;  ///< The workspace of a split contraction: part after part, each with all rows.
  bool failed = false;

  [[nodiscard]] bool isCuda() const { return s.family == schedule::DeviceFamily::kCuda; }
  Type partialsType() const { return elementType(b.getContext(), schedule::partialsTypeOf(problem, group)); }

  /// What the emitter prints of a kernel beside its tiles: names of buffers, how rows of each are aligned.
  void describeForCuda(ArrayRef<int32_t> values) {
    SmallVector<Attribute> names;
    for (auto [i, value] : llvm::enumerate(values)) {
      names.push_back(b.getStringAttr(problem.primitives.valueName(value)));
      kernel.setArgAttr(i, kAlignmentAttr, b.getI64IntegerAttr(alignmentOf(value)));
    }
    if (role != KernelRole::kWhole) {
      names.push_back(b.getStringAttr("partials"));
      int64_t bytes = op::dtypeBytes(schedule::partialsTypeOf(problem, group));
      kernel.setArgAttr(values.size(), kAlignmentAttr,
                        b.getI64IntegerAttr(std::gcd<int64_t>(16, space.columns.factor * bytes)));
    }
    for (const op::Symbol& symbol : problem.primitives.symbols) names.push_back(b.getStringAttr(symbol.name));
    kernel->setAttr(kNamesAttr, b.getArrayAttr(names));
    kernel->setAttr(kRoleAttr, b.getStringAttr(roleName(role)));
    BlockShape shape = blockShapeOf(problem, group, s, role);
    kernel->setAttr(kBlockAttr, b.getDenseI64ArrayAttr(
                                    {shape.rows, shape.columns, shape.threads, shape.columnThreads, shape.lanes}));
    if (space.oneRow()) kernel->setAttr(kOneRowAttr, b.getUnitAttr());
    for (auto [i, value] : llvm::enumerate(group.inputs)) {
      for (const op::Output& output : problem.primitives.outputs)
        if (output.aliasInput == value && llvm::is_contained(group.outputs, output.value))
          kernel.setArgAttr(i, kAliasedAttr, b.getUnitAttr());
    }
  }
  int64_t alignmentOf(int32_t value) const {
    // Seen as one row, only the start of a buffer counts.
    return space.flat ? schedule::baseAlignmentOf(problem, value) : schedule::rowAlignmentOf(problem, value);
  }

  // --- Values -------------------------------------------------------------------------------------------------------

  static bool isOne(const op::Dim& dim) { return dim.isStatic() && dim.factor == 1; }
  bool isScalar(int32_t value) const {
    Problem::Matrix m = problem.matrixOf(value);
    return isOne(m.rows) && isOne(m.columns);
  }
  op::Dim rowsOf(int32_t value) const { return space.flat ? op::Dim::fixed(1) : problem.matrixOf(value).rows; }
  op::Dim flatColumns(int32_t value) const {
    if (space.flat && !isScalar(value)) return space.columns;
    return problem.matrixOf(value).columns;
  }
  Type element(int32_t value) const {
    return elementType(b.getContext(), problem.types[static_cast<size_t>(value)].dtype);
  }
  Type storedElement(int32_t value) const {
    return elementType(b.getContext(), schedule::storedTypeOf(problem, value));
  }
  MemRefType bufferType(int32_t value) const {
    auto size = [](const op::Dim& d) { return d.isStatic() ? d.factor : ShapedType::kDynamic; };
    return MemRefType::get({size(rowsOf(value)), size(flatColumns(value))}, storedElement(value));
  }
  Value index(int64_t n) { return arith::ConstantIndexOp::create(b, loc, n); }
  Value extent(const op::Dim& dim) {
    if (dim.isStatic()) return index(dim.factor);
    Value symbol = symbols[static_cast<size_t>(dim.symbol)];
    return dim.factor == 1 ? symbol : arith::MulIOp::create(b, loc, symbol, index(dim.factor)).getResult();
  }
  Value times(Value a, int64_t n) { return arith::MulIOp::create(b, loc, a, index(n)); }
  Value tileId(int64_t dim) { return TileIdOp::create(b, loc, b.getIndexType(), dim); }
  Value plus(Value a, Value c) { return arith::AddIOp::create(b, loc, a, c); }
  Value least(Value a, Value c) { return arith::MinSIOp::create(b, loc, a, c); }
  RankedTensorType tile(int64_t rows, int64_t columns, Type type) {
    return RankedTensorType::get({rows, columns}, type);
  }
  Value splat(RankedTensorType type, Attribute value) {
    return arith::ConstantOp::create(b, loc, DenseElementsAttr::get(type, value));
  }
  Value zeros(RankedTensorType type) { return splat(type, b.getZeroAttr(type.getElementType())); }
  /// How the reduction that makes VALUE combines.
  op::Combine combineOf(int32_t value) const {
    return op::findOperator(problem.primitives.nodes[problem.primitives.producerOf(value)].op)->combine;
  }
  /// A tile of a reduction's operand, without what lies past the limit; and its rows combined.
  Value masked(op::Combine combine, Value tile, Value column, Value limit) {
    if (!limit) return tile;
    auto mask = MaskOp::create(b, loc, tile.getType(), tile, column, limit);
    if (combine != op::Combine::kSum) mask.setCombine(combineName(combine));
    return mask;
  }
  Value reducedRows(op::Combine combine, Value operand) {
    auto type = cast<RankedTensorType>(operand.getType());
    auto reduce = ReduceOp::create(b, loc, tile(type.getDimSize(0), 1, type.getElementType()), operand);
    if (combine != op::Combine::kSum) reduce.setCombine(combineName(combine));
    return reduce;
  }
  Value broadcast(Value from, RankedTensorType to) {
    return from.getType() == to ? from : BroadcastOp::create(b, loc, to, from).getResult();
  }

  // --- Computing a value at a step ----------------------------------------------------------------------------------

  /// Whether a value has one row (column) that is repeated. A block of threads has all its rows even where there is
  /// only one: those past it compute for nobody, and must not write (what they read may be overwritten in place by
  /// then). So do the columns of a block of products.
  bool repeatsRow(int32_t value) const { return isOne(rowsOf(value)) && !(isCuda() && isOne(space.rows)); }
  bool repeatsColumn(int32_t value) const {
    return isOne(flatColumns(value)) && !(isProducts() && isOne(space.columns));
  }
  bool isProducts() const { return isCuda() && group.generator == Generator::kContraction; }

  /// The shape that VALUE has at STEP: one row or column where it is repeated.
  RankedTensorType tileType(int32_t value, const Step& step) {
    int64_t rows = repeatsRow(value) ? 1 : step.rows;
    int64_t columns = repeatsColumn(value) ? 1 : step.columns;
    return tile(rows, columns, element(value));
  }

  Value load(int32_t value, const Step& step, int64_t prefetch) {
    bool oneRow = repeatsRow(value), oneColumn = repeatsColumn(value);
    Value zero = (oneRow || oneColumn) ? index(0) : Value();
    Value tile = LoadTileOp::create(b, loc, tileType(value, step).clone(storedElement(value)), buffers[value],
                                    oneRow ? zero : step.row, oneColumn ? zero : step.column,
                                    oneRow ? Value() : step.rowLimit, oneColumn ? Value() : step.columnLimit, prefetch);
    return narrowed(tile, element(value));
  }

  Value evaluate(int32_t value, Step& step) {
    auto known = step.tiles.find(value);
    if (known != step.tiles.end()) return known->second;
    Value result = compute(value, step);
    step.tiles[value] = result;
    return result;
  }

  Value compute(int32_t value, Step& step) {
    RankedTensorType type = tileType(value, step);
    if (buffers.count(value) && llvm::is_contained(group.inputs, value))
      return load(value, step, isOne(rowsOf(value)) ? 0 : s.prefetch);
    Operation* source = computation.nodes[problem.primitives.producerOf(value)];
    if (auto constant = dyn_cast<arith::ConstantOp>(source)) {
      Value result = splat(type, cast<DenseElementsAttr>(constant.getValue()).getSplatValue<Attribute>());
      if (Attribute exact = constant->getAttr(kValueAttr)) result.getDefiningOp()->setAttr(kValueAttr, exact);
      return result;
    }
    if (auto generic = dyn_cast<linalg::GenericOp>(source)) {
      if (generic.getNumParallelLoops() != generic.getNumLoops()) {
        failed = true;
        source->emitError("a reduced value is used before its loop has run");
        return zeros(type);
      }
      return mapBody(generic, type, step);
    }
    failed = true;
    source->emitError("is no primitive");
    return zeros(type);
  }

  Value clone(Operation* scalar, ArrayRef<Value> operands, RankedTensorType type) {
    OperationState state(loc, scalar->getName());
    state.addOperands(operands);
    state.addTypes(type.clone(scalar->getResult(0).getType()));
    for (NamedAttribute attribute : scalar->getAttrs())
      if (attribute.getName() != kPrimitiveAttr) state.addAttribute(attribute.getName(), attribute.getValue());
    return b.create(state)->getResult(0);
  }

  /// The body of an elementwise linalg operation, on tiles.
  Value mapBody(linalg::GenericOp generic, RankedTensorType type, Step& step) {
    DenseMap<Value, Value> mapped;
    for (auto [argument, operand] : llvm::zip(generic.getRegionInputArgs(), generic.getInputs()))
      mapped[argument] = broadcast(evaluate(computation.ids.lookup(operand), step),
                                   type.clone(cast<RankedTensorType>(operand.getType()).getElementType()));
    Block& body = *generic.getBody();
    for (Operation& scalar : body.without_terminator()) {
      SmallVector<Value> operands;
      for (Value operand : scalar.getOperands()) operands.push_back(mapped.lookup(operand));
      mapped[scalar.getResult(0)] = clone(&scalar, operands, type);
    }
    return mapped.lookup(body.getTerminator()->getOperand(0));
  }

  void store(int32_t value, Step& step) {
    bool oneRow = repeatsRow(value), oneColumn = repeatsColumn(value);
    Value zero = (oneRow || oneColumn) ? index(0) : Value();
    Value result = broadcast(evaluate(value, step), tileType(value, step));
    if (storedElement(value) != element(value))
      result = arith::ExtFOp::create(b, loc, tileType(value, step).clone(storedElement(value)), result);
    StoreTileOp::create(b, loc, result, buffers[value], oneRow ? zero : step.row, oneColumn ? zero : step.column,
                        oneRow ? Value() : step.rowLimit, oneColumn ? Value() : step.columnLimit, streams(value));
  }

  /// Stores the group's outputs that WANTED accepts. All are computed first: an output may lie in the memory of an
  /// input that another one is made of.
  void storeOutputs(Step& step, llvm::function_ref<bool(int32_t)> wanted) {
    for (int32_t output : group.outputs)
      if (wanted(output)) (void)evaluate(output, step);
    for (int32_t output : group.outputs)
      if (wanted(output)) store(output, step);
  }

  /// Non-temporal stores need every vector aligned: whole rows of vectors from an aligned start.
  bool streams(int32_t value) {
    if (!s.streamStores || isOne(flatColumns(value))) return false;
    if (isCuda()) return true;
    int64_t bytes = op::dtypeBytes(problem.types[static_cast<size_t>(value)].dtype);
    return flatColumns(value).factor % s.vector == 0 && bytes * s.vector <= 64 &&
           (group.generator != Generator::kMap || s.tileColumns % s.vector == 0);
  }

  // --- Loops --------------------------------------------------------------------------------------------------------

  using Body = llvm::function_ref<SmallVector<Value>(Value position, Value limit, ValueRange carried)>;

  SmallVector<Value> loop(Value begin, Value end, int64_t step, ValueRange carried, Value limit, Body body) {
    auto forOp = scf::ForOp::create(b, loc, begin, end, index(step), carried);
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(forOp.getBody());
    SmallVector<Value> results = body(forOp.getInductionVar(), limit, forOp.getRegionIterArgs());
    if (!carried.empty()) scf::YieldOp::create(b, loc, results);  // Without carried values there is one already.
    return SmallVector<Value>(forOp.getResults());
  }

  /// begin .. end in steps of STEP. Where the range may not divide, a second loop (of at most one trip) does the rest
  /// with END as its limit.
  SmallVector<Value> steps(Value begin, Value end, int64_t step, bool divides, ValueRange carried, Body body) {
    if (divides) return loop(begin, end, step, carried, Value(), body);
    Value whole = arith::SubIOp::create(b, loc, end, begin);
    whole = times(arith::DivUIOp::create(b, loc, whole, index(step)), step);
    Value border = plus(begin, whole);
    SmallVector<Value> results = loop(begin, border, step, carried, Value(), body);
    return loop(border, end, step, results, end, body);
  }

  // --- map: elementwise over rows x columns -------------------------------------------------------------------------

  void buildMap() {
    int64_t chunk = int64_t{s.vector} * s.unroll;
    Value rowTile = tileId(0), columnTile = tileId(1);
    Value columns = extent(space.columns);
    Value columnBegin = times(columnTile, s.tileColumns);
    Value columnEnd = least(plus(columnBegin, index(s.tileColumns)), columns);
    bool divides = s.tileColumns % chunk == 0 && space.columns.factor % chunk == 0;
    auto row = [&](Value position, Value, ValueRange) -> SmallVector<Value> {
      Step outer{position, index(0), 1, 1, Value(), Value(), DenseMap<int32_t, Value>()};
      evaluateColumnless(outer, 0);
      steps(columnBegin, columnEnd, chunk, divides, {}, [&](Value column, Value limit, ValueRange) {
        Step step{position, column, 1, chunk, Value(), limit, outer.tiles};
        storeOutputs(step, [&](int32_t v) { return !isOne(flatColumns(v)) || isOne(space.columns); });
        return SmallVector<Value>();
      });
      // Outputs of one column beside wider ones: stored once a row, by the tile that holds the first column.
      if (!isOne(space.columns) && llvm::any_of(group.outputs, [&](int32_t v) { return isOne(flatColumns(v)); })) {
        Value first = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, columnTile, index(0));
        auto once = scf::IfOp::create(b, loc, first, /*withElseRegion=*/false);
        OpBuilder::InsertionGuard guard(b);
        b.setInsertionPointToStart(once.thenBlock());
        storeColumnless(outer);
      }
      return {};
    };
    if (space.flat || isOne(space.rows)) {
      row(index(0), Value(), {});
      return;
    }
    Value rowBegin = times(rowTile, s.tileRows);
    loop(rowBegin, least(plus(rowBegin, index(s.tileRows)), extent(space.rows)), 1, {}, Value(), row);
  }

  /// Level 0 needs no reduction; a reduction is one above its operand; everything else as high as its operands.
  DenseMap<int32_t, int> levels() {
    DenseMap<int32_t, int> level;
    for (int32_t node : group.nodes) {
      const op::Node& n = problem.primitives.nodes[static_cast<size_t>(node)];
      int highest = 0;
      for (int32_t operand : n.operands) highest = std::max(highest, level.lookup(operand));
      bool reduces = op::findOperator(n.op)->kind == op::OperatorKind::kReduction;
      level[problem.primitives.resultOf(static_cast<size_t>(node))] = highest + (reduces ? 1 : 0);
    }
    return level;
  }

  /// Puts every value of one column that needs no reduction above LEVEL into STEP, outside of column loops.
  void evaluateColumnless(Step& step, int level) {
    if (isOne(space.columns)) return;
    DenseMap<int32_t, int> all = levels();
    for (int32_t input : group.inputs)
      if (isOne(flatColumns(input))) evaluate(input, step);
    for (int32_t node : group.nodes) {
      int32_t value = problem.primitives.resultOf(static_cast<size_t>(node));
      const op::Node& n = problem.primitives.nodes[static_cast<size_t>(node)];
      bool reduces = op::findOperator(n.op)->kind == op::OperatorKind::kReduction;
      if (!reduces && isOne(flatColumns(value)) && all.lookup(value) <= level) evaluate(value, step);
    }
  }

  void storeColumnless(Step& step) {
    storeOutputs(step, [&](int32_t v) { return isOne(flatColumns(v)); });
  }

  // --- row: reductions along rows, then elementwise -----------------------------------------------------------------

  void buildRow() {
    int64_t chunk = int64_t{s.vector} * s.unroll;
    op::Dim rows = space.rows, columns = space.columns;
    Value rowCount = extent(rows), columnCount = extent(columns);
    bool rowsDivide = s.registerRows == 1 || (rows.isStatic() && rows.factor % s.registerRows == 0);
    bool columnsDivide = columns.factor % chunk == 0;
    DenseMap<int32_t, int> level = levels();
    int highest = 0;
    for (auto [value, l] : level) highest = std::max(highest, l);

    Value begin = times(tileId(0), s.tileRows);
    Value end = least(plus(begin, index(s.tileRows)), rowCount);
    Value rowLimit = rowsDivide ? Value() : rowCount;
    loop(begin, end, s.registerRows, {}, Value(), [&](Value row, Value, ValueRange) -> SmallVector<Value> {
      sweepRows(Step{row, index(0), s.registerRows, 1, rowLimit, Value(), DenseMap<int32_t, Value>()}, level, highest,
                chunk, columnCount, columnsDivide);
      return {};
    });
  }

  /// The rows of OUTER: a pass over the columns for every level of reductions, and one for what is written.
  void sweepRows(Step outer, const DenseMap<int32_t, int>& level, int highest, int64_t chunk, Value columnCount,
                 bool columnsDivide) {
    evaluateColumnless(outer, 0);
    for (int sweep = 1; sweep <= highest; ++sweep) {
      reduceSweep(sweep, level, outer, chunk, columnCount, columnsDivide);
      evaluateColumnless(outer, sweep);
    }
    storeColumnless(outer);
    bool wide = llvm::any_of(group.outputs, [&](int32_t v) { return !isOne(flatColumns(v)); });
    if (!wide) return;
    steps(index(0), columnCount, chunk, columnsDivide, {}, [&](Value column, Value limit, ValueRange) {
      Step step{outer.row, column, outer.rows, chunk, outer.rowLimit, limit, outer.tiles};
      storeOutputs(step, [&](int32_t v) { return !isOne(flatColumns(v)); });
      return SmallVector<Value>();
    });
  }

  // --- cuda: one block's view of each generator ----------------------------------------------------------------------

  static Value limitUnlessDivides(const op::Dim& dim, int64_t step, Value count) {
    return dim.factor % step == 0 ? Value() : count;
  }

  void buildCudaMap() {
    const BlockShape shape = blockShapeOf(problem, group, s, role);
    Value columns = extent(space.columns);
    Value columnTile = tileId(1);
    Step step{index(0),
              times(columnTile, shape.columns),
              shape.rows,
              shape.columns,
              Value(),
              limitUnlessDivides(space.columns, shape.columns, columns),
              DenseMap<int32_t, Value>()};
    if (!space.oneRow()) {
      step.row = times(tileId(0), shape.rows);
      step.rowLimit = limitUnlessDivides(space.rows, shape.rows, extent(space.rows));
    }
    storeAll(step, columnTile);
  }

  /// Every output at STEP; those of one column beside wider ones once a row, by the tile that holds the first column.
  void storeAll(Step& step, Value columnTile) {
    const auto wide = [&](int32_t v) { return !isOne(flatColumns(v)) || isOne(space.columns); };
    // What is stored last is computed first, too.
    for (int32_t output : group.outputs)
      if (!wide(output)) (void)evaluate(output, step);
    storeOutputs(step, wide);
    if (llvm::all_of(group.outputs, wide)) return;
    Value first = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, columnTile, index(0));
    auto once = scf::IfOp::create(b, loc, first, /*withElseRegion=*/false);
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(once.thenBlock());
    storeColumnless(step);
  }

  void buildCudaRow() {
    const BlockShape shape = blockShapeOf(problem, group, s, role);
    Value columnCount = extent(space.columns);
    Value row = times(tileId(0), shape.rows);
    Value rowLimit = limitUnlessDivides(space.rows, shape.rows, extent(space.rows));
    if (space.oneRow()) rowLimit = shape.rows > 1 ? extent(space.rows) : Value();
    if (space.columns.factor > shape.columns) {
      DenseMap<int32_t, int> level = levels();
      int highest = 0;
      for (auto [value, l] : level) highest = std::max(highest, l);
      sweepRows(Step{row, index(0), shape.rows, 1, rowLimit, Value(), DenseMap<int32_t, Value>()}, level, highest,
                shape.columns, columnCount, space.columns.factor % shape.columns == 0);
      return;
    }
    // The threads hold whole rows: everything is read once.
    Value limit = space.columns.factor == shape.columns ? Value() : columnCount;
    Step step{row, index(0), shape.rows, shape.columns, rowLimit, limit, DenseMap<int32_t, Value>()};
    if (s.loadFirst != 0)
      for (int32_t input : group.inputs) evaluate(input, step);
    for (int32_t node : group.nodes) {
      const op::Node& n = problem.primitives.nodes[static_cast<size_t>(node)];
      if (op::findOperator(n.op)->kind != op::OperatorKind::kReduction) continue;
      int32_t value = problem.primitives.resultOf(static_cast<size_t>(node));
      int32_t operand = n.operands[0];
      if (isOne(flatColumns(operand))) {
        step.tiles[value] = evaluate(operand, step);  // The sum of one column is that column.
        continue;
      }
      RankedTensorType wide = tile(repeatsRow(value) ? 1 : step.rows, step.columns, element(value));
      Value addend = broadcast(evaluate(operand, step), wide);
      const op::Combine combine = combineOf(value);
      step.tiles[value] = reducedRows(combine, masked(combine, addend, step.column, limit));
    }
    storeOutputs(step, [](int32_t) { return true; });
  }

  void buildCudaContraction() {
    const BlockShape shape = blockShapeOf(problem, group, s, role);
    const auto [result, x, w] = contractionOf();
    op::Dim rows = rowsOf(x), columns = rowsOf(w), depth = flatColumns(x);
    Value rowCount = extent(rows), columnCount = extent(columns), depthCount = extent(depth);
    Value columnTile = tileId(1);
    Step step{times(tileId(0), shape.rows),
              times(columnTile, shape.columns),
              shape.rows,
              shape.columns,
              limitUnlessDivides(rows, shape.rows, rowCount),
              limitUnlessDivides(columns, shape.columns, columnCount),
              DenseMap<int32_t, Value>()};
    if (role == KernelRole::kCombined) {
      RankedTensorType type = tile(shape.rows, shape.columns, partialsType());
      Value sum;
      for (int32_t part = 0; part < s.splitK; ++part) {
        Value first = times(rowCount, part);
        Value limit = step.rowLimit ? plus(first, rowCount) : Value();
        Value tile =
            LoadTileOp::create(b, loc, type, partials, plus(first, step.row), step.column, limit, step.columnLimit, 0);
        sum = sum ? this->sum(sum, tile) : tile;
      }
      step.tiles[result] = narrowed(sum, element(result));
      storeAll(step, columnTile);
      return;
    }
    Value begin = index(0), end = depthCount;
    if (role == KernelRole::kPartial) {
      // Whole stages to every part; the last one may be shorter, or empty.
      int64_t part =
          (depth.factor + int64_t{s.splitK} * s.stageDepth - 1) / (int64_t{s.splitK} * s.stageDepth) * s.stageDepth;
      begin = least(times(tileId(2), part), depthCount);
      end = least(plus(begin, index(part)), depthCount);
    }
    Type type = role == KernelRole::kPartial ? partialsType() : element(result);
    Value products = ContractOp::create(b, loc, tile(shape.rows, shape.columns, type), buffers[x], buffers[w], step.row,
                                        step.column, begin, end, rowCount, columnCount);
    if (role == KernelRole::kPartial) {
      Value first = arith::MulIOp::create(b, loc, tileId(2), rowCount);
      StoreTileOp::create(b, loc, products, partials, plus(first, step.row), step.column,
                          step.rowLimit ? plus(first, rowCount) : Value(), step.columnLimit, false);
      return;
    }
    step.tiles[result] = products;
    storeAll(step, columnTile);
  }

  Value narrowed(Value tile, Type to) {
    auto type = cast<RankedTensorType>(tile.getType());
    if (type.getElementType() == to) return tile;
    return arith::TruncFOp::create(b, loc, type.clone(to), tile);
  }

  /// The contraction's result and operands.
  std::tuple<int32_t, int32_t, int32_t> contractionOf() const {
    for (int32_t node : group.nodes) {
      const op::Node& n = problem.primitives.nodes[static_cast<size_t>(node)];
      if (op::findOperator(n.op)->kind == op::OperatorKind::kContraction)
        return {problem.primitives.resultOf(static_cast<size_t>(node)), n.operands[0], n.operands[1]};
    }
    return {-1, -1, -1};
  }

  /// One pass over the columns for every reduction of LEVEL: partial sums a vector wide, then one sum across.
  void reduceSweep(int wanted, const DenseMap<int32_t, int>& level, Step& outer, int64_t chunk, Value columnCount,
                   bool divides) {
    SmallVector<int32_t> reductions;
    for (int32_t node : group.nodes) {
      const op::Node& n = problem.primitives.nodes[static_cast<size_t>(node)];
      int32_t value = problem.primitives.resultOf(static_cast<size_t>(node));
      if (op::findOperator(n.op)->kind != op::OperatorKind::kReduction || level.lookup(value) != wanted) continue;
      if (isOne(flatColumns(n.operands[0])))
        outer.tiles[value] = evaluate(n.operands[0], outer);  // The sum of one column is that column.
      else
        reductions.push_back(value);
    }
    if (reductions.empty()) return;
    auto operandOf = [&](int32_t value) {
      return problem.primitives.nodes[problem.primitives.producerOf(value)].operands[0];
    };
    SmallVector<Value> accumulators;
    for (int32_t value : reductions) {
      int64_t rows = repeatsRow(value) ? 1 : outer.rows;
      accumulators.push_back(splat(tile(rows, chunk, element(value)), identityOf(combineOf(value), element(value))));
    }
    SmallVector<Value> sums =
        steps(index(0), columnCount, chunk, divides, accumulators, [&](Value column, Value limit, ValueRange carried) {
          Step step{outer.row, column, outer.rows, chunk, outer.rowLimit, limit, outer.tiles};
          SmallVector<Value> next;
          for (auto [value, accumulator] : llvm::zip(reductions, carried)) {
            auto type = cast<RankedTensorType>(accumulator.getType());
            Value addend = broadcast(evaluate(operandOf(value), step), type);
            const op::Combine combine = combineOf(value);
            next.push_back(combined(b, loc, combine, accumulator, masked(combine, addend, column, limit)));
          }
          return next;
        });
    for (auto [value, partial] : llvm::zip(reductions, sums))
      outer.tiles[value] = reducedRows(combineOf(value), partial);
  }

  Value sum(Value x, Value y) { return combined(b, loc, op::Combine::kSum, x, y); }

  // --- contraction: C[m, n] = sum over k of X[m, k] * W[n, k], then elementwise -------------------------------------

  void buildContraction() {
    int32_t result = -1, x = -1, w = -1;
    std::tie(result, x, w) = contractionOf();
    op::Dim rows = rowsOf(x), columns = rowsOf(w), depth = flatColumns(x);
    int64_t chunk = int64_t{s.vector} * s.unroll;
    Type type = element(result);
    Value rowCount = extent(rows), columnCount = extent(columns), depthCount = extent(depth);
    bool rowsDivide = s.registerRows == 1 || (rows.isStatic() && rows.factor % s.registerRows == 0);
    bool columnsDivide = columns.factor % s.registerColumns == 0;
    Value rowLimit = rowsDivide ? Value() : rowCount, columnLimit = columnsDivide ? Value() : columnCount;

    Value rowBegin = times(tileId(0), s.tileRows);
    Value rowEnd = least(plus(rowBegin, index(s.tileRows)), rowCount);
    Value columnBegin = times(tileId(1), s.tileColumns);
    Value columnEnd = least(plus(columnBegin, index(s.tileColumns)), columnCount);

    // Visits the register blocks of the tile in the scheduled order.
    auto blocks = [&](llvm::function_ref<void(Value row, Value column)> visit) {
      auto onRows = [&](llvm::function_ref<void(Value)> inner) {
        loop(rowBegin, rowEnd, s.registerRows, {}, Value(), [&](Value row, Value, ValueRange) {
          inner(row);
          return SmallVector<Value>();
        });
      };
      auto onColumns = [&](llvm::function_ref<void(Value)> inner) {
        loop(columnBegin, columnEnd, s.registerColumns, {}, Value(), [&](Value column, Value, ValueRange) {
          inner(column);
          return SmallVector<Value>();
        });
      };
      if (s.rowsOutside)
        onRows([&](Value row) { onColumns([&](Value column) { visit(row, column); }); });
      else
        onColumns([&](Value column) { onRows([&](Value row) { visit(row, column); }); });
    };
    // The product of one register block over a range of the depth.
    auto product = [&](Value row, Value column, Value begin, Value end, bool divides) {
      Value zero = zeros(tile(s.registerRows, s.registerColumns, type));
      return steps(begin, end, chunk, divides, zero, [&](Value k, Value limit, ValueRange carried) {
        auto operand = [&](int32_t value, Value at, int64_t count, Value atLimit, int64_t prefetch) {
          return LoadTileOp::create(b, loc, tile(count, chunk, element(value)), buffers[value], at, k, atLimit, limit,
                                    prefetch);
        };
        Value lhs = operand(x, row, s.registerRows, rowLimit, 0);
        Value rhs = operand(w, column, s.registerColumns, columnLimit, s.prefetch);
        return SmallVector<Value>{MmaOp::create(b, loc, carried[0].getType(), carried[0], lhs, rhs)};
      })[0];
    };
    auto finish = [&](Value row, Value column, Value accumulator) {
      Step step{row, column, s.registerRows, s.registerColumns, rowLimit, columnLimit, DenseMap<int32_t, Value>()};
      step.tiles[result] = accumulator;
      storeOutputs(step, [](int32_t) { return true; });
    };

    if (s.blockK == 0 || s.blockK >= depth.factor) {
      blocks([&](Value row, Value column) {
        finish(row, column, product(row, column, index(0), depthCount, depth.factor % chunk == 0));
      });
      return;
    }
    // Blocked depth: partial sums wait in a buffer of the tile's size.
    auto bufferType = MemRefType::get({s.tileRows, s.tileColumns}, type);
    Value buffer = memref::AllocaOp::create(b, loc, bufferType);
    RankedTensorType blockType = tile(s.registerRows, s.registerColumns, type);
    auto within = [&](Value position, Value begin) {
      return arith::SubIOp::create(b, loc, position, begin).getResult();
    };
    auto fetch = [&](Value row, Value column) -> Value {
      return LoadTileOp::create(b, loc, blockType, buffer, within(row, rowBegin), within(column, columnBegin), Value(),
                                Value(), 0);
    };
    auto keep = [&](Value row, Value column, Value block) {
      StoreTileOp::create(b, loc, block, buffer, within(row, rowBegin), within(column, columnBegin), Value(), Value(),
                          false);
    };
    blocks([&](Value row, Value column) { keep(row, column, zeros(blockType)); });
    bool divides = depth.factor % chunk == 0;
    loop(index(0), depthCount, s.blockK, {}, Value(), [&](Value begin, Value, ValueRange) {
      Value end = least(plus(begin, index(s.blockK)), depthCount);
      blocks([&](Value row, Value column) {
        keep(row, column, sum(fetch(row, column), product(row, column, begin, end, divides)));
      });
      return SmallVector<Value>();
    });
    blocks([&](Value row, Value column) { finish(row, column, fetch(row, column)); });
  }
};

FailureOr<Computation> readComputation(func::FuncOp function, const Problem& problem) {
  Computation computation;
  for (auto [i, argument] : llvm::enumerate(function.getArguments()))
    computation.ids[argument] = static_cast<int32_t>(i);
  for (Operation& op : function.getBody().front()) {
    if (!op.hasAttr(kPrimitiveAttr)) continue;
    computation.ids[op.getResult(0)] = problem.primitives.resultOf(computation.nodes.size());
    computation.nodes.push_back(&op);
  }
  if (computation.nodes.size() != problem.primitives.nodes.size())
    return function.emitError("has ") << computation.nodes.size() << " primitive operations, its description "
                                      << problem.primitives.nodes.size() << ": run ktune-decompose first";
  return computation;
}

/// The problem that a function was imported from.
FailureOr<Problem> problemOf(func::FuncOp function) {
  auto text = function->getAttrOfType<StringAttr>(kDescriptionAttr);
  auto bucket = function->getAttrOfType<IntegerAttr>(kBucketAttr);
  if (!text || !bucket) return function.emitError("lacks ktune.description or ktune.bucket");
  ktune::Result<Json> json = parseJson(text.getValue().str(), kDescriptionAttr.str());
  if (!json) return function.emitError(json.error().message());
  ktune::Result<op::Graph> graph = op::fromJson(*json, kDescriptionAttr.str());
  if (!graph) return function.emitError(graph.error().message());
  std::vector<op::Bucket> buckets = op::bucketsOf(*graph);
  if (bucket.getInt() < 0 || static_cast<size_t>(bucket.getInt()) >= buckets.size())
    return function.emitError("has ") << buckets.size() << " buckets, ktune.bucket is " << bucket.getInt();
  ktune::Result<Problem> problem = Problem::create(*graph, buckets[static_cast<size_t>(bucket.getInt())]);
  if (!problem) return function.emitError(problem.error().message());
  return *problem;
}

struct GeneratePass : PassWrapper<GeneratePass, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(GeneratePass)
  void getDependentDialects(DialectRegistry& registry) const final { registerDialects(registry); }
  StringRef getArgument() const final { return "ktune-generate"; }
  StringRef getDescription() const final { return "Build one tile function per kernel of the module's genome"; }
  void runOnOperation() final {
    ModuleOp module = getOperation();
    auto genomeAttribute = module->getAttrOfType<GenomeAttr>(kGenomeAttr);
    if (!genomeAttribute) {
      module.emitError("lacks the attribute ktune.genome");
      return signalPassFailure();
    }
    schedule::PlanGenome genome = genomeOf(genomeAttribute);
    SmallVector<func::FuncOp> functions;
    for (auto function : module.getOps<func::FuncOp>())
      if (function->hasAttr(kDescriptionAttr)) functions.push_back(function);
    for (func::FuncOp function : functions)
      if (failed(generate(module, function, genome))) return signalPassFailure();
  }

  static LogicalResult generate(ModuleOp module, func::FuncOp function, const schedule::PlanGenome& genome) {
    FailureOr<Problem> problem = problemOf(function);
    if (failed(problem)) return failure();
    FailureOr<Computation> computation = readComputation(function, *problem);
    if (failed(computation)) return failure();
    ktune::Result<std::vector<Group>> groups = problem->groups(genome.fuse);
    if (!groups) return function.emitError(groups.error().message());
    if (groups->size() != genome.kernels.size())
      return function.emitError("the genome has ")
             << genome.kernels.size() << " kernels, its fusion bits make " << groups->size();
    for (size_t k = 0; k < groups->size(); ++k) {
      if ((*groups)[k].generator != genome.kernels[k].generator)
        return function.emitError("kernel ")
               << k << " needs the generator " << schedule::generatorName((*groups)[k].generator);
      for (KernelRole role : rolesOf(genome.kernels[k])) {
        KernelBuilder builder(module, *computation, *problem, (*groups)[k], genome.kernels[k],
                              kernelSymbol(*problem, k, groups->size(), role), role);
        if (failed(builder.build())) return failure();
      }
    }
    function.erase();
    return success();
  }
};

}  // namespace

std::unique_ptr<Pass> createGeneratePass() {
  return std::make_unique<GeneratePass>();
}

}  // namespace ktune::ir
