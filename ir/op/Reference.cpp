#include "ir/op/Reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <stdexcept>

#include "ir/op/ReferenceKernels.h"

namespace ktune::op {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

// ---- Bounds.

Precision precisionOf(const RefContext& context) {
  Precision p;
  const DType accumulate = context.numerics == nullptr ? DType::kF32 : context.numerics->accumulate;
  const double result = unitRoundoff(context.resultType);
  p.accumulate = unitRoundoff(accumulate);
  p.compute = std::min(p.accumulate, result);
  p.function = std::min(result, unitRoundoff(DType::kF32));
  p.store = result > p.accumulate ? result : 0.0;
  p.halfSubnormal = smallestSubnormal(context.resultType) / 2;
  p.smallestNormal = context.resultType == DType::kF64 ? std::numeric_limits<double>::min()
                                                       : static_cast<double>(std::numeric_limits<float>::min());
  p.largest = largestFinite(context.resultType);
  p.largestPartial = largestFinite(accumulate);
  p.halfSubnormalPartial = smallestSubnormal(accumulate) / 2;
  return p;
}

double settle(double value, double propagated, double relative, const Precision& precision) {
  // A NaN bound comes from 0 * infinity: an operand that cannot be judged.
  if (std::isnan(propagated)) propagated = kInfinity;
  if (!std::isfinite(value)) return std::isinf(propagated) ? kInfinity : 0.0;
  const double magnitude = std::fabs(value);
  double bound = propagated + (relative + precision.store) * magnitude + precision.halfSubnormal;
  if (magnitude < precision.smallestNormal) bound += magnitude;
  return std::isnan(bound) || magnitude + bound > precision.largest ? kInfinity : bound;
}

// Higham and Mary (2019): with roundings that are independent and have mean zero, the error of a sum is at most
// lambda * u * sqrt(sum of squared partial sums) with a probability that lambda sets, so at most
// lambda * u * sqrt(n) * (largest partial sum). The error of one rounding has a standard deviation of about 0.4 u
// (uniform in [-u, u] for the smallest mantissa, half of that for the largest), and partial sums that grow steadily
// are 0.58 of their largest in the mean square: lambda = 1.25 is at least three standard deviations for sums that stay
// at their largest, more than five for steadily growing ones.
// The second part covers what REACH does not see: the roundings of the products (2-norm of the terms), and partial
// sums inside a stretch between two looks at the running sum (kStretch terms, at most half of their magnitudes
// cancel: 0.5 * sqrt(kStretch)).
namespace {
constexpr int64_t kStretch = 128;
constexpr double kProductUnits = 2.0;
constexpr double kLambda = 1.25;
}  // namespace

double sumError(const Precision& precision, int64_t terms, double reach, double norm) {
  const double n = static_cast<double>(terms);
  const double inside = 0.5 * std::sqrt(std::min(n, static_cast<double>(kStretch)));
  if (reach > precision.largestPartial) return kInfinity;
  return precision.accumulate * (kLambda * std::sqrt(n) * reach + (kProductUnits + inside) * norm) +
         n * precision.halfSubnormalPartial;
}

// ---- The dot product.

namespace {

constexpr int kLanes = 8;
// GCC's and clang's vector extension: one body serves AVX-512 (one register), AVX2 (two) and everything else.
using Lanes = double __attribute__((vector_size(64)));
using LooseLanes = double __attribute__((vector_size(64), aligned(8), may_alias));

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=fast")
#endif

/// The next eight values of a row, or the last COUNT < 8 of them followed by zeros. (Vectors pass by reference: by
/// value their ABI would depend on the target.)
[[gnu::always_inline]] inline void loadLanes(Lanes& lanes, const double* from) {
  lanes = *reinterpret_cast<const LooseLanes*>(from);
}
[[gnu::always_inline]] inline void loadTail(Lanes& lanes, const double* from, int64_t count) {
  double padded[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) padded[i] = from[i];
  loadLanes(lanes, padded);
}

/// SUMS[i * ldOut + j] = x_i . w_j and REACHES[...] as in Sum, for MR rows of x and NR rows of w. Everything is
/// unrolled, so that the accumulators live in registers.
template <int MR, int NR>
[[gnu::always_inline]] inline void dotTile(const double* x, const double* w, int64_t k, double* sums, double* reaches,
                                           int64_t ldOut) {
  Lanes lanes[MR][NR];
  Lanes reach[MR][NR];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < NR; ++j) lanes[i][j] = reach[i][j] = Lanes{};
  }
  const int64_t whole = k - k % kLanes;
  for (int64_t begin = 0; begin < k; begin += kStretch) {
    const int64_t end = std::min(begin + kStretch, whole);
    for (int64_t t = begin; t < end; t += kLanes) {
      Lanes b[NR];
#pragma GCC unroll 16
      for (int j = 0; j < NR; ++j) loadLanes(b[j], w + j * k + t);
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) {
        Lanes a;
        loadLanes(a, x + i * k + t);
#pragma GCC unroll 16
        for (int j = 0; j < NR; ++j) lanes[i][j] += a * b[j];
      }
    }
    if (begin + kStretch >= k && whole < k) {
      Lanes b[NR];
#pragma GCC unroll 16
      for (int j = 0; j < NR; ++j) loadTail(b[j], w + j * k + whole, k - whole);
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) {
        Lanes a;
        loadTail(a, x + i * k + whole, k - whole);
#pragma GCC unroll 16
        for (int j = 0; j < NR; ++j) lanes[i][j] += a * b[j];
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < NR; ++j) {
        const Lanes magnitude = lanes[i][j] < 0 ? -lanes[i][j] : lanes[i][j];
        reach[i][j] = magnitude > reach[i][j] ? magnitude : reach[i][j];
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < NR; ++j) {
      double sum = 0, most = 0;
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l) {
        sum += lanes[i][j][l];
        most += reach[i][j][l];
      }
      sums[i * ldOut + j] = sum;
      reaches[i * ldOut + j] = most;
    }
  }
}

using Tile = void (*)(const double*, const double*, int64_t, double*, double*, int64_t);

/// The tile functions for one processor: MR x NR, 1 x NR, MR x 1, 1 x 1.
struct Tiles {
  int mr, nr;
  Tile full, row, column, single;
};

#define KTUNE_TILE(name, target, mr, nr)                                                                        \
  target void name(const double* x, const double* w, int64_t k, double* sums, double* reaches, int64_t ldOut) { \
    dotTile<mr, nr>(x, w, k, sums, reaches, ldOut);                                                             \
  }

KTUNE_TILE(plain22, , 2, 2)
KTUNE_TILE(plain12, , 1, 2)
KTUNE_TILE(plain21, , 2, 1)
KTUNE_TILE(plain11, , 1, 1)
// Chosen by an ordinary test and call, not by target_clones, whose ifuncs run before sanitizers are ready.
#if defined(__x86_64__) && !defined(KTUNE_SANITIZED)
KTUNE_TILE(avx44, [[gnu::target("avx512f")]], 4, 4)
KTUNE_TILE(avx14, [[gnu::target("avx512f")]], 1, 4)
KTUNE_TILE(avx41, [[gnu::target("avx512f")]], 4, 1)
KTUNE_TILE(avx11, [[gnu::target("avx512f")]], 1, 1)
KTUNE_TILE(fma22, [[gnu::target("avx2,fma")]], 2, 2)
KTUNE_TILE(fma12, [[gnu::target("avx2,fma")]], 1, 2)
KTUNE_TILE(fma21, [[gnu::target("avx2,fma")]], 2, 1)
KTUNE_TILE(fma11, [[gnu::target("avx2,fma")]], 1, 1)
#endif
#undef KTUNE_TILE

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

const Tiles& tilesHere() {
  static const Tiles tiles = [] {
#if defined(__x86_64__) && !defined(KTUNE_SANITIZED)
    if (__builtin_cpu_supports("avx512f")) return Tiles{4, 4, avx44, avx14, avx41, avx11};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      return Tiles{2, 2, fma22, fma12, fma21, fma11};
    }
#endif
    return Tiles{2, 2, plain22, plain12, plain21, plain11};
  }();
  return tiles;
}

/// SUMS[m * ldOut + n] = x_m . w_n for all m < ROWS, n < COLUMNS.
void dotBlock(const double* x, int64_t rows, const double* w, int64_t columns, int64_t k, double* sums, double* reaches,
              int64_t ldOut) {
  const Tiles& tiles = tilesHere();
  for (int64_t m = 0; m < rows;) {
    const bool wide = m + tiles.mr <= rows;
    for (int64_t n = 0; n < columns;) {
      const bool broad = n + tiles.nr <= columns;
      const Tile tile = wide ? (broad ? tiles.full : tiles.column) : (broad ? tiles.row : tiles.single);
      tile(x + m * k, w + n * k, k, sums + m * ldOut + n, reaches + m * ldOut + n, ldOut);
      n += broad ? tiles.nr : 1;
    }
    m += wide ? tiles.mr : 1;
  }
}

double norm2(const double* x, int64_t n) {
  double squares = 0, ignored = 0;
  tilesHere().single(x, x, n, &squares, &ignored, 1);
  return std::sqrt(squares);
}

std::vector<double> magnitudes(const double* x, int64_t n) {
  std::vector<double> result(static_cast<size_t>(n));
  std::transform(x, x + n, result.begin(), [](double v) { return std::fabs(v); });
  return result;
}

}  // namespace

namespace {

/// The parts of a contraction's bounds that come from its operands' bounds, for some columns of the result; null where
/// the operand is exact. Element (m, n) is at [m * ld + n].
struct Propagated {
  const double* ofX = nullptr;
  const double* ofW = nullptr;
  int64_t ld = 0;
};

/// Replaces the reaches that the bounds of columns [N0, N0 + WIDTH) hold by the bounds.
void settleColumns(const Precision& precision, int64_t k, const double* w, const std::vector<double>& rowNorms,
                   int64_t columns, int64_t n0, int64_t width, const Propagated& propagated, RefTensor& result) {
  for (int64_t n = 0; n < width; ++n) {
    const double columnNorm = norm2(w + (n0 + n) * k, k);
    for (int64_t m = 0; m < static_cast<int64_t>(rowNorms.size()); ++m) {
      const auto at = static_cast<size_t>(m * columns + n0 + n);
      double error = sumError(precision, k, result.bounds[at], rowNorms[static_cast<size_t>(m)] * columnNorm);
      // Of a NaN or infinite row there are no rounding errors to speak of.
      if (!std::isfinite(result.values[at])) error = 0;
      if (propagated.ofX != nullptr) error += propagated.ofX[m * propagated.ld + n];
      if (propagated.ofW != nullptr) error += propagated.ofW[m * propagated.ld + n];
      result.bounds[at] = settle(result.values[at], error, 0, precision);
    }
  }
}

// A block of w stays in the second-level cache while all rows of x pass by.
constexpr int64_t kColumnBlock = 32;

/// The contraction by way of CONTEXT's engine. Errors: the engine's; RESULT is then to be made anew.
Status contractionByEngine(const RefContext& context, const RefTensor& x, const RefTensor& w,
                           const std::vector<double>& rowNorms, const std::vector<double>& xMagnitudes,
                           RefTensor& result) {
  const int64_t k = x.shape.back();
  const int64_t columns = w.shape[0];
  const auto rows = static_cast<int64_t>(rowNorms.size());
  DotEngine& engine = *context.dotEngine;
  // The bounds hold the reaches until they are replaced below.
  KTUNE_TRY(
      engine.dots(x.values.data(), rows, w.values.data(), columns, k, result.values.data(), result.bounds.data()));
  std::vector<double> ofX, ofW, ignored;
  // First order: |dx| . |w| + |x| . |dw|.
  if (!x.bounds.empty()) {
    ofX.resize(result.values.size());
    ignored.resize(ofX.size());
    const std::vector<double> wMagnitudes = magnitudes(w.values.data(), columns * k);
    KTUNE_TRY(engine.dots(x.bounds.data(), rows, wMagnitudes.data(), columns, k, ofX.data(), ignored.data()));
  }
  if (!w.bounds.empty()) {
    ofW.resize(result.values.size());
    ignored.resize(ofW.size());
    KTUNE_TRY(engine.dots(xMagnitudes.data(), rows, w.bounds.data(), columns, k, ofW.data(), ignored.data()));
  }
  const Precision precision = precisionOf(context);
  inPieces(context, columns, kColumnBlock, [&](int64_t begin, int64_t end) {
    const Propagated propagated{ofX.empty() ? nullptr : ofX.data() + begin, ofW.empty() ? nullptr : ofW.data() + begin,
                                columns};
    settleColumns(precision, k, w.values.data(), rowNorms, columns, begin, end - begin, propagated, result);
  });
  return Status::ok();
}

}  // namespace

Status contractionReference(const RefContext& context, const RefTensor& x, const RefTensor& w, RefTensor& result) {
  const int64_t k = x.shape.back();
  const int64_t columns = w.shape[0];
  const int64_t rows = productOf(x.shape) / k;
  allocate(result, withLast(x.shape, columns));
  const Precision precision = precisionOf(context);

  std::vector<double> rowNorms(static_cast<size_t>(rows));
  inPieces(context, rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) rowNorms[static_cast<size_t>(m)] = norm2(x.values.data() + m * k, k);
  });
  const std::vector<double> xMagnitudes =
      w.bounds.empty() ? std::vector<double>() : magnitudes(x.values.data(), rows * k);

  if (context.dotEngine != nullptr &&
      static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(k) > kLeastEngineProducts &&
      contractionByEngine(context, x, w, rowNorms, xMagnitudes, result).isOk())
    return Status::ok();

  inPieces(context, (columns + kColumnBlock - 1) / kColumnBlock, 1, [&](int64_t firstBlock, int64_t endBlock) {
    std::vector<double> ofX, ofW, ignored;
    for (int64_t block = firstBlock; block < endBlock; ++block) {
      const int64_t n0 = block * kColumnBlock;
      const int64_t width = std::min(kColumnBlock, columns - n0);
      const double* wBlock = w.values.data() + n0 * k;
      // The bounds hold the reaches until they are replaced below.
      dotBlock(x.values.data(), rows, wBlock, width, k, result.values.data() + n0, result.bounds.data() + n0, columns);
      // First order: |dx| . |w| + |x| . |dw|.
      if (!x.bounds.empty()) {
        ofX.resize(static_cast<size_t>(rows * width));
        ignored.resize(ofX.size());
        const std::vector<double> wMagnitudes = magnitudes(wBlock, width * k);
        dotBlock(x.bounds.data(), rows, wMagnitudes.data(), width, k, ofX.data(), ignored.data(), width);
      }
      if (!w.bounds.empty()) {
        ofW.resize(static_cast<size_t>(rows * width));
        ignored.resize(ofW.size());
        dotBlock(xMagnitudes.data(), rows, w.bounds.data() + n0 * k, width, k, ofW.data(), ignored.data(), width);
      }
      settleColumns(precision, k, w.values.data(), rowNorms, columns, n0, width,
                    {ofX.empty() ? nullptr : ofX.data(), ofW.empty() ? nullptr : ofW.data(), width}, result);
    }
  });
  return Status::ok();
}

// ---- Helpers of operators.

void inPieces(const RefContext& context, int64_t count, int64_t grain,
              const std::function<void(int64_t begin, int64_t end)>& body) {
  if (count <= 0) return;
  if (context.parallelFor == nullptr || count <= grain) {
    body(0, count);
    return;
  }
  const int64_t pieces = (count + grain - 1) / grain;
  (*context.parallelFor)(pieces, [&](int64_t begin, int64_t end) {
    if (begin < end) body(begin * grain, std::min(end * grain, count));
  });
}

int64_t productOf(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (int64_t extent : shape) product *= extent;
  return product;
}

std::vector<int64_t> withLast(std::vector<int64_t> shape, int64_t extent) {
  shape.back() = extent;
  return shape;
}

void allocate(RefTensor& result, std::vector<int64_t> shape) {
  const auto count = static_cast<size_t>(productOf(shape));
  result.shape = std::move(shape);
  result.values.assign(count, 0.0);
  result.bounds.assign(count, 0.0);
}

std::string operandText(const Graph& graph, const Node& node, size_t operand) {
  const std::string& name = graph.valueName(node.operands[operand]);
  return "operand " + std::to_string(operand) + (name.empty() ? "" : " '" + name + "'");
}

Status requireFloat(std::string_view op, DType type) {
  switch (type) {
    case DType::kF64:
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return Status::ok();
    default:
      return unsupported(std::string(op) + " has no dtype " + std::string(dtypeName(type)) +
                         "; use f64, f32, f16 or bf16");
  }
}

Status requireSameDType(const Graph& graph, const Node& node, std::span<const ValueType> operands) {
  for (size_t i = 1; i < operands.size(); ++i) {
    if (operands[i].dtype == operands[0].dtype) continue;
    return invalidArgument(operandText(graph, node, i) + " must have the dtype of operand 0, " +
                           std::string(dtypeName(operands[0].dtype)) + ", has " +
                           std::string(dtypeName(operands[i].dtype)));
  }
  return Status::ok();
}

Status requireStaticLastDim(const Graph& graph, const Node& node, std::span<const ValueType> operands) {
  const Shape& shape = operands[0].shape;
  if (!shape.empty() && shape.back().isStatic()) return Status::ok();
  return invalidArgument(operandText(graph, node, 0) + " must have a last dim that is static, has shape " +
                         shapeText(graph, shape));
}

Result<ValueType> inferNormalisation(const Graph& graph, const Node& node, std::span<const ValueType> operands) {
  KTUNE_TRY(requireFloat(node.op, operands[0].dtype));
  KTUNE_TRY(requireSameDType(graph, node, operands));
  KTUNE_TRY(requireStaticLastDim(graph, node, operands));
  const Shape expected = {operands[0].shape.back()};
  for (size_t i = 1; i < operands.size(); ++i) {
    if (operands[i].shape != expected)
      return invalidArgument(operandText(graph, node, i) + " must have shape " + shapeText(graph, expected) + ", has " +
                             shapeText(graph, operands[i].shape));
  }
  if (numberAttribute(node, "eps") < 0) return invalidArgument("attribute 'eps' must not be negative");
  return operands[0];
}

double elementsOf(const ValueType& type, const std::vector<int64_t>& symbolValues) {
  double count = 1;
  for (const Dim& dim : type.shape) count *= static_cast<double>(dim.extent(symbolValues));
  return count;
}

Result<ValueType> inferContraction(const Graph& graph, const Node& node, std::span<const ValueType> operands) {
  KTUNE_TRY(requireFloat(node.op, operands[0].dtype));
  KTUNE_TRY(requireSameDType(graph, node, operands));
  KTUNE_TRY(requireStaticLastDim(graph, node, operands));
  const Dim k = operands[0].shape.back();
  const Shape& w = operands[1].shape;
  if (w.size() != 2 || !w[0].isStatic() || w[1] != k) {
    return invalidArgument(operandText(graph, node, 1) + " must have shape [N, " + std::to_string(k.factor) +
                           "] (N static), has " + shapeText(graph, w));
  }
  ValueType result = operands[0];
  result.shape.back() = w[0];
  return result;
}

double contractionOperations(const Node&, std::span<const ValueType> operands, const ValueType& result,
                             const std::vector<int64_t>& symbolValues) {
  return 2 * elementsOf(result, symbolValues) * static_cast<double>(operands[0].shape.back().extent(symbolValues));
}

// ---- Evaluation.

const ParallelFor& serialFor() {
  static const ParallelFor kSerial = [](int64_t count, const std::function<void(int64_t, int64_t)>& body) {
    body(0, count);
  };
  return kSerial;
}

namespace {

double toleranceFactor(ToleranceClass tolerance) {
  switch (tolerance) {
    case ToleranceClass::kStrict:
      return 1;
    case ToleranceClass::kDefault:
      return 2;
    case ToleranceClass::kRelaxed:
      return 8;
  }
  return 2;
}

std::vector<int64_t> extentsOf(const Shape& shape, const std::vector<int64_t>& symbolValues) {
  std::vector<int64_t> extents;
  for (const Dim& dim : shape) extents.push_back(dim.extent(symbolValues));
  return extents;
}

Status checkReferenceInputs(const Graph& graph, const std::vector<int64_t>& symbolValues,
                            const std::vector<RefTensor>& inputs) {
  if (symbolValues.size() != graph.symbols.size()) {
    return invalidArgument("reference: " + std::to_string(graph.symbols.size()) + " symbol values needed, got " +
                           std::to_string(symbolValues.size()));
  }
  for (size_t s = 0; s < symbolValues.size(); ++s) {
    const Symbol& symbol = graph.symbols[s];
    if (symbolValues[s] < symbol.min || symbolValues[s] > symbol.max) {
      return invalidArgument("reference: symbol '" + symbol.name + "' must be from " + std::to_string(symbol.min) +
                             " to " + std::to_string(symbol.max) + ", is " + std::to_string(symbolValues[s]));
    }
  }
  if (inputs.size() != graph.inputs.size()) {
    return invalidArgument("reference: " + std::to_string(graph.inputs.size()) + " inputs needed, got " +
                           std::to_string(inputs.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = graph.inputs[i];
    const std::vector<int64_t> shape = extentsOf(input.type.shape, symbolValues);
    const auto count = static_cast<size_t>(productOf(shape));
    if (inputs[i].shape != shape || inputs[i].values.size() != count ||
        (!inputs[i].bounds.empty() && inputs[i].bounds.size() != count)) {
      return invalidArgument("reference: input '" + input.name + "' must have shape " +
                             shapeText(graph, input.type.shape) + " and as many values");
    }
  }
  return Status::ok();
}

Result<std::vector<RefTensor>> evaluate(const Graph& graph, const std::vector<ValueType>& types,
                                        const std::vector<RefTensor>& inputs, const ParallelFor& parallelFor,
                                        DotEngine* engine) {
  std::vector<RefTensor> made(graph.nodes.size());
  const auto tensorOf = [&](int32_t id) -> const RefTensor& {
    return graph.isInput(id) ? inputs[static_cast<size_t>(id)] : made[graph.producerOf(id)];
  };
  // Intermediates are freed after their last user: a description may be much larger than memory.
  std::vector<size_t> lastUse(graph.valueCount(), 0);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (int32_t id : graph.nodes[n].operands) lastUse[static_cast<size_t>(id)] = n;
  }
  for (const Output& out : graph.outputs) lastUse[static_cast<size_t>(out.value)] = graph.nodes.size();

  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    std::vector<const RefTensor*> operands;
    for (int32_t id : node.operands) operands.push_back(&tensorOf(id));
    const RefContext context{&graph.numerics, types[static_cast<size_t>(graph.resultOf(n))].dtype, &parallelFor,
                             engine};
    KTUNE_TRY(findOperator(node.op)
                  ->reference(context, node, operands, made[n])
                  .withPrefix("nodes[" + std::to_string(n) + "] (" + node.op + ")"));
    for (int32_t id : node.operands) {
      if (!graph.isInput(id) && lastUse[static_cast<size_t>(id)] == n) made[graph.producerOf(id)] = RefTensor();
    }
  }
  std::vector<RefTensor> outputs;
  const double factor = toleranceFactor(graph.numerics.tolerance);
  for (const Output& out : graph.outputs) {
    RefTensor& tensor = outputs.emplace_back(std::move(made[graph.producerOf(out.value)]));
    for (double& bound : tensor.bounds) bound *= factor;
  }
  return outputs;
}

}  // namespace

Result<std::vector<RefTensor>> evaluateReference(const Graph& graph, const std::vector<int64_t>& symbolValues,
                                                 const std::vector<RefTensor>& inputs, const ParallelFor& parallelFor,
                                                 DotEngine* engine) {
  KTUNE_ASSIGN(std::vector<ValueType> types, inferTypes(graph));
  KTUNE_TRY(checkReferenceInputs(graph, symbolValues, inputs));
  // More than any machine has is refused here; the rest is left to the allocator.
  constexpr int64_t kMaxReferenceElements = int64_t{1} << 36;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    KTUNE_ASSIGN(int64_t count, elementCount(types[static_cast<size_t>(graph.resultOf(n))].shape, symbolValues));
    if (count > kMaxReferenceElements) {
      return resourceExhausted("reference: '" + graph.nodes[n].result + "' has " + std::to_string(count) +
                               " elements; choose smaller symbol values");
    }
  }
  try {
    return evaluate(graph, types, inputs, parallelFor, engine);
  } catch (const std::bad_alloc&) {
    return resourceExhausted("reference: out of memory; choose smaller symbol values");
  } catch (const std::length_error&) {
    return resourceExhausted("reference: out of memory; choose smaller symbol values");
  }
}

}  // namespace ktune::op
