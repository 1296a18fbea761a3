#include "ir/op/Graph.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "ir/op/Operator.h"

namespace ktune::op {
namespace {

bool isIdentifier(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (name.empty() || name.size() > kMaxNameBytes || !letter(name[0])) return false;
  return std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

/// TEXT fit for a message: it may come from damaged bytes.
std::string printable(std::string_view text) {
  std::string shown(text.substr(0, kMaxNameBytes));
  for (char& c : shown) c = c >= ' ' && c <= '~' ? c : '?';
  return shown;
}

Status checkName(std::string_view name, std::set<std::string, std::less<>>& taken) {
  if (!isIdentifier(name)) {
    return invalidArgument("name '" + printable(name) +
                           "' must be a letter or _ followed by letters, digits or _, at most " +
                           std::to_string(kMaxNameBytes) + " characters");
  }
  if (!taken.insert(std::string(name)).second) {
    return invalidArgument("name '" + std::string(name) + "' is used twice; give each one its own");
  }
  return Status::ok();
}

std::string at(std::string_view list, size_t index, std::string_view name) {
  return std::string(list) + "[" + std::to_string(index) + "] '" + printable(name) + "'";
}

/// a * b, or false when it exceeds kMaxElements. REQUIRES: both are at least 0.
bool multiplyElements(int64_t a, int64_t b, int64_t& product) {
  return !__builtin_mul_overflow(a, b, &product) && product <= kMaxElements;
}

std::vector<int64_t> largestSymbolValues(const Graph& graph) {
  std::vector<int64_t> values;
  for (const Symbol& s : graph.symbols) values.push_back(s.max);
  return values;
}

Status checkSymbols(const Graph& graph) {
  if (graph.symbols.size() > kMaxSymbols) {
    return invalidArgument("symbols: at most " + std::to_string(kMaxSymbols) + " are allowed, got " +
                           std::to_string(graph.symbols.size()));
  }
  std::set<std::string, std::less<>> names;
  size_t buckets = 1;
  for (size_t i = 0; i < graph.symbols.size(); ++i) {
    const Symbol& s = graph.symbols[i];
    const std::string where = at("symbols", i, s.name);
    KTUNE_TRY(checkName(s.name, names).withPrefix(where));
    if (s.min < 1) return invalidArgument(where + ": min must be at least 1, is " + std::to_string(s.min));
    if (s.max < s.min) {
      return invalidArgument(where + ": max must be at least min (" + std::to_string(s.min) + "), is " +
                             std::to_string(s.max));
    }
    if (s.max > kMaxElements) return invalidArgument(where + ": max must be at most 2^62");
    for (size_t e = 0; e < s.edges.size(); ++e) {
      if (s.edges[e] < s.min || s.edges[e] > s.max || (e > 0 && s.edges[e] <= s.edges[e - 1])) {
        return invalidArgument(where + ": edges must ascend strictly from min to max; edges[" + std::to_string(e) +
                               "] is " + std::to_string(s.edges[e]));
      }
    }
    if (!s.edges.empty() && s.edges.back() != s.max) {
      return invalidArgument(where + ": the last edge must equal max (" + std::to_string(s.max) + "), is " +
                             std::to_string(s.edges.back()));
    }
    const size_t cells = std::max<size_t>(1, s.edges.size());
    if (cells > kMaxBuckets || (buckets *= cells) > kMaxBuckets) {
      return invalidArgument(where + ": the edges make more than " + std::to_string(kMaxBuckets) +
                             " buckets; give fewer edges");
    }
  }
  return Status::ok();
}

Status checkShape(const Graph& graph, const Shape& shape) {
  if (shape.size() > kMaxRank) {
    return invalidArgument("shape has " + std::to_string(shape.size()) + " dims; at most " + std::to_string(kMaxRank) +
                           " are allowed");
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d].symbol < -1 || shape[d].symbol >= static_cast<int32_t>(graph.symbols.size())) {
      return invalidArgument("shape[" + std::to_string(d) + "]: symbol index " + std::to_string(shape[d].symbol) +
                             " is not one of the " + std::to_string(graph.symbols.size()) + " symbols");
    }
    if (shape[d].factor < 1) {
      return invalidArgument("shape[" + std::to_string(d) + "] must be at least 1, is " +
                             std::to_string(shape[d].factor));
    }
  }
  return Status::ok();
}

Status checkDType(DType type) {
  if (static_cast<int>(type) >= kDTypeCount) {
    return invalidArgument("dtype number " + std::to_string(static_cast<int>(type)) + " is unknown");
  }
  return Status::ok();
}

Status checkAlignment(int64_t bytes) {
  if (bytes < 1 || bytes > (int64_t{1} << 30) || !std::has_single_bit(static_cast<uint64_t>(bytes))) {
    return invalidArgument("alignment must be a power of two from 1 to 2^30 bytes, is " + std::to_string(bytes));
  }
  return Status::ok();
}

/// The dense row-major strides, or empty when one depends on a symbol.
std::vector<int64_t> staticDenseStrides(const Shape& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    if (d > 0 && (!shape[d].isStatic() || !multiplyElements(stride, shape[d].factor, stride))) return {};
  }
  return strides;
}

bool isDense(const Input& input) {
  return input.strides.empty() || input.strides == staticDenseStrides(input.type.shape);
}

Status checkStrides(const Graph& graph, const Input& input) {
  if (input.strides.empty()) return Status::ok();
  const Shape& shape = input.type.shape;
  if (input.strides.size() != shape.size()) {
    return invalidArgument("strides has " + std::to_string(input.strides.size()) +
                           " entries; give one for each of the " + std::to_string(shape.size()) +
                           " dims, or none for a dense tensor");
  }
  // Two elements must not share a place: from the smallest stride up, each must step over everything below it.
  const std::vector<int64_t> largest = largestSymbolValues(graph);
  std::vector<std::pair<int64_t, int64_t>> order;  // stride, extent
  for (size_t d = 0; d < shape.size(); ++d) {
    if (input.strides[d] < 1) {
      return invalidArgument("strides[" + std::to_string(d) + "] must be at least 1, is " +
                             std::to_string(input.strides[d]) + "; write a broadcast as a dim of extent 1");
    }
    order.emplace_back(input.strides[d], shape[d].extent(largest));
  }
  std::sort(order.begin(), order.end());
  int64_t span = 1;  // elements from the first to one past the last place used so far
  for (const auto& [stride, extent] : order) {
    if (extent == 1) continue;
    if (stride < span) {
      return invalidArgument("strides overlap: stride " + std::to_string(stride) + " is less than the " +
                             std::to_string(span) + " elements that lie inside it");
    }
    int64_t reach = 0;
    if (!multiplyElements(stride, extent - 1, reach) || reach > kMaxElements - span) {
      return invalidArgument("strides reach past 2^62 elements");
    }
    span += reach;
  }
  return Status::ok();
}

Status checkInputs(const Graph& graph, std::set<std::string, std::less<>>& names) {
  if (graph.inputs.size() > kMaxInputs) {
    return invalidArgument("inputs: at most " + std::to_string(kMaxInputs) + " are allowed, got " +
                           std::to_string(graph.inputs.size()));
  }
  const std::vector<int64_t> largest = largestSymbolValues(graph);
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const Input& input = graph.inputs[i];
    const std::string where = at("inputs", i, input.name);
    KTUNE_TRY(checkName(input.name, names).withPrefix(where));
    KTUNE_TRY(checkDType(input.type.dtype).withPrefix(where));
    KTUNE_TRY(checkShape(graph, input.type.shape).withPrefix(where));
    KTUNE_TRY(elementCount(input.type.shape, largest).status().withPrefix(where));
    KTUNE_TRY(checkStrides(graph, input).withPrefix(where));
    KTUNE_TRY(checkAlignment(input.alignmentBytes).withPrefix(where));
  }
  return Status::ok();
}

Status checkNumerics(const NumericContract& numerics) {
  KTUNE_TRY(checkDType(numerics.accumulate).withPrefix("numerics.accumulate"));
  switch (numerics.accumulate) {
    case DType::kF64:
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
    default:
      return invalidArgument("numerics.accumulate must be f64, f32, f16 or bf16, is " +
                             std::string(dtypeName(numerics.accumulate)));
  }
  if (static_cast<int>(numerics.tolerance) > static_cast<int>(ToleranceClass::kRelaxed)) {
    return invalidArgument("numerics.tolerance: number " + std::to_string(static_cast<int>(numerics.tolerance)) +
                           " is unknown");
  }
  return Status::ok();
}

/// Edit distance, for "did you mean".
size_t editDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

Status unknownOperator(std::string_view name) {
  name = name.substr(0, kMaxNameBytes);
  std::string_view nearest;
  size_t best = 1 + std::max<size_t>(1, name.size() / 3);
  std::string known;
  for (const OperatorDef* def : operatorTable()) {
    known += (known.empty() ? "" : ", ") + std::string(def->name);
    if (const size_t distance = editDistance(name, def->name); distance < best) {
      best = distance;
      nearest = def->name;
    }
  }
  std::string message = "unknown operator '" + printable(name) + "'";
  if (!nearest.empty()) message += "; did you mean '" + std::string(nearest) + "'?";
  return invalidArgument(message + (nearest.empty() ? "; known: " : " known: ") + known);
}

std::string_view attributeTypeName(AttributeDef::Type type) {
  switch (type) {
    case AttributeDef::Type::kInteger:
      return "an integer";
    case AttributeDef::Type::kNumber:
      return "a number";
    case AttributeDef::Type::kText:
      return "a text";
  }
  return "unknown";
}

Status checkAttributes(const OperatorDef& def, const Node& node) {
  for (const AttributeDef& a : def.attributes) {
    const auto it = node.attributes.find(std::string(a.name));
    if (it == node.attributes.end()) {
      if (!a.required) continue;
      return invalidArgument("attribute '" + std::string(a.name) + "' (" + std::string(a.meaning) + ") is missing");
    }
    if (it->second.index() != static_cast<size_t>(a.type)) {
      return invalidArgument("attribute '" + std::string(a.name) + "' must be " +
                             std::string(attributeTypeName(a.type)));
    }
    if (const double* number = std::get_if<double>(&it->second)) {
      if (!std::isfinite(*number)) {
        return invalidArgument("attribute '" + std::string(a.name) + "' must be finite");
      }
      // Equal descriptions have equal bytes; -0 == 0 would break that.
      if (*number == 0 && std::signbit(*number)) {
        return invalidArgument("attribute '" + std::string(a.name) + "' must not be -0; write 0");
      }
    }
    if (const std::string* text = std::get_if<std::string>(&it->second); text && *text != printable(*text)) {
      return invalidArgument("attribute '" + std::string(a.name) + "' must be printable ASCII, at most " +
                             std::to_string(kMaxNameBytes) + " characters");
    }
  }
  for (const auto& [name, value] : node.attributes) {
    const auto isName = [&name = name](const AttributeDef& a) { return a.name == name; };
    if (std::any_of(def.attributes.begin(), def.attributes.end(), isName)) continue;
    std::string known;
    for (const AttributeDef& a : def.attributes) known += (known.empty() ? "" : ", ") + std::string(a.name);
    return invalidArgument("unknown attribute '" + printable(name) + "'; " +
                           (known.empty() ? "it has none" : "known: " + known));
  }
  return Status::ok();
}

Result<ValueType> inferNode(const Graph& graph, const Node& node, const std::vector<ValueType>& types) {
  const OperatorDef* def = findOperator(node.op);
  if (def == nullptr) return unknownOperator(node.op);
  if (node.operands.size() != static_cast<size_t>(def->operandCount)) {
    return invalidArgument("takes " + std::to_string(def->operandCount) + " operands, got " +
                           std::to_string(node.operands.size()));
  }
  std::vector<ValueType> operands;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    const int32_t id = node.operands[i];
    if (id < 0 || static_cast<size_t>(id) >= types.size()) {
      return invalidArgument("operand " + std::to_string(i) + " is value " + std::to_string(id) +
                             ", which is not an input or the result of an earlier node");
    }
    operands.push_back(types[static_cast<size_t>(id)]);
  }
  KTUNE_TRY(checkAttributes(*def, node));
  KTUNE_ASSIGN(ValueType type, def->infer(graph, node, operands));
  KTUNE_TRY(checkShape(graph, type.shape));
  KTUNE_TRY(elementCount(type.shape, largestSymbolValues(graph)).status());
  return type;
}

std::string nodePrefix(size_t index, const Node& node) {
  return "nodes[" + std::to_string(index) + "] (" + printable(node.op) + ")";
}

Status checkOutputs(const Graph& graph, const std::vector<ValueType>& types) {
  if (graph.outputs.empty()) return invalidArgument("outputs: give at least one");
  std::set<int32_t> values, aliased;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const Output& out = graph.outputs[i];
    std::string where = "outputs[" + std::to_string(i) + "]";
    if (out.value < 0 || static_cast<size_t>(out.value) >= types.size()) {
      return invalidArgument(where + ": value " + std::to_string(out.value) + " does not exist; there are " +
                             std::to_string(types.size()));
    }
    where += " '" + graph.valueName(out.value) + "'";
    if (graph.isInput(out.value)) {
      return invalidArgument(where + ": is an input; an output must be the result of a node");
    }
    if (!values.insert(out.value).second) return invalidArgument(where + ": is an output already; list it once");
    KTUNE_TRY(checkAlignment(out.alignmentBytes).withPrefix(where));
    if (out.aliasInput == -1) continue;
    if (!graph.isInput(out.aliasInput)) {
      return invalidArgument(where + ": alias " + std::to_string(out.aliasInput) + " is not an input");
    }
    const Input& input = graph.inputs[static_cast<size_t>(out.aliasInput)];
    const ValueType& type = types[static_cast<size_t>(out.value)];
    if (input.type != type) {
      return invalidArgument(where + ": is " + std::string(dtypeName(type.dtype)) + shapeText(graph, type.shape) +
                             " and cannot alias input '" + input.name + "', which is " +
                             std::string(dtypeName(input.type.dtype)) + shapeText(graph, input.type.shape));
    }
    if (!isDense(input)) {
      return invalidArgument(where + ": cannot alias input '" + input.name + "', whose strides are not dense");
    }
    if (input.constant) {
      return invalidArgument(where + ": cannot alias input '" + input.name + "', which is constant");
    }
    if (!aliased.insert(out.aliasInput).second) {
      return invalidArgument(where + ": input '" + input.name + "' is aliased by another output already");
    }
  }
  return Status::ok();
}

}  // namespace

Result<std::vector<ValueType>> inferTypes(const Graph& graph) {
  KTUNE_TRY(checkSymbols(graph));
  std::set<std::string, std::less<>> names;
  KTUNE_TRY(checkInputs(graph, names));
  KTUNE_TRY(checkNumerics(graph.numerics));
  if (graph.nodes.size() > kMaxNodes) {
    return invalidArgument("nodes: at most " + std::to_string(kMaxNodes) + " are allowed, got " +
                           std::to_string(graph.nodes.size()) + "; split the description");
  }
  std::vector<ValueType> types;
  for (const Input& input : graph.inputs) types.push_back(input.type);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    Result<ValueType> type = inferNode(graph, node, types);
    if (!type) return type.error().withPrefix(nodePrefix(i, node));
    KTUNE_TRY(checkName(node.result, names).withPrefix(nodePrefix(i, node)));
    types.push_back(std::move(*type));
  }
  KTUNE_TRY(checkOutputs(graph, types));
  return types;
}

Status verify(const Graph& graph) {
  return inferTypes(graph).status();
}

Graph normalised(Graph graph) {
  for (Symbol& s : graph.symbols) {
    if (s.edges.empty()) s.edges.push_back(s.max);
  }
  for (Input& input : graph.inputs) {
    if (isDense(input)) input.strides.clear();
  }
  for (Node& node : graph.nodes) {
    const OperatorDef* def = findOperator(node.op);
    if (def == nullptr) continue;
    for (const AttributeDef& a : def->attributes) {
      const auto it = node.attributes.find(std::string(a.name));
      if (it == node.attributes.end()) {
        if (!a.required) node.attributes.emplace(a.name, a.otherwise);
      } else if (a.type == AttributeDef::Type::kNumber && std::holds_alternative<int64_t>(it->second)) {
        it->second = static_cast<double>(std::get<int64_t>(it->second));
      }
    }
  }
  return graph;
}

Result<int32_t> ExpandBuilder::add(std::string_view op, std::vector<int32_t> operands,
                                   std::map<std::string, Attribute> attributes) {
  // The result gets its name from expand(), which knows all names.
  Node node{std::string(op), std::move(operands), std::move(attributes), {}};
  Result<ValueType> type = inferNode(graph_, node, types_);
  if (!type) return type.error().withPrefix(op);
  graph_.nodes.push_back(std::move(node));
  types_.push_back(std::move(*type));
  return static_cast<int32_t>(types_.size() - 1);
}

Result<int32_t> ExpandBuilder::constant(DType dtype, double value) {
  return add("constant", {}, {{"value", value}, {"dtype", std::string(dtypeName(dtype))}});
}

namespace {

bool hasComposite(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
    const OperatorDef* def = findOperator(node.op);
    return def != nullptr && def->kind == OperatorKind::kComposite;
  });
}

/// Replaces every composite by its decomposition once.
Result<Graph> expandOnce(const Graph& graph) {
  KTUNE_ASSIGN(std::vector<ValueType> oldTypes, inferTypes(graph));
  std::set<std::string, std::less<>> taken;
  for (size_t v = 0; v < graph.valueCount(); ++v) taken.insert(graph.valueName(static_cast<int32_t>(v)));

  Graph expanded;
  expanded.symbols = graph.symbols;
  expanded.inputs = graph.inputs;
  expanded.numerics = graph.numerics;
  std::vector<ValueType> types(oldTypes.begin(), oldTypes.begin() + static_cast<ptrdiff_t>(graph.inputs.size()));
  std::vector<int32_t> newId;
  for (size_t i = 0; i < graph.inputs.size(); ++i) newId.push_back(static_cast<int32_t>(i));

  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const OperatorDef& def = *findOperator(node.op);
    std::vector<int32_t> operands;
    std::vector<ValueType> operandTypes;
    for (int32_t id : node.operands) {
      operands.push_back(newId[static_cast<size_t>(id)]);
      operandTypes.push_back(types[static_cast<size_t>(operands.back())]);
    }
    if (def.kind != OperatorKind::kComposite) {
      newId.push_back(expanded.resultOf(expanded.nodes.size()));
      expanded.nodes.push_back({node.op, std::move(operands), node.attributes, node.result});
      types.push_back(oldTypes[static_cast<size_t>(graph.resultOf(n))]);
      continue;
    }
    const size_t first = expanded.nodes.size();
    ExpandBuilder builder(expanded, types);
    Result<int32_t> result = def.decompose(builder, node, operands, operandTypes);
    if (!result) return result.error().withPrefix(nodePrefix(n, node));
    if (*result < expanded.resultOf(first) || static_cast<size_t>(*result) >= types.size() ||
        types[static_cast<size_t>(*result)] != oldTypes[static_cast<size_t>(graph.resultOf(n))]) {
      return internalError(nodePrefix(n, node) + ": its decomposition does not give the type it infers");
    }
    newId.push_back(*result);
    int counter = 0;
    for (size_t m = first; m < expanded.nodes.size(); ++m) {
      Node& made = expanded.nodes[m];
      if (expanded.resultOf(m) == *result) {
        made.result = node.result;
        continue;
      }
      // Fresh: shortened where the composite's own name is long, so that it stays a legal name.
      do {
        made.result = node.result.substr(0, 64) + "_" + std::string(made.op) + std::to_string(counter++);
      } while (!taken.insert(made.result).second);
    }
  }
  for (Output out : graph.outputs) {
    out.value = newId[static_cast<size_t>(out.value)];
    expanded.outputs.push_back(out);
  }
  return expanded;
}

}  // namespace

Result<Graph> expand(const Graph& graph) {
  KTUNE_TRY(verify(graph));
  Graph expanded = graph;
  // A composite may expand to composites; a decomposition that never ends is a bug of its operator.
  for (int depth = 0; hasComposite(expanded); ++depth) {
    if (depth == 16) return internalError("composites do not expand to primitives within 16 steps");
    KTUNE_ASSIGN(expanded, expandOnce(expanded));
  }
  KTUNE_TRY(verify(expanded).withPrefix("expanded description"));
  return expanded;
}

namespace {

std::string dimText(const Graph& graph, const Dim& dim, std::string_view times) {
  if (dim.isStatic()) return std::to_string(dim.factor);
  const auto index = static_cast<size_t>(dim.symbol);
  const std::string name = index < graph.symbols.size() ? graph.symbols[index].name : "?" + std::to_string(dim.symbol);
  return dim.factor == 1 ? name : std::to_string(dim.factor) + std::string(times) + name;
}

}  // namespace

std::string label(const Graph& graph) {
  const Result<std::vector<ValueType>> types = inferTypes(graph);
  if (!types) return "invalid";
  // Names of profiles and symbols should stay readable: long chains are cut.
  constexpr size_t kShown = 6;
  std::string text;
  for (size_t i = 0; i < graph.nodes.size() && i < kShown; ++i) text += graph.nodes[i].op + "_";
  if (graph.nodes.size() > kShown) text += "and" + std::to_string(graph.nodes.size() - kShown) + "_";

  const ValueType& out = (*types)[static_cast<size_t>(graph.outputs[0].value)];
  text += std::string(dtypeName(out.dtype)) + "_";
  std::string shape;
  for (const Dim& dim : out.shape) shape += (shape.empty() ? "" : "x") + dimText(graph, dim, "");
  text += shape.empty() ? "scalar" : shape;

  const Result<Graph> expanded = expand(graph);
  const Result<std::vector<ValueType>> expandedTypes = expanded ? inferTypes(*expanded) : expanded.error();
  if (!expandedTypes) return text;
  for (const Node& node : expanded->nodes) {
    const OperatorDef* def = findOperator(node.op);
    if (def->kind != OperatorKind::kContraction) continue;
    const Shape& x = (*expandedTypes)[static_cast<size_t>(node.operands[0])].shape;
    text += "x" + dimText(graph, x.back(), "");
    break;
  }
  return text;
}

std::string shapeText(const Graph& graph, const Shape& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) text += (d == 0 ? "" : ", ") + dimText(graph, shape[d], "*");
  return text + "]";
}

Result<int64_t> elementCount(const Shape& shape, const std::vector<int64_t>& symbolValues) {
  int64_t count = 1;
  for (const Dim& dim : shape) {
    if (!dim.isStatic() && static_cast<size_t>(dim.symbol) >= symbolValues.size()) {
      return invalidArgument("symbol " + std::to_string(dim.symbol) + " has no value; " +
                             std::to_string(symbolValues.size()) + " were given");
    }
    int64_t extent = dim.factor;
    if (!dim.isStatic() && !multiplyElements(extent, symbolValues[static_cast<size_t>(dim.symbol)], extent)) {
      return invalidArgument("shape has more than 2^62 elements; lower the symbol's max or the dims");
    }
    if (!multiplyElements(count, extent, count)) {
      return invalidArgument("shape has more than 2^62 elements; lower the symbol's max or the dims");
    }
  }
  return count;
}

std::vector<int64_t> stridesOf(const Input& input, const std::vector<int64_t>& symbolValues) {
  if (!input.strides.empty()) return input.strides;
  const Shape& shape = input.type.shape;
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= shape[d].extent(symbolValues);
  }
  return strides;
}

Work workOf(const Graph& graph, const std::vector<int64_t>& symbolValues) {
  Work work;
  const Result<std::vector<ValueType>> types = inferTypes(graph);
  if (!types || symbolValues.size() != graph.symbols.size()) return work;
  const auto bytesOf = [&](const ValueType& type) {
    double bytes = dtypeBytes(type.dtype);
    for (const Dim& dim : type.shape) bytes *= static_cast<double>(dim.extent(symbolValues));
    return bytes;
  };
  for (const Input& input : graph.inputs) work.bytes += bytesOf(input.type);
  for (const Output& out : graph.outputs) work.bytes += bytesOf((*types)[static_cast<size_t>(out.value)]);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    std::vector<ValueType> operands;
    for (int32_t id : node.operands) operands.push_back((*types)[static_cast<size_t>(id)]);
    work.operations += findOperator(node.op)->operations(
        node, operands, (*types)[static_cast<size_t>(graph.resultOf(n))], symbolValues);
  }
  return work;
}

}  // namespace ktune::op
