// Activations of one operand, and the gated ones of two: y = activation(gate) * up. Each is a rule: its value in fp64,
// how steep it is, what an honest implementation errs, and what it is made of.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "ir/op/Operator.h"
#include "ir/op/ReferenceKernels.h"

namespace ktune::op {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The numbers of a node that a rule needs, in the order of its attributes.
struct Numbers {
  double first = 0, second = 0;
};

/// Appends nodes on values of one dtype.
class Expression {
 public:
  Expression(ExpandBuilder& builder, DType dtype) : builder_(builder), dtype_(dtype) {}
  /// What failed first, if anything did: later steps then do nothing.
  [[nodiscard]] Result<int32_t> take(int32_t value) const {
    if (!failure_.isOk()) return failure_;
    return value;
  }
  int32_t number(double value) { return keep(builder_.constant(dtype_, value)); }
  int32_t call(std::string_view op, int32_t a) { return failure_.isOk() ? keep(builder_.add(op, {a})) : a; }
  int32_t call(std::string_view op, int32_t a, int32_t b) {
    return failure_.isOk() ? keep(builder_.add(op, {a, b})) : a;
  }
  int32_t call(std::string_view op, int32_t a, double b) { return call(op, a, number(b)); }

 private:
  int32_t keep(const Result<int32_t>& value) {
    if (value) return *value;
    if (failure_.isOk()) failure_ = value.error();
    return 0;
  }
  ExpandBuilder& builder_;
  DType dtype_;
  Status failure_;
};

// steepness(): no |f(a) - f(b)| is larger than this times |a - b|.
// noise(x, y): the error of an honest implementation in units of roundoff, absolute. An exp() of the argument errs by a
// few units of itself and, where its argument was rounded, by |argument| units more.
// kExact: made of comparisons only.

struct Relu {
  static constexpr const char* kFormula = "y = max(x, 0)";
  static constexpr bool kExact = true;
  static double steepness(const Numbers&) { return 1; }
  static double value(double x, const Numbers&) { return std::isnan(x) ? x : std::max(x, 0.0); }
  static double noise(double, double, const Numbers&) { return 0; }
  static int32_t build(Expression& e, int32_t x, const Numbers&) { return e.call("maximum", x, 0.0); }
};
struct LeakyRelu {
  static constexpr const char* kFormula = "y = max(x, 0) + slope * min(x, 0)";
  static double steepness(const Numbers& n) { return std::max(1.0, std::fabs(n.first)); }
  static double value(double x, const Numbers& n) { return x > 0 ? x : n.first * x; }
  static double noise(double, double y, const Numbers&) { return 3 * std::fabs(y); }
  static int32_t build(Expression& e, int32_t x, const Numbers& n) {
    return e.call("add", e.call("maximum", x, 0.0), e.call("mul", e.call("minimum", x, 0.0), n.first));
  }
};
struct Clamp {
  static constexpr const char* kFormula = "y = min(max(x, low), high)";
  static constexpr bool kExact = true;  // Up to the rounding of the limits.
  static double steepness(const Numbers&) { return 1; }
  static double value(double x, const Numbers& n) {
    return std::isnan(x) ? x : std::min(std::max(x, n.first), n.second);
  }
  static double noise(double, double, const Numbers&) { return 0; }
  static int32_t build(Expression& e, int32_t x, const Numbers& n) {
    return e.call("minimum", e.call("maximum", x, n.first), n.second);
  }
};
struct Sigmoid {
  static constexpr const char* kFormula = "y = 1 / (1 + e^-x)";
  static double steepness(const Numbers&) { return 0.25; }
  static double value(double x, const Numbers&) { return 1 / (1 + std::exp(-x)); }
  static double noise(double, double y, const Numbers&) { return 14 * y; }
  static int32_t build(Expression& e, int32_t x, const Numbers&) {
    const int32_t one = e.number(1);
    return e.call("div", one, e.call("add", e.call("exp", e.call("neg", x)), one));
  }
};
struct Silu {
  static constexpr const char* kFormula = "y = x / (1 + e^-x)";
  static double steepness(const Numbers&) { return 1.1; }  // 1.0998 at 2.4
  static double value(double x, const Numbers&) { return x / (1 + std::exp(-x)); }
  static double noise(double, double y, const Numbers&) { return 14 * std::fabs(y); }
  static int32_t build(Expression& e, int32_t x, const Numbers&) {
    return e.call("div", x, e.call("add", e.call("exp", e.call("neg", x)), 1.0));
  }
};
struct Gelu {
  static constexpr const char* kFormula = "y = x * (1 + erf(x / sqrt(2))) / 2";
  static double steepness(const Numbers&) { return 1.13; }  // 1.1289 at sqrt(2)
  static double value(double x, const Numbers&) { return 0.5 * x * std::erfc(-x / std::numbers::sqrt2); }
  // 1 + erf cancels for negative x: what errs is a number near 1.
  static double noise(double x, double, const Numbers&) { return 12 * std::fabs(x); }
  static int32_t build(Expression& e, int32_t x, const Numbers&) {
    const int32_t erf = e.call("erf", e.call("mul", x, 1 / std::numbers::sqrt2));
    return e.call("mul", e.call("mul", x, 0.5), e.call("add", erf, 1.0));
  }
};
struct GeluTanh {
  static constexpr const char* kFormula = "y = x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2";
  static constexpr double kScale = 0.7978845608028654, kCube = 0.044715;
  static double steepness(const Numbers&) { return 1.13; }
  static double value(double x, const Numbers&) { return 0.5 * x * (1 + std::tanh(kScale * (x + kCube * x * x * x))); }
  static double noise(double x, double, const Numbers&) { return 16 * std::fabs(x); }
  static int32_t build(Expression& e, int32_t x, const Numbers&) {
    const int32_t cube = e.call("mul", e.call("mul", e.call("mul", x, x), x), kCube);
    const int32_t tanh = e.call("tanh", e.call("mul", e.call("add", x, cube), kScale));
    return e.call("mul", e.call("mul", x, 0.5), e.call("add", tanh, 1.0));
  }
};
struct Elu {
  static constexpr const char* kFormula = "y = max(x, 0) + alpha * (e^min(x, 0) - 1)";
  static double steepness(const Numbers& n) { return std::max(1.0, std::fabs(n.first)); }
  static double value(double x, const Numbers& n) { return x > 0 ? x : n.first * std::expm1(x); }
  // e^x - 1 cancels near 0: what errs is a number near 1. It is added above 0, too.
  static double noise(double, double y, const Numbers& n) { return 12 * std::fabs(n.first) + 2 * std::fabs(y); }
  static int32_t build(Expression& e, int32_t x, const Numbers& n) {
    const int32_t below = e.call("sub", e.call("exp", e.call("minimum", x, 0.0)), 1.0);
    return e.call("add", e.call("maximum", x, 0.0), e.call("mul", below, n.first));
  }
};
struct Selu {  // Klambauer et al., 2017
  static constexpr const char* kFormula =
      "y = 1.0507009873554805 * (max(x, 0) + 1.6732632423543772 * (e^min(x, 0) - 1))";
  static constexpr double kScale = 1.0507009873554805, kAlpha = 1.6732632423543772;
  static double steepness(const Numbers&) { return kScale * kAlpha; }
  static double value(double x, const Numbers&) { return kScale * (x > 0 ? x : kAlpha * std::expm1(x)); }
  static double noise(double, double y, const Numbers&) { return 12 * kScale * kAlpha + 4 * std::fabs(y); }
  static int32_t build(Expression& e, int32_t x, const Numbers&) {
    return e.call("mul", Elu::build(e, x, {kAlpha, 0}), kScale);
  }
};
struct HardSigmoid {
  static constexpr const char* kFormula = "y = min(max(x / 6 + 1/2, 0), 1)";
  static double steepness(const Numbers&) { return 1.0 / 6; }
  static double value(double x, const Numbers&) { return std::isnan(x) ? x : std::clamp(x / 6 + 0.5, 0.0, 1.0); }
  static double noise(double x, double y, const Numbers&) { return std::min(std::fabs(x), 4.0) / 3 + y; }
  static int32_t build(Expression& e, int32_t x, const Numbers&) {
    return Clamp::build(e, e.call("add", e.call("mul", x, 1.0 / 6), 0.5), {0, 1});
  }
};
struct Softplus {
  static constexpr const char* kFormula = "y = ln(1 + e^x), as max(x, 0) + ln(1 + e^-abs(x))";
  static double steepness(const Numbers&) { return 1; }
  static double value(double x, const Numbers&) {
    return std::isnan(x) ? x : std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
  }
  // 1 + e^-|x| is rounded at the size of 1.
  static double noise(double, double y, const Numbers&) { return 14 + 2 * y; }
  static int32_t build(Expression& e, int32_t x, const Numbers&) {
    const int32_t small = e.call("exp", e.call("neg", e.call("abs", x)));
    return e.call("add", e.call("maximum", x, 0.0), e.call("log", e.call("add", small, 1.0)));
  }
};
struct Softsign {
  static constexpr const char* kFormula = "y = x / (1 + abs(x))";
  static double steepness(const Numbers&) { return 1; }
  static double value(double x, const Numbers&) { return x / (1 + std::fabs(x)); }
  static double noise(double, double y, const Numbers&) { return 4 * std::fabs(y); }
  static int32_t build(Expression& e, int32_t x, const Numbers&) {
    return e.call("div", x, e.call("add", e.call("abs", x), 1.0));
  }
};

template <typename Rule>
concept IsExact = requires {
  Rule::kExact;
};

Numbers numbersOf(const OperatorDef& def, const Node& node) {
  Numbers numbers;
  if (!def.attributes.empty()) numbers.first = numberAttribute(node, def.attributes[0].name);
  if (def.attributes.size() > 1) numbers.second = numberAttribute(node, def.attributes[1].name);
  return numbers;
}

Result<ValueType> infer(const Graph& graph, const Node& node, std::span<const ValueType> operands) {
  KTUNE_TRY(requireFloat(node.op, operands[0].dtype));
  KTUNE_TRY(requireSameDType(graph, node, operands));
  if (operands.size() > 1 && operands[1].shape != operands[0].shape)
    return invalidArgument(operandText(graph, node, 1) + " must have shape " + shapeText(graph, operands[0].shape) +
                           " as " + operandText(graph, node, 0) + ", has " + shapeText(graph, operands[1].shape));
  const OperatorDef& def = *findOperator(node.op);
  const Numbers numbers = numbersOf(def, node);
  // Two numbers are limits.
  if (def.attributes.size() == 2 && !(numbers.first <= numbers.second))
    return invalidArgument("attribute 'low' must not be above 'high'");
  return operands[0];
}

/// The activation's value and how far it may be off, before the result's rounding.
struct Element {
  double value = 0, propagated = 0, noise = 0;
};
template <typename Rule>
Element activate(double x, double dx, const Numbers& numbers, const Precision& precision) {
  Element element;
  element.value = Rule::value(x, numbers);
  if (!std::isfinite(x)) {
    element.propagated = kInfinity;  // What is left of an infinity depends on how it is computed.
  } else if (dx > 0) {
    // What moving the operand does; in between a curve may reach further by its second derivative, which is below 4.
    const double steep = Rule::steepness(numbers) * dx;
    const double moved = std::max(std::fabs(Rule::value(x + dx, numbers) - element.value),
                                  std::fabs(Rule::value(x - dx, numbers) - element.value));
    element.propagated = std::isfinite(moved) ? std::min(steep, moved + 2 * dx * dx) : steep;
  }
  if constexpr (!IsExact<Rule>) {
    element.noise = Rule::noise(x, element.value, numbers) * precision.function;
    // e^-x overflows f32 (of f64 nothing so small is left): the quotient is 0 where it should be small.
    if (x < -86 || std::fabs(element.value) < precision.smallestNormal) element.noise += std::fabs(element.value);
  }
  return element;
}

template <typename Rule>
Status reference(const RefContext& context, const Node& node, std::span<const RefTensor* const> operands,
                 RefTensor& result) {
  const RefTensor& x = *operands[0];
  allocate(result, x.shape);
  const Precision precision = precisionOf(context);
  const Numbers numbers = numbersOf(*findOperator(node.op), node);
  inPieces(context, static_cast<int64_t>(result.values.size()), 1 << 13, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      const Element element = activate<Rule>(x.values[at], boundAt(x, i), numbers, precision);
      double& y = result.values[at];
      double& bound = result.bounds[at];
      y = element.value;
      if (operands.size() > 1) {
        const double up = operands[1]->values[at];
        y *= up;
        bound = settle(
            y,
            std::fabs(up) * (element.propagated + element.noise) + std::fabs(element.value) * boundAt(*operands[1], i),
            precision.function, precision);
      } else if (IsExact<Rule> && std::isfinite(y)) {
        // Limits are rounded, values are not.
        bound = boundAt(x, i);
        for (const double limit : {numbers.first, numbers.second})
          bound = std::max(bound, std::fabs(roundTo(context.resultType, limit) - limit));
      } else {
        bound = settle(y, element.propagated + element.noise, 0, precision);
      }
    }
  });
  return Status::ok();
}

template <typename Rule>
Result<int32_t> decompose(ExpandBuilder& builder, const Node& node, std::span<const int32_t> operands,
                          std::span<const ValueType> operandTypes) {
  Expression e(builder, operandTypes[0].dtype);
  int32_t y = Rule::build(e, operands[0], numbersOf(*findOperator(node.op), node));
  if (operands.size() > 1) y = e.call("mul", y, operands[1]);
  return e.take(y);
}

/// Rough: what the expansion has.
template <typename Rule>
double operations(const Node& node, std::span<const ValueType>, const ValueType& result,
                  const std::vector<int64_t>& symbolValues) {
  constexpr double kPerElement = IsExact<Rule> ? 2 : 5;
  return (kPerElement + (findOperator(node.op)->operandCount > 1 ? 1 : 0)) * elementsOf(result, symbolValues);
}

template <typename Rule>
OperatorDef define(std::string_view name, std::vector<AttributeDef> attributes = {}) {
  OperatorDef def;
  def.name = name;
  def.kind = OperatorKind::kComposite;
  def.operandCount = 1;
  def.summary = Rule::kFormula;
  def.attributes = std::move(attributes);
  def.infer = infer;
  def.decompose = decompose<Rule>;
  def.reference = reference<Rule>;
  def.operations = operations<Rule>;
  return def;
}
template <typename Rule>
OperatorDef defineGated(std::string_view name, std::string_view formula) {
  OperatorDef def = define<Rule>(name);
  def.operandCount = 2;
  def.summary = formula;
  return def;
}

AttributeDef numberWithDefault(std::string_view name, double otherwise, std::string_view meaning) {
  return {name, AttributeDef::Type::kNumber, /*required=*/false, otherwise, meaning};
}
AttributeDef requiredNumber(std::string_view name, std::string_view meaning) {
  return {name, AttributeDef::Type::kNumber, /*required=*/true, 0.0, meaning};
}

}  // namespace

extern const OperatorDef kOperator_relu, kOperator_leaky_relu, kOperator_clamp, kOperator_hardtanh, kOperator_sigmoid,
    kOperator_silu, kOperator_gelu, kOperator_gelu_tanh, kOperator_elu, kOperator_selu, kOperator_hardsigmoid,
    kOperator_softplus, kOperator_softsign, kOperator_silu_mul, kOperator_gelu_mul, kOperator_gelu_tanh_mul;

const OperatorDef kOperator_relu = define<Relu>("relu");
const OperatorDef kOperator_leaky_relu =
    define<LeakyRelu>("leaky_relu", {numberWithDefault("slope", 0.01, "of the part below 0")});
const OperatorDef kOperator_clamp =
    define<Clamp>("clamp", {requiredNumber("low", "least result"), requiredNumber("high", "largest result")});
const OperatorDef kOperator_hardtanh = define<Clamp>(
    "hardtanh", {numberWithDefault("low", -1, "least result"), numberWithDefault("high", 1, "largest result")});
const OperatorDef kOperator_sigmoid = define<Sigmoid>("sigmoid");
const OperatorDef kOperator_silu = define<Silu>("silu");
const OperatorDef kOperator_gelu = define<Gelu>("gelu");
const OperatorDef kOperator_gelu_tanh = define<GeluTanh>("gelu_tanh");
const OperatorDef kOperator_elu = define<Elu>("elu", {numberWithDefault("alpha", 1, "factor of the part below 0")});
const OperatorDef kOperator_selu = define<Selu>("selu");
const OperatorDef kOperator_hardsigmoid = define<HardSigmoid>("hardsigmoid");
const OperatorDef kOperator_softplus = define<Softplus>("softplus");
const OperatorDef kOperator_softsign = define<Softsign>("softsign");
const OperatorDef kOperator_silu_mul = defineGated<Silu>("silu_mul", "y = gate / (1 + e^-gate) * up");
const OperatorDef kOperator_gelu_mul = defineGated<Gelu>("gelu_mul", "y = gate * (1 + erf(gate / sqrt(2))) / 2 * up");
const OperatorDef kOperator_gelu_tanh_mul =
    defineGated<GeluTanh>("gelu_tanh_mul", "y = gate * (1 + tanh(sqrt(2 / pi) * (gate + 0.044715 gate^3))) / 2 * up");

}  // namespace ktune::op
