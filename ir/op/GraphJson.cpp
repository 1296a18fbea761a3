#include "ir/op/GraphJson.h"

#include <array>
#include <charconv>

namespace ktune::op {
namespace {

// Indexed by ToleranceClass.
constexpr std::array<std::string_view, 3> kToleranceNames = {"default", "strict", "relaxed"};

// ---- Writing.

Json dimToJson(const Graph& graph, const Dim& dim) {
  if (dim.isStatic()) return dim.factor;
  const std::string& name = graph.symbols[static_cast<size_t>(dim.symbol)].name;
  return dim.factor == 1 ? name : std::to_string(dim.factor) + "*" + name;
}

Json attributeToJson(const Attribute& attribute) {
  if (const auto* integer = std::get_if<int64_t>(&attribute)) return *integer;
  if (const auto* number = std::get_if<double>(&attribute)) return *number;
  return std::get<std::string>(attribute);
}

// ---- Reading.

std::string element(const std::string& list, size_t index) {
  return list + "[" + std::to_string(index) + "]";
}

std::string joined(const std::string& path, std::string_view field) {
  return path.empty() ? std::string(field) : path + "." + std::string(field);
}

Result<int64_t> integerOf(const Json& value, const std::string& path) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))) {
    return invalidArgument(path + ": expected an integer of 64 bits");
  }
  return value.get<int64_t>();
}

Result<std::string> textOf(const Json& value, const std::string& path) {
  if (!value.is_string()) return invalidArgument(path + ": expected a string");
  return value.get<std::string>();
}

/// The integers of an optional array.
Result<std::vector<int64_t>> integersOr(JsonObject& object, std::string_view field) {
  std::vector<int64_t> values;
  if (!object.has(field)) return values;
  KTUNE_ASSIGN(const Json* array, object.array(field));
  for (size_t i = 0; i < array->size(); ++i) {
    KTUNE_ASSIGN(int64_t v, integerOf((*array)[i], element(joined(object.path(), field), i)));
    values.push_back(v);
  }
  return values;
}

/// An array whose absence is an empty one.
Result<const Json*> arrayOr(JsonObject& object, std::string_view field) {
  static const Json kEmpty = Json::array();
  if (!object.has(field)) return &kEmpty;
  return object.array(field);
}

Result<Dim> dimFromJson(const Graph& graph, const Json& value, const std::string& path) {
  if (value.is_number()) {
    KTUNE_ASSIGN(int64_t extent, integerOf(value, path));
    return Dim::fixed(extent);
  }
  if (!value.is_string()) return invalidArgument(path + R"(: expected an integer, a symbol "M" or a multiple "32*M")");
  const auto text = value.get<std::string>();
  std::string_view name = text;
  int64_t factor = 1;
  if (const size_t star = text.find('*'); star != std::string::npos) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + star, factor);
    if (error != std::errc() || end != text.data() + star) {
      return invalidArgument(path + ": '" + text + R"(' is no dim; write an integer, "M" or "32*M")");
    }
    name = name.substr(star + 1);
  }
  std::string known;
  for (size_t s = 0; s < graph.symbols.size(); ++s) {
    if (graph.symbols[s].name == name) return Dim::symbolic(static_cast<int32_t>(s), factor);
    known += (known.empty() ? "" : ", ") + graph.symbols[s].name;
  }
  return invalidArgument(path + ": unknown symbol '" + std::string(name) + "'; " +
                         (known.empty() ? "there are none" : "known: " + known));
}

Status readSymbols(JsonObject& root, Graph& graph) {
  KTUNE_ASSIGN(const Json* list, arrayOr(root, "symbols"));
  for (size_t i = 0; i < list->size(); ++i) {
    KTUNE_ASSIGN(JsonObject object, JsonObject::of((*list)[i], element(joined(root.path(), "symbols"), i)));
    Symbol symbol;
    KTUNE_ASSIGN(symbol.name, object.text("name"));
    KTUNE_ASSIGN(symbol.min, object.integerOr("min", symbol.min));
    KTUNE_ASSIGN(symbol.max, object.integer("max"));
    KTUNE_ASSIGN(symbol.edges, integersOr(object, "edges"));
    KTUNE_TRY(object.finish());
    graph.symbols.push_back(std::move(symbol));
  }
  return Status::ok();
}

Status readInputs(JsonObject& root, Graph& graph) {
  KTUNE_ASSIGN(const Json* list, arrayOr(root, "inputs"));
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = element(joined(root.path(), "inputs"), i);
    KTUNE_ASSIGN(JsonObject object, JsonObject::of((*list)[i], path));
    Input input;
    KTUNE_ASSIGN(input.name, object.text("name"));
    KTUNE_ASSIGN(std::string dtype, object.text("dtype"));
    Result<DType> type = parseDType(dtype);
    if (!type) return type.error().withPrefix(path + ".dtype");
    input.type.dtype = *type;
    KTUNE_ASSIGN(const Json* shape, object.array("shape"));
    for (size_t d = 0; d < shape->size(); ++d) {
      KTUNE_ASSIGN(Dim dim, dimFromJson(graph, (*shape)[d], element(path + ".shape", d)));
      input.type.shape.push_back(dim);
    }
    KTUNE_ASSIGN(input.strides, integersOr(object, "strides"));
    KTUNE_ASSIGN(input.alignmentBytes, object.integerOr("alignment", input.alignmentBytes));
    KTUNE_ASSIGN(input.constant, object.booleanOr("constant", input.constant));
    KTUNE_TRY(object.finish());
    graph.inputs.push_back(std::move(input));
  }
  return Status::ok();
}

/// The id of the value called NAME among those that exist so far.
Result<int32_t> valueByName(const Graph& graph, std::string_view name, const std::string& path) {
  std::string known;
  for (size_t v = 0; v < graph.valueCount(); ++v) {
    const auto id = static_cast<int32_t>(v);
    if (graph.valueName(id) == name) return id;
    known += (known.empty() ? "" : ", ") + graph.valueName(id);
  }
  return invalidArgument(path + ": unknown value '" + std::string(name) +
                         "'; it must be an input or the result of an earlier node: " + known);
}

Status readNodes(JsonObject& root, Graph& graph) {
  KTUNE_ASSIGN(const Json* list, root.array("nodes"));
  // Refused here too: looking names up takes a time quadratic in their number.
  if (list->size() > kMaxNodes) {
    return invalidArgument(joined(root.path(), "nodes") + ": at most " + std::to_string(kMaxNodes) + " are allowed");
  }
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = element(joined(root.path(), "nodes"), i);
    KTUNE_ASSIGN(JsonObject object, JsonObject::of((*list)[i], path));
    Node node;
    KTUNE_ASSIGN(node.op, object.text("op"));
    KTUNE_ASSIGN(const Json* operands, arrayOr(object, "inputs"));
    for (size_t k = 0; k < operands->size(); ++k) {
      const std::string where = element(path + ".inputs", k);
      KTUNE_ASSIGN(std::string name, textOf((*operands)[k], where));
      KTUNE_ASSIGN(int32_t id, valueByName(graph, name, where));
      node.operands.push_back(id);
    }
    KTUNE_ASSIGN(node.result, object.text("result"));
    // Names stand for values here, so that two of a name would be mistaken for each other before verify() sees them.
    for (size_t v = 0; v < graph.valueCount(); ++v) {
      if (graph.valueName(static_cast<int32_t>(v)) != node.result) continue;
      return invalidArgument(path + ".result: name '" + node.result + "' is used twice; give each one its own");
    }
    if (object.has("attributes")) {
      KTUNE_ASSIGN(const Json* attributes, object.any("attributes"));
      if (!attributes->is_object()) return invalidArgument(path + ".attributes: expected an object");
      for (const auto& [name, value] : attributes->items()) {
        const std::string where = path + ".attributes." + name;
        if (value.is_string()) {
          node.attributes.emplace(name, value.template get<std::string>());
        } else if (value.is_number_float()) {
          node.attributes.emplace(name, value.template get<double>());
        } else if (value.is_number()) {
          KTUNE_ASSIGN(int64_t integer, integerOf(value, where));
          node.attributes.emplace(name, integer);
        } else {
          return invalidArgument(where + ": expected a number or a string");
        }
      }
    }
    KTUNE_TRY(object.finish());
    graph.nodes.push_back(std::move(node));
  }
  return Status::ok();
}

Status readOutputs(JsonObject& root, Graph& graph) {
  KTUNE_ASSIGN(const Json* list, root.array("outputs"));
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = element(joined(root.path(), "outputs"), i);
    KTUNE_ASSIGN(JsonObject object, JsonObject::of((*list)[i], path));
    Output out;
    KTUNE_ASSIGN(std::string name, object.text("value"));
    KTUNE_ASSIGN(out.value, valueByName(graph, name, path + ".value"));
    if (object.has("alias")) {
      KTUNE_ASSIGN(std::string alias, object.text("alias"));
      KTUNE_ASSIGN(out.aliasInput, valueByName(graph, alias, path + ".alias"));
      if (!graph.isInput(out.aliasInput)) return invalidArgument(path + ".alias: '" + alias + "' is not an input");
    }
    KTUNE_ASSIGN(out.alignmentBytes, object.integerOr("alignment", out.alignmentBytes));
    KTUNE_TRY(object.finish());
    graph.outputs.push_back(out);
  }
  return Status::ok();
}

Status readNumerics(JsonObject& root, NumericContract& numerics) {
  if (!root.has("numerics")) return Status::ok();
  KTUNE_ASSIGN(const Json* value, root.any("numerics"));
  const std::string path = joined(root.path(), "numerics");
  KTUNE_ASSIGN(JsonObject object, JsonObject::of(*value, path));
  KTUNE_ASSIGN(std::string accumulate, object.textOr("accumulate", std::string(dtypeName(numerics.accumulate))));
  Result<DType> type = parseDType(accumulate);
  if (!type) return type.error().withPrefix(path + ".accumulate");
  numerics.accumulate = *type;
  KTUNE_ASSIGN(std::string tolerance, object.textOr("tolerance", std::string(kToleranceNames[0])));
  size_t index = 0;
  while (index < kToleranceNames.size() && kToleranceNames[index] != tolerance) ++index;
  if (index == kToleranceNames.size()) {
    return invalidArgument(path + ".tolerance: unknown class '" + tolerance + "'; known: default, strict, relaxed");
  }
  numerics.tolerance = static_cast<ToleranceClass>(index);
  KTUNE_ASSIGN(numerics.deterministic, object.booleanOr("deterministic", numerics.deterministic));
  KTUNE_ASSIGN(numerics.batchInvariant, object.booleanOr("batch_invariant", numerics.batchInvariant));
  return object.finish();
}

}  // namespace

Json toJson(const Graph& graph) {
  Json root = Json::object();
  root["symbols"] = Json::array();
  for (const auto& [name, min, max, edges] : graph.symbols) {
    root["symbols"].push_back({{"name", name}, {"min", min}, {"max", max}, {"edges", edges}});
  }
  root["inputs"] = Json::array();
  for (const auto& [name, type, strides, alignmentBytes, constant] : graph.inputs) {
    Json input = {{"name", name}, {"dtype", std::string(dtypeName(type.dtype))}, {"shape", Json::array()}};
    for (const Dim& dim : type.shape) input["shape"].push_back(dimToJson(graph, dim));
    if (!strides.empty()) input["strides"] = strides;
    input["alignment"] = alignmentBytes;
    input["constant"] = constant;
    root["inputs"].push_back(std::move(input));
  }
  root["nodes"] = Json::array();
  for (const auto& [op, operands, attributes, result] : graph.nodes) {
    Json node = {{"op", op}, {"inputs", Json::array()}, {"result", result}, {"attributes", Json::object()}};
    for (int32_t id : operands) node["inputs"].push_back(graph.valueName(id));
    for (const auto& [name, value] : attributes) node["attributes"][name] = attributeToJson(value);
    root["nodes"].push_back(std::move(node));
  }
  root["outputs"] = Json::array();
  for (const auto& [value, aliasInput, alignmentBytes] : graph.outputs) {
    Json out = {{"value", graph.valueName(value)}};
    if (aliasInput >= 0) out["alias"] = graph.valueName(aliasInput);
    out["alignment"] = alignmentBytes;
    root["outputs"].push_back(std::move(out));
  }
  const auto& [accumulate, tolerance, deterministic, batchInvariant] = graph.numerics;
  root["numerics"] = {{"accumulate", std::string(dtypeName(accumulate))},
                      {"tolerance", std::string(kToleranceNames[static_cast<size_t>(tolerance)])},
                      {"deterministic", deterministic},
                      {"batch_invariant", batchInvariant}};
  return root;
}

Result<Graph> fromJson(const Json& json, const std::string& where) {
  KTUNE_ASSIGN(JsonObject root, JsonObject::of(json, where));
  Graph graph;
  KTUNE_TRY(readSymbols(root, graph));
  KTUNE_TRY(readInputs(root, graph));
  KTUNE_TRY(readNodes(root, graph));
  KTUNE_TRY(readOutputs(root, graph));
  KTUNE_TRY(readNumerics(root, graph.numerics));
  KTUNE_TRY(root.finish());
  graph = normalised(std::move(graph));
  const Status verified = verify(graph);
  if (!verified.isOk()) return where.empty() ? verified : verified.withPrefix(where);
  return graph;
}

}  // namespace ktune::op
