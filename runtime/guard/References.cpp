#include "runtime/guard/References.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "ir/op/Operator.h"

namespace ktune::runtime {

namespace {

bool dependsOnSymbol(const op::Shape& shape) {
  return std::any_of(shape.begin(), shape.end(), [](const op::Dim& d) { return !d.isStatic(); });
}

// The rows of a block may be evaluated one piece at a time: a symbol in front and nowhere else.
bool symbolInFrontOnly(const op::Shape& shape) {
  for (size_t d = 1; d < shape.size(); ++d) {
    if (!shape[d].isStatic()) return false;
  }
  return true;
}

// The part of VIEW that starts at BEGIN and has EXTENTS.
TensorView boxOf(TensorView view, const std::vector<int64_t>& begin, std::vector<int64_t> extents) {
  int64_t offset = 0;
  for (size_t d = 0; d < begin.size(); ++d) offset += begin[d] * view.strides[d];
  view.data = view.at(offset);
  view.extents = std::move(extents);
  return view;
}

// Into memory that is used again from block to block: gigabytes of fresh pages cost more than the conversion.
void readTensor(const TensorView& view, const op::ParallelFor& parallelFor, op::RefTensor& tensor) {
  const int64_t rows = view.rows();
  const int64_t columns = view.columns();
  tensor.shape = view.extents;
  tensor.values.resize(static_cast<size_t>(rows * columns));
  parallelFor(rows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      loadElements(view.dtype, view.at(view.rowOffset(row)), view.columnStride(), columns,
                   tensor.values.data() + row * columns);
  });
}

}  // namespace

ReferenceEvaluator::ReferenceEvaluator(const schedule::Problem& problem, uint64_t workingBytes, op::DotEngine* engine)
    : problem_(problem), limit_(workingBytes), engine_(engine) {
  findRows();
  findColumns();
}

void ReferenceEvaluator::findRows() {
  const op::Graph& graph = problem_.primitives;
  if (graph.symbols.size() != 1) return;
  for (size_t v = 0; v < graph.valueCount(); ++v) {
    if (!symbolInFrontOnly(problem_.types[v].shape)) return;
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const op::OperatorDef* op = op::findOperator(graph.nodes[n].op);
    if (op == nullptr || op->kind == op::OperatorKind::kComposite) return;
    const op::Shape& result = problem_.types[static_cast<size_t>(graph.resultOf(n))].shape;
    for (size_t o = 0; o < graph.nodes[n].operands.size(); ++o) {
      const op::Shape& operand = problem_.types[static_cast<size_t>(graph.nodes[n].operands[o])].shape;
      if (!dependsOnSymbol(operand)) continue;
      if (op->kind == op::OperatorKind::kContraction && o != 0) return;
      if (result.size() != operand.size() || !(result[0] == operand[0])) return;
    }
  }
  for (const op::Output& output : graph.outputs) {
    if (!dependsOnSymbol(problem_.types[static_cast<size_t>(output.value)].shape)) return;
  }
  rowsIndependent_ = true;
}

void ReferenceEvaluator::findColumns() {
  const op::Graph& graph = problem_.primitives;
  const auto shapeOf = [&](int32_t v) -> const op::Shape& { return problem_.types[static_cast<size_t>(v)].shape; };
  std::vector<Axis> axis(graph.valueCount(), Axis::kNone);
  int64_t columns = 0;
  for (const op::Output& output : graph.outputs) {
    const op::Shape& shape = shapeOf(output.value);
    if (shape.empty() || !shape.back().isStatic() || (columns != 0 && columns != shape.back().factor)) return;
    columns = shape.back().factor;
    axis[static_cast<size_t>(output.value)] = Axis::kLast;
  }
  if (columns < 2) return;

  // From the outputs to the inputs: which dim of an operand the columns come from.
  const auto require = [&](int32_t value, Axis wanted) {
    Axis& present = axis[static_cast<size_t>(value)];
    if (present != Axis::kNone && present != wanted) return false;
    present = wanted;
    return true;
  };
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const op::Node& node = graph.nodes[n];
    const Axis wanted = axis[static_cast<size_t>(graph.resultOf(n))];
    if (wanted == Axis::kNone) continue;
    const op::OperatorDef* op = op::findOperator(node.op);
    if (op == nullptr) return;
    const size_t resultRank = shapeOf(graph.resultOf(n)).size();
    switch (op->kind) {
      case op::OperatorKind::kConstant:
        break;
      case op::OperatorKind::kElementwise:
        for (int32_t operand : node.operands) {
          const op::Shape& shape = shapeOf(operand);
          // A broadcast operand has no columns of its own.
          if (shape.empty() || (wanted == Axis::kFirst && shape.size() != resultRank)) continue;
          const op::Dim& dim = wanted == Axis::kFirst ? shape.front() : shape.back();
          if (dim == op::Dim::fixed(1)) continue;
          if (!(dim == op::Dim::fixed(columns)) || !require(operand, wanted)) return;
        }
        break;
      case op::OperatorKind::kReduction:
        if (wanted != Axis::kFirst || resultRank < 2 || !require(node.operands[0], Axis::kFirst)) return;
        break;
      case op::OperatorKind::kContraction:
        if (wanted != Axis::kLast || !require(node.operands[1], Axis::kFirst)) return;
        break;
      default:
        return;
    }
  }
  // And back: whatever has columns must be used column by column everywhere.
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const op::Node& node = graph.nodes[n];
    const op::OperatorDef* op = op::findOperator(node.op);
    const Axis result = axis[static_cast<size_t>(graph.resultOf(n))];
    for (size_t o = 0; o < node.operands.size(); ++o) {
      const Axis operand = axis[static_cast<size_t>(node.operands[o])];
      if (operand == Axis::kNone) continue;
      if (op->kind == op::OperatorKind::kContraction ? (o != 1 || operand != Axis::kFirst || result != Axis::kLast)
                                                     : operand != result)
        return;
    }
  }
  columnAxis_.assign(axis.begin(), axis.begin() + static_cast<std::ptrdiff_t>(graph.inputs.size()));
  columns_ = columns;
  // The description as written must agree that it can be cut.
  const op::Graph smaller = cut(2);
  const Result<std::vector<op::ValueType>> types =
      op::verify(smaller).isOk() ? op::inferTypes(smaller) : Result<std::vector<op::ValueType>>(unsupported("no"));
  bool agrees = types.has_value();
  for (const op::Output& output : smaller.outputs)
    agrees = agrees && (*types)[static_cast<size_t>(output.value)].shape.back() == op::Dim::fixed(2);
  if (!agrees) columns_ = 0;
}

op::Graph ReferenceEvaluator::cut(int64_t columns) const {
  op::Graph graph = problem_.source;
  if (rowsIndependent_ && !graph.symbols.empty()) graph.symbols[0].min = 1;
  if (columns_ == 0) return graph;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    graph.inputs[i].strides.clear();  // References are dense.
    op::Shape& shape = graph.inputs[i].type.shape;
    if (columnAxis_[i] == Axis::kFirst) shape.front() = op::Dim::fixed(columns);
    if (columnAxis_[i] == Axis::kLast) shape.back() = op::Dim::fixed(columns);
  }
  return graph;
}

uint64_t ReferenceEvaluator::bytesOf(const op::Graph& graph, const std::vector<int64_t>& symbolValues) const {
  const Result<std::vector<op::ValueType>> types = op::inferTypes(graph);
  if (!types) return std::numeric_limits<uint64_t>::max();
  double bytes = 0;
  for (size_t v = 0; v < types->size(); ++v) {
    double elements = 1;
    for (const op::Dim& dim : (*types)[v].shape) elements *= static_cast<double>(dim.extent(symbolValues));
    bytes += elements * (v < graph.inputs.size() ? 8 : 16);
  }
  return bytes < 1e18 ? static_cast<uint64_t>(bytes) : std::numeric_limits<uint64_t>::max();
}

bool ReferenceEvaluator::hasContraction() const {
  return std::any_of(problem_.primitives.nodes.begin(), problem_.primitives.nodes.end(), [](const op::Node& node) {
    const op::OperatorDef* op = op::findOperator(node.op);
    return op != nullptr && op->kind == op::OperatorKind::kContraction;
  });
}

ReferenceEvaluator::Block ReferenceEvaluator::chooseBlock(const std::vector<int64_t>& symbolValues,
                                                          uint64_t limit) const {
  // Small enough blocks that one more halving is cheap, large enough that every thread has work.
  constexpr int64_t kLeastColumns = 32;
  std::vector<int64_t> symbols = symbolValues;
  Block block{rowsIndependent_ ? symbols[0] : 0, columns_, 0};
  block.bytes = bytesOf(cut(block.columns), symbols);
  while (block.bytes > limit) {
    Block best = block;
    if (rowsIndependent_ && block.symbol > 1) {
      symbols[0] = (block.symbol + 1) / 2;
      const uint64_t bytes = bytesOf(cut(block.columns), symbols);
      if (bytes < best.bytes) best = {symbols[0], block.columns, bytes};
      symbols[0] = block.symbol;
    }
    if (columns_ > 0 && block.columns > kLeastColumns) {
      const int64_t half = (block.columns + 1) / 2;
      const uint64_t bytes = bytesOf(cut(half), symbols);
      if (bytes < best.bytes) best = {block.symbol, half, bytes};
    }
    if (best.bytes >= block.bytes) break;
    block = best;
    if (rowsIndependent_) symbols[0] = block.symbol;
  }
  return block;
}

uint64_t ReferenceEvaluator::workingBytes(const std::vector<int64_t>& symbolValues) const {
  return chooseBlock(symbolValues, limit_).bytes;
}

Status ReferenceEvaluator::evaluate(const std::vector<int64_t>& symbolValues, const std::vector<TensorView>& inputs,
                                    const op::ParallelFor& parallelFor, std::vector<Expected>& results) const {
  const op::Graph& source = problem_.source;
  KTUNE_ASSIGN(const std::vector<op::ValueType> types, op::inferTypes(source));
  results.resize(source.outputs.size());
  std::vector<std::vector<int64_t>> outputExtents;
  for (size_t o = 0; o < source.outputs.size(); ++o) {
    const op::Shape& shape = types[static_cast<size_t>(source.outputs[o].value)].shape;
    KTUNE_ASSIGN(const int64_t count, op::elementCount(shape, symbolValues));
    for (ReferenceValues* values : {&results[o].values, &results[o].bounds}) {
      values->clear();
      values->resize(static_cast<size_t>(count));
    }
    outputExtents.push_back(extentsOf(shape, symbolValues));
  }

  // Contractions keep all threads busy by themselves; everything else is cheap for its bytes, and pieces that are
  // evaluated side by side keep the threads from waiting for one that allocates.
  const bool sideBySide = rowsIndependent_ && !hasContraction();
  constexpr uint64_t kPiecesAtATime = 32;
  const Block block = chooseBlock(symbolValues, sideBySide ? limit_ / kPiecesAtATime : limit_);
  const int64_t rowCount = rowsIndependent_ ? symbolValues[0] : 1;
  const int64_t rowStep = rowsIndependent_ ? block.symbol : 1;
  const int64_t columnCount = columns_ > 0 ? columns_ : 1;
  const int64_t columnStep = columns_ > 0 ? block.columns : 1;
  std::vector<Piece> pieces;
  for (int64_t column = 0; column < columnCount; column += columnStep)
    for (int64_t row = 0; row < rowCount; row += rowStep)
      pieces.push_back({row, std::min(rowStep, rowCount - row), column, std::min(columnStep, columnCount - column)});

  const auto evaluatePiece = [&](const Piece& piece, std::vector<op::RefTensor>& tensors,
                                 const op::ParallelFor& threads) -> Status {
    std::vector<int64_t> symbols = symbolValues;
    if (rowsIndependent_) symbols[0] = piece.rows;
    const op::Graph graph = cut(piece.columns);
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      const op::Shape& shape = graph.inputs[i].type.shape;
      std::vector<int64_t> begin(shape.size(), 0);
      if (rowsIndependent_ && !shape.empty() && !shape[0].isStatic()) begin[0] = shape[0].factor * piece.row;
      if (columns_ > 0 && columnAxis_[i] == Axis::kFirst) begin.front() = piece.column;
      if (columns_ > 0 && columnAxis_[i] == Axis::kLast) begin.back() = piece.column;
      readTensor(boxOf(inputs[i], begin, extentsOf(shape, symbols)), threads, tensors[i]);
    }
    KTUNE_ASSIGN(const std::vector<op::RefTensor> outputs,
                 op::evaluateReference(graph, symbols, tensors, threads, engine_));
    for (size_t o = 0; o < outputs.size(); ++o) {
      // Where the piece lies in the whole output, whose strides in doubles are those of a dense tensor.
      std::vector<int64_t> begin(outputExtents[o].size(), 0);
      const op::Shape& shape = types[static_cast<size_t>(source.outputs[o].value)].shape;
      if (rowsIndependent_) begin[0] = shape[0].factor * piece.row;
      if (columns_ > 0) begin.back() = piece.column;
      const TensorView whole = TensorView::dense(op::DType::kF64, results[o].values.data(), outputExtents[o]);
      const TensorView box = boxOf(whole, begin, outputs[o].shape);
      const auto width = static_cast<size_t>(box.columns());
      threads(box.rows(), [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; ++r) {
          auto* values = static_cast<double*>(box.at(box.rowOffset(r)));
          double* bounds = results[o].bounds.data() + (values - results[o].values.data());
          const auto from = static_cast<size_t>(r) * width;
          std::copy_n(outputs[o].values.data() + from, width, values);
          if (outputs[o].bounds.empty())
            std::fill_n(bounds, width, 0.0);
          else
            std::copy_n(outputs[o].bounds.data() + from, width, bounds);
        }
      });
    }
    return Status::ok();
  };

  if (!sideBySide || pieces.size() == 1) {
    std::vector<op::RefTensor> tensors(source.inputs.size());
    for (const Piece& piece : pieces) KTUNE_TRY(evaluatePiece(piece, tensors, parallelFor));
    return Status::ok();
  }
  std::mutex mutex;
  Status failure;
  parallelFor(static_cast<int64_t>(pieces.size()), [&](int64_t first, int64_t last) {
    std::vector<op::RefTensor> tensors(source.inputs.size());
    for (int64_t p = first; p < last; ++p) {
      Status status = evaluatePiece(pieces[static_cast<size_t>(p)], tensors, op::serialFor());
      const std::lock_guard lock(mutex);
      if (!status.isOk() && failure.isOk()) failure = std::move(status);
      if (!failure.isOk()) return;
    }
  });
  return failure;
}

}  // namespace ktune::runtime
