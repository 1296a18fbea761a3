// Scalar operators with numpy broadcasting: arithmetic, minimum and maximum, roots, and the transcendental functions
// that others are made of.
//
// Each is one rule: its value, how errors of its operands propagate to first order, and how many units of roundoff
// an honest implementation may add. 0 units: the result is exact, whatever the operands.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ir/op/Operator.h"
#include "ir/op/ReferenceKernels.h"

namespace ktune::op {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Wraps as two's complement hardware does.
int64_t wrap32(uint64_t v) {
  return static_cast<int32_t>(static_cast<uint32_t>(v));
}

struct Add {
  static constexpr double kUnits = 1;
  static double value(double a, double b) { return a + b; }
  static double propagate(double, double, double da, double db) { return da + db; }
  static int64_t integer(int64_t a, int64_t b) { return wrap32(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); }
};
struct Sub {
  static constexpr double kUnits = 1;
  static double value(double a, double b) { return a - b; }
  static double propagate(double, double, double da, double db) { return da + db; }
  static int64_t integer(int64_t a, int64_t b) { return wrap32(static_cast<uint64_t>(a) - static_cast<uint64_t>(b)); }
};
struct Mul {
  static constexpr double kUnits = 1;
  static double value(double a, double b) { return a * b; }
  static double propagate(double a, double b, double da, double db) { return std::fabs(b) * da + std::fabs(a) * db; }
  static int64_t integer(int64_t a, int64_t b) { return wrap32(static_cast<uint64_t>(a) * static_cast<uint64_t>(b)); }
};
struct Div {
  static constexpr double kUnits = 2;  // a fast division errs by up to 2 ulp (CUDA C++ Programming Guide)
  static double value(double a, double b) { return a / b; }
  static double propagate(double a, double b, double da, double db) {
    if (da == 0 && db == 0) return 0;
    if (std::fabs(b) <= db) return kInfinity;  // the pole is inside
    return (da + std::fabs(a / b) * db) / std::fabs(b);
  }
};
// NaN wins, as in arith.maximumf, numpy and PyTorch.
struct Maximum {
  static constexpr double kUnits = 0;
  static double value(double a, double b) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
    return a == b ? (std::signbit(a) ? b : a) : (a > b ? a : b);
  }
  static double propagate(double, double, double da, double db) { return std::max(da, db); }
  static int64_t integer(int64_t a, int64_t b) { return std::max(a, b); }
};
struct Minimum {
  static constexpr double kUnits = 0;
  static double value(double a, double b) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
    return a == b ? (std::signbit(a) ? a : b) : (a < b ? a : b);
  }
  static double propagate(double, double, double da, double db) { return std::max(da, db); }
  static int64_t integer(int64_t a, int64_t b) { return std::min(a, b); }
};
struct Neg {
  static constexpr double kUnits = 0;
  static double value(double a, double) { return -a; }
  static double propagate(double, double, double da, double) { return da; }
};
struct Sqrt {
  static constexpr double kUnits = 2;
  static double value(double a, double) { return std::sqrt(a); }
  static double propagate(double a, double, double da, double) {
    if (da == 0) return 0;
    return a <= da ? kInfinity : da / (2 * std::sqrt(a));  // below 0 it is NaN
  }
};
struct Rsqrt {
  static constexpr double kUnits = 4;  // rsqrtf errs by up to 2 ulp (CUDA C++ Programming Guide)
  static double value(double a, double) { return 1 / std::sqrt(a); }
  static double propagate(double a, double, double da, double) {
    if (da == 0) return 0;
    return a <= da ? kInfinity : da / (2 * a * std::sqrt(a));
  }
};

struct Abs {
  static constexpr double kUnits = 0;
  static double value(double a, double) { return std::fabs(a); }
  static double propagate(double, double, double da, double) { return da; }
};
// Units: expf, logf and erff err by 2 ulp, tanhf by 2 (CUDA C++ Programming Guide), polynomials on the host by some
// more; one ulp is up to two units.
struct Exp {
  static constexpr double kUnits = 8;
  static constexpr bool kTranscendental = true;
  static double value(double a, double) { return std::exp(a); }
  static double propagate(double a, double, double da, double) { return std::exp(a) * std::expm1(da); }
};
struct Log {
  static constexpr double kUnits = 8;
  // Subnormal operands may be taken for zero.
  static bool judges(double a) { return !(a > 0 && a < 1.1754943508222875e-38); }
  static constexpr bool kTranscendental = true;
  static double value(double a, double) { return std::log(a); }
  static double propagate(double a, double, double da, double) {
    if (da == 0) return 0;
    return a <= da ? kInfinity : da / (a - da);  // below 0 it is NaN
  }
};
struct Tanh {
  static constexpr double kUnits = 12;
  static constexpr bool kTranscendental = true;
  static double value(double a, double) { return std::tanh(a); }
  static double propagate(double, double, double da, double) { return da; }
};
struct Erf {
  static constexpr double kUnits = 12;
  static constexpr bool kTranscendental = true;
  static double value(double a, double) { return std::erf(a); }
  static double propagate(double, double, double da, double) { return 1.1283791670955126 * da; }  // 2 / sqrt(pi)
};

template <typename Rule>
concept IsTranscendental = requires {
  Rule::kTranscendental;
};
template <typename Rule>
concept HasInteger = requires(int64_t a) {
  Rule::integer(a, a);
};

template <typename Rule>
Status checkDType(const Node& node, DType type) {
  if (HasInteger<Rule> && type == DType::kI32) return Status::ok();
  Status status = requireFloat(node.op, type);
  if (status.isOk() || !HasInteger<Rule>) return status;
  return unsupported(status.message() + ", or i32");
}

template <typename Rule>
Result<ValueType> inferElementwise(const Graph& graph, const Node& node, std::span<const ValueType> operands) {
  KTUNE_TRY(checkDType<Rule>(node, operands[0].dtype));
  KTUNE_TRY(requireSameDType(graph, node, operands));
  ValueType result = operands[0];
  if (operands.size() < 2) return result;
  const Shape& a = operands[0].shape;
  const Shape& b = operands[1].shape;
  result.shape.assign(std::max(a.size(), b.size()), Dim::fixed(1));
  for (size_t d = 1; d <= result.shape.size(); ++d) {
    // Aligned at the right; a missing dim is 1.
    const Dim one = Dim::fixed(1);
    const Dim& dimA = d <= a.size() ? a[a.size() - d] : one;
    const Dim& dimB = d <= b.size() ? b[b.size() - d] : one;
    if (dimA != dimB && dimA != one && dimB != one) {
      return invalidArgument(operandText(graph, node, 1) + " of shape " + shapeText(graph, b) +
                             " does not broadcast with " + operandText(graph, node, 0) + " of shape " +
                             shapeText(graph, a) + ": dims must be equal or 1");
    }
    result.shape[result.shape.size() - d] = dimA == one ? dimB : dimA;
  }
  return result;
}

/// Walks the elements of a result and the places of one operand that belong to them.
class Broadcast {
 public:
  Broadcast(const std::vector<int64_t>& operand, const std::vector<int64_t>& result) : shape_(result) {
    strides_.assign(result.size(), 0);
    int64_t stride = 1;
    for (size_t d = 1; d <= operand.size(); ++d) {
      const int64_t extent = operand[operand.size() - d];
      if (extent > 1) strides_[result.size() - d] = stride;
      stride *= extent;
    }
  }
  [[nodiscard]] int64_t offsetOf(int64_t index) const {
    int64_t offset = 0;
    for (size_t d = shape_.size(); d-- > 0;) {
      offset += index % shape_[d] * strides_[d];
      index /= shape_[d];
    }
    return offset;
  }
  [[nodiscard]] int64_t innerStride() const { return strides_.empty() ? 0 : strides_.back(); }

 private:
  const std::vector<int64_t>& shape_;
  std::vector<int64_t> strides_;
};

template <typename Rule>
double elementBound(double a, double b, double y, double da, double db, const Precision& precision) {
  if (!std::isfinite(a) || !std::isfinite(b)) {
    // 1 / inf, max(-inf, x): what is finite errs by what its operands err at most.
    return std::isfinite(y) ? da + db : (std::isinf(da) || std::isinf(db) ? kInfinity : 0.0);
  }
  if constexpr (requires { Rule::judges(a); }) {
    if (!Rule::judges(a)) return kInfinity;
  }
  const double propagated = Rule::propagate(a, b, da, db);
  if constexpr (Rule::kUnits == 0) return std::isfinite(y) ? propagated : settle(y, propagated, 0, precision);
  return settle(y, propagated, Rule::kUnits * precision.function, precision);
}

template <typename Rule>
Status elementwiseReference(const RefContext& context, const Node&, std::span<const RefTensor* const> operands,
                            RefTensor& result) {
  const RefTensor& a = *operands[0];
  const RefTensor& b = *operands[operands.size() - 1];  // unary rules ignore it
  std::vector<int64_t> shape(std::max(a.shape.size(), b.shape.size()), 1);
  for (const RefTensor* t : {&a, &b}) {
    for (size_t d = 1; d <= t->shape.size(); ++d) {
      int64_t& extent = shape[shape.size() - d];
      extent = std::max(extent, t->shape[t->shape.size() - d]);
    }
  }
  allocate(result, shape);
  const Precision precision = precisionOf(context);
  const Broadcast inA(a.shape, result.shape), inB(b.shape, result.shape);
  const int64_t inner = result.shape.empty() ? 1 : result.shape.back();
  inPieces(context, static_cast<int64_t>(result.values.size()), 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      // One run along the last dim at a time.
      const int64_t run = std::min(end - i, inner - i % inner);
      int64_t ia = inA.offsetOf(i), ib = inB.offsetOf(i);
      for (int64_t stop = i + run; i < stop; ++i, ia += inA.innerStride(), ib += inB.innerStride()) {
        const double va = a.values[static_cast<size_t>(ia)], vb = b.values[static_cast<size_t>(ib)];
        double& y = result.values[static_cast<size_t>(i)];
        if constexpr (HasInteger<Rule>) {
          if (context.resultType == DType::kI32) {
            y = static_cast<double>(Rule::integer(static_cast<int64_t>(va), static_cast<int64_t>(vb)));
            continue;
          }
        }
        y = Rule::value(va, vb);
        result.bounds[static_cast<size_t>(i)] =
            elementBound<Rule>(va, vb, y, boundAt(a, ia), operands.size() > 1 ? boundAt(b, ib) : 0.0, precision);
      }
    }
  });
  return Status::ok();
}

double elementwiseOperations(const Node&, std::span<const ValueType>, const ValueType& result,
                             const std::vector<int64_t>& symbolValues) {
  return elementsOf(result, symbolValues);
}

template <typename Rule>
OperatorDef define(std::string_view name, int operandCount, std::string_view summary) {
  OperatorDef def;
  def.name = name;
  def.kind = OperatorKind::kElementwise;
  def.operandCount = operandCount;
  def.summary = summary;
  def.infer = inferElementwise<Rule>;
  def.reference = elementwiseReference<Rule>;
  def.scalar = Rule::value;
  def.transcendental = IsTranscendental<Rule>;
  def.operations = elementwiseOperations;
  return def;
}

}  // namespace

extern const OperatorDef kOperator_add, kOperator_sub, kOperator_mul, kOperator_div, kOperator_maximum,
    kOperator_minimum, kOperator_neg, kOperator_sqrt, kOperator_rsqrt, kOperator_abs, kOperator_exp, kOperator_log,
    kOperator_tanh, kOperator_erf;

const OperatorDef kOperator_add = define<Add>("add", 2, "y = a + b (i32 wraps)");
const OperatorDef kOperator_sub = define<Sub>("sub", 2, "y = a - b (i32 wraps)");
const OperatorDef kOperator_mul = define<Mul>("mul", 2, "y = a * b (i32 wraps)");
const OperatorDef kOperator_div = define<Div>("div", 2, "y = a / b");
const OperatorDef kOperator_maximum = define<Maximum>("maximum", 2, "y = max(a, b); NaN when either is, +0 > -0");
const OperatorDef kOperator_minimum = define<Minimum>("minimum", 2, "y = min(a, b); NaN when either is, -0 < +0");
const OperatorDef kOperator_neg = define<Neg>("neg", 1, "y = -a");
const OperatorDef kOperator_sqrt = define<Sqrt>("sqrt", 1, "y = sqrt(a)");
const OperatorDef kOperator_rsqrt = define<Rsqrt>("rsqrt", 1, "y = 1 / sqrt(a)");
const OperatorDef kOperator_abs = define<Abs>("abs", 1, "y = the magnitude of a");
const OperatorDef kOperator_exp = define<Exp>("exp", 1, "y = e^a");
const OperatorDef kOperator_log = define<Log>("log", 1, "y = ln(a); NaN below 0");
const OperatorDef kOperator_tanh = define<Tanh>("tanh", 1, "y = tanh(a)");
const OperatorDef kOperator_erf = define<Erf>("erf", 1, "y = erf(a)");

}  // namespace ktune::op
