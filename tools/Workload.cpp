#include "tools/Workload.h"

#include <algorithm>
#include <map>

#include "base/File.h"
#include "ir/op/Buckets.h"
#include "ir/op/Builder.h"
#include "ir/op/Canonical.h"
#include "ir/op/GraphJson.h"
#include "ir/op/Operator.h"

namespace ktune::tools {

namespace {

constexpr size_t kMaxInputBytes = size_t{64} << 20;
constexpr int64_t kManifestVersion = 1;
// Larger sizes are slips of the keyboard; refusing them here keeps every product below 2^63.
constexpr int64_t kMaxSize = int64_t{1} << 31;

Result<std::string> readInput(const std::string& path, const std::string& what) {
  Result<std::string> text = readFile(path, kMaxInputBytes);
  if (!text) return text.error().withPrefix("cannot read " + what);
  return text;
}

op::Symbol tokensSymbol(const std::vector<int64_t>& edges) {
  return {"M", 1, edges.back(), edges};
}

Result<int64_t> sizeField(JsonObject& object, std::string_view field) {
  KTUNE_ASSIGN(int64_t value, object.integer(field));
  if (value < 1 || value > kMaxSize)
    return invalidArgument(object.path() + "." + std::string(field) + ": must be from 1 to 2^31, is " +
                           std::to_string(value));
  return value;
}

Result<int64_t> sizeFieldOr(JsonObject& object, std::string_view field, int64_t otherwise) {
  if (!object.has(field)) return otherwise;
  return sizeField(object, field);
}

Result<std::vector<int64_t>> tokensField(JsonObject& object, const std::vector<int64_t>& edges) {
  if (!object.has("tokens")) return edges;
  KTUNE_ASSIGN(const Json* array, object.array("tokens"));
  std::vector<int64_t> tokens;
  for (const Json& edge : *array) {
    if (!edge.is_number_integer() || edge.get<int64_t>() < 1 || edge.get<int64_t>() > kMaxSize ||
        (!tokens.empty() && edge.get<int64_t>() <= tokens.back()))
      return invalidArgument(object.path() + ".tokens: must be ascending whole numbers from 1, like [1, 16]");
    tokens.push_back(edge.get<int64_t>());
  }
  if (tokens.empty()) return invalidArgument(object.path() + ".tokens: must name at least one number of tokens");
  return tokens;
}

/// y[M, n] = x[M, k] * w[n, k]^T + bias[n].
Result<op::Graph> makeLinearWithBias(const op::Symbol& tokens, int64_t n, int64_t k, op::DType dtype) {
  op::GraphBuilder b;
  const int32_t m = b.symbol(tokens.name, tokens.min, tokens.max, tokens.edges);
  const int32_t x = b.input("x", dtype, {op::Dim::symbolic(m), op::Dim::fixed(k)});
  const int32_t weight = b.input("weight", dtype, {op::Dim::fixed(n), op::Dim::fixed(k)}, /*constant=*/true);
  const int32_t bias = b.input("bias", dtype, {op::Dim::fixed(n)}, /*constant=*/true);
  const int32_t product = b.node("linear", {x, weight}, {}, "product");
  b.output(b.node("add", {product, bias}, {}, "y"));
  return b.finish();
}

/// Operators whose operands are rows of one length, or one such row.
bool hasRowForm(const op::OperatorDef& def) {
  return def.operandCount > 0 && def.kind != op::OperatorKind::kContraction && def.kind != op::OperatorKind::kConstant;
}

/// One node: every operand is [M, columns], or, where the operator wants that, the ones after the first are [columns].
Result<op::Graph> makeRowOperator(const op::OperatorDef& def, const op::Symbol& tokens, int64_t columns,
                                  op::DType dtype, const std::map<std::string, op::Attribute>& attributes) {
  Result<op::Graph> first = invalidArgument("");
  for (const bool alike : {true, false}) {
    op::GraphBuilder b;
    const int32_t m = b.symbol(tokens.name, tokens.min, tokens.max, tokens.edges);
    std::vector<int32_t> operands;
    for (int i = 0; i < def.operandCount; ++i) {
      const op::Dim row = op::Dim::fixed(columns);
      const bool whole = alike || i == 0;
      operands.push_back(b.input("x" + std::to_string(i), dtype,
                                 whole ? op::Shape{op::Dim::symbolic(m), row} : op::Shape{row}, /*constant=*/!whole));
    }
    b.output(b.node(std::string(def.name), std::move(operands), attributes, "y"));
    Result<op::Graph> graph = b.finish();
    if (graph || !alike) return graph ? std::move(graph) : std::move(first);
    first = std::move(graph);
  }
  return first;
}

/// The short forms of docs/manifest.md.
Result<WorkItem> itemFromShortForm(const Json& json, const std::string& where, const std::vector<int64_t>& edges) {
  KTUNE_ASSIGN(JsonObject object, JsonObject::of(json, where));
  KTUNE_ASSIGN(const std::string name, object.text("op"));
  WorkItem item;
  KTUNE_ASSIGN(item.name, object.textOr("name", ""));
  KTUNE_ASSIGN(item.count, object.numberOr("count", 1));
  if (!(item.count > 0)) return invalidArgument(where + ".count: must be above 0");
  KTUNE_ASSIGN(const std::string dtypeText, object.textOr("dtype", "f32"));
  Result<op::DType> dtype = op::parseDType(dtypeText);
  if (!dtype) return dtype.error().withPrefix(where + ".dtype");
  KTUNE_ASSIGN(const std::vector<int64_t> tokens, tokensField(object, edges));
  const op::Symbol symbol = tokensSymbol(tokens);

  Result<op::Graph> graph = invalidArgument("");
  if (name == "linear") {
    KTUNE_ASSIGN(const int64_t n, sizeField(object, "n"));
    KTUNE_ASSIGN(const int64_t k, sizeField(object, "k"));
    KTUNE_ASSIGN(const bool bias, object.booleanOr("bias", false));
    graph = bias ? makeLinearWithBias(symbol, n, k, *dtype) : op::makeLinear(symbol, n, k, *dtype);
  } else if (name == "rms_norm") {
    KTUNE_ASSIGN(const int64_t columns, sizeField(object, "columns"));
    KTUNE_ASSIGN(const int64_t rowsPerToken, sizeFieldOr(object, "rows_per_token", 1));
    KTUNE_ASSIGN(const double eps, object.numberOr("eps", 1e-6));
    graph = op::makeRmsNorm(symbol, rowsPerToken, columns, eps, *dtype);
  } else if (name == "add") {
    KTUNE_ASSIGN(const int64_t columns, sizeField(object, "columns"));
    graph = op::makeAdd(symbol, columns, *dtype);
  } else if (const op::OperatorDef* def = op::findOperator(name); def != nullptr && hasRowForm(*def)) {
    KTUNE_ASSIGN(const int64_t columns, sizeField(object, "columns"));
    std::map<std::string, op::Attribute> attributes;
    for (const op::AttributeDef& attribute : def->attributes) {
      if (attribute.type != op::AttributeDef::Type::kNumber || !object.has(attribute.name)) continue;
      KTUNE_ASSIGN(attributes[std::string(attribute.name)], object.numberOr(attribute.name, 0));
    }
    graph = makeRowOperator(*def, symbol, columns, *dtype, attributes);
  } else {
    return invalidArgument(where + ".op: \"" + name +
                           "\" has no short form; those with one are linear and the operators on rows of one length "
                           "(docs/manifest.md; write others as a description)");
  }
  KTUNE_TRY(object.finish());
  if (!graph) return graph.error().withPrefix(where);
  item.graph = std::move(*graph);
  return item;
}

// Fields by which configurations betray what the list of operators below does not describe.
struct UnsupportedField {
  std::string_view field;
  std::string_view what;
};
constexpr UnsupportedField kUnsupportedFields[] = {
    {"num_experts", "mixture of experts"},         {"n_routed_experts", "mixture of experts"},
    {"num_local_experts", "mixture of experts"},   {"kv_lora_rank", "multi-head latent attention"},
    {"q_lora_rank", "low-rank query projections"}, {"quantization_config", "quantised weights"},
};

// The activation of a gated layer, as configurations call it; empty when it is none of ours.
std::string gatedOperator(const std::string& activation) {
  if (activation == "silu" || activation == "swish") return "silu_mul";
  if (activation == "gelu") return "gelu_mul";
  if (activation == "gelu_new" || activation == "gelu_pytorch_tanh") return "gelu_tanh_mul";
  return {};
}

}  // namespace

Result<WorkItem> itemFromJson(const Json& json, const std::string& where, const std::vector<int64_t>& edges) {
  if (!json.is_object()) return invalidArgument(where + ": expected an object that describes an operator");
  if (json.contains("op")) return itemFromShortForm(json, where, edges);
  WorkItem item;
  KTUNE_ASSIGN(item.graph, op::fromJson(json, where));
  return item;
}

Result<Workload> workloadFromManifest(const std::string& path, const std::vector<int64_t>& edges) {
  KTUNE_ASSIGN(const std::string text, readInput(path, "the manifest"));
  KTUNE_ASSIGN(const Json json, parseJson(text, path));
  KTUNE_ASSIGN(JsonObject object, JsonObject::of(json, path));
  KTUNE_ASSIGN(const int64_t version, object.integer("version"));
  if (version != kManifestVersion)
    return invalidArgument(path + ".version: this ktune reads version 1, the file has " + std::to_string(version));
  KTUNE_ASSIGN(const Json* operators, object.array("operators"));
  KTUNE_TRY(object.finish());
  if (operators->empty()) return invalidArgument(path + ".operators: is empty; list at least one operator");
  Workload workload;
  workload.source = "manifest " + path;
  for (size_t i = 0; i < operators->size(); ++i) {
    KTUNE_ASSIGN(WorkItem item, itemFromJson((*operators)[i], path + ": operators[" + std::to_string(i) + "]", edges));
    workload.items.push_back(std::move(item));
  }
  return workload;
}

Result<Workload> workloadFromModel(const std::string& path, const std::vector<int64_t>& edges,
                                   schedule::DeviceKind kind) {
  KTUNE_ASSIGN(const std::string text, readInput(path, "the model's configuration"));
  KTUNE_ASSIGN(Json json, parseJson(text, path));
  // Configurations write null for "the default".
  if (json.is_object()) {
    for (auto field = json.begin(); field != json.end();) {
      if (field->is_null())
        field = json.erase(field);
      else
        ++field;
    }
  }
  // No finish(): a configuration has dozens of fields that say nothing about the shapes of operators.
  KTUNE_ASSIGN(JsonObject config, JsonObject::of(json, path));
  if (!config.has("model_type"))
    return invalidArgument(path + ": has no \"model_type\"; give the config.json of a Hugging Face model");
  KTUNE_ASSIGN(const std::string type, config.text("model_type"));

  std::string missing;
  const auto add = [&missing](const std::string& what) { missing += (missing.empty() ? "" : ", ") + what; };
  const bool qwen3 = type == "qwen3", qwen2 = type == "qwen2";
  if (!qwen3 && !qwen2 && type != "llama") add("model_type \"" + type + "\"");
  for (const UnsupportedField& u : kUnsupportedFields) {
    const auto found = json.find(u.field);
    if (found == json.end() || (found->is_number_integer() && found->get<int64_t>() <= 1)) continue;
    const std::string value = found->is_number() ? " = " + found->dump() : std::string();
    add(std::string(u.what) + " (" + std::string(u.field) + value + ")");
  }
  if (!missing.empty())
    return unsupported(path + ": not supported: " + missing +
                       "; supported are dense llama, qwen2 and qwen3 models (describe others in a --manifest)");

  KTUNE_ASSIGN(const int64_t hidden, sizeField(config, "hidden_size"));
  KTUNE_ASSIGN(const int64_t intermediate, sizeField(config, "intermediate_size"));
  KTUNE_ASSIGN(const int64_t layers, sizeField(config, "num_hidden_layers"));
  KTUNE_ASSIGN(const int64_t heads, sizeField(config, "num_attention_heads"));
  KTUNE_ASSIGN(const int64_t kvHeads, sizeFieldOr(config, "num_key_value_heads", heads));
  KTUNE_ASSIGN(const int64_t vocabulary, sizeField(config, "vocab_size"));
  KTUNE_ASSIGN(const double eps, config.numberOr("rms_norm_eps", 1e-6));
  if (heads % kvHeads != 0)
    return invalidArgument(path + ": num_attention_heads (" + std::to_string(heads) +
                           ") must be a multiple of num_key_value_heads (" + std::to_string(kvHeads) + ")");
  const bool hasHeadDim = config.has("head_dim");
  if (!hasHeadDim && hidden % heads != 0)
    return invalidArgument(path + ": hidden_size (" + std::to_string(hidden) +
                           ") must be a multiple of num_attention_heads (" + std::to_string(heads) +
                           ") when there is no head_dim");
  int64_t headDim = hidden / heads;
  if (hasHeadDim) {
    KTUNE_ASSIGN(headDim, sizeField(config, "head_dim"));
  }
  // Qwen2 always has biases on q, k and v and never on o; Llama and Qwen3 say it in attention_bias.
  KTUNE_ASSIGN(const bool attentionBias, config.booleanOr("attention_bias", false));
  KTUNE_ASSIGN(const bool mlpBias, config.booleanOr("mlp_bias", false));

  KTUNE_ASSIGN(const std::string activation, config.textOr("hidden_act", "silu"));

  Workload workload;
  workload.source = "model " + type + " (" + path + ")";
  const op::Symbol m = tokensSymbol(edges);
  KTUNE_ASSIGN(const std::string stored, config.textOr("torch_dtype", "float32"));
  op::DType dtype = op::DType::kF32;
  if (kind == schedule::DeviceKind::kCuda && stored == "bfloat16") dtype = op::DType::kBF16;
  if (kind == schedule::DeviceKind::kCuda && stored == "float16") dtype = op::DType::kF16;
  if (stored != "float32" && dtype == op::DType::kF32)
    workload.notes.push_back("the model is stored as " + stored + "; its operators are tuned in f32");
  const auto perLayer = static_cast<double>(layers);
  Status failed;
  const auto item = [&](std::string name, double count, Result<op::Graph> graph) {
    if (!graph && failed.isOk()) failed = graph.error().withPrefix(path + ": " + name);
    if (graph) workload.items.push_back({std::move(*graph), std::move(name), count});
  };
  const auto linear = [&](std::string name, double count, int64_t n, int64_t k, bool bias) {
    item(std::move(name), count, bias ? makeLinearWithBias(m, n, k, dtype) : op::makeLinear(m, n, k, dtype));
  };
  item("input_layernorm", perLayer, op::makeRmsNorm(m, 1, hidden, eps, dtype));
  linear("qkv_proj", perLayer, (heads + 2 * kvHeads) * headDim, hidden, attentionBias || qwen2);
  if (qwen3) {
    item("q_norm", perLayer, op::makeRmsNorm(m, heads, headDim, eps, dtype));
    item("k_norm", perLayer, op::makeRmsNorm(m, kvHeads, headDim, eps, dtype));
  }
  linear("o_proj", perLayer, hidden, heads * headDim, attentionBias && !qwen2);
  item("residual_add", 2 * perLayer, op::makeAdd(m, hidden, dtype));
  item("post_attention_layernorm", perLayer, op::makeRmsNorm(m, 1, hidden, eps, dtype));
  linear("gate_up_proj", perLayer, 2 * intermediate, hidden, mlpBias);
  item("add_rms_norm", 2 * perLayer, op::makeAddRmsNorm(m, hidden, eps, dtype));
  const std::string gated = gatedOperator(activation);
  if (!gated.empty()) item(gated, perLayer, op::makeGated(gated, m, intermediate, dtype));
  linear("down_proj", perLayer, hidden, intermediate, mlpBias);
  item("norm", 1, op::makeRmsNorm(m, 1, hidden, eps, dtype));
  linear("lm_head", 1, vocabulary, hidden, false);
  KTUNE_TRY(failed);

  workload.outOfScope = {{"embedding", "gathers are not tuned yet"},
                         {"rope", "rotary embeddings are not tuned yet"},
                         {"attention", "attention is not tuned yet"}};
  if (gated.empty())
    workload.outOfScope.push_back({"gated activation", "hidden_act \"" + activation + "\" is not known"});
  return workload;
}

std::vector<PlannedUnit> planUnits(const Workload& workload, const std::string& hardware) {
  // A machine does some ten operations in the time in which it moves a byte; exact figures would not change the order
  // much, and measured ones are not there yet.
  constexpr double kOperationsPerByte = 10;
  std::vector<PlannedUnit> units;
  std::map<std::pair<op::Key, int32_t>, size_t> known;
  double total = 0;
  for (const WorkItem& item : workload.items) {
    const op::Key key = op::keyOf(item.graph, hardware);
    const std::vector<op::Bucket> buckets = op::bucketsOf(item.graph);
    for (size_t b = 0; b < buckets.size(); ++b) {
      const auto index = static_cast<int32_t>(b);
      const auto points = op::scoringPoints(buckets[b]);
      const op::Work work = op::workOf(item.graph, points[points.size() / 2]);
      const double cost = item.count * std::max(work.bytes, work.operations / kOperationsPerByte);
      total += cost;
      const auto [at, fresh] = known.try_emplace({key, index}, units.size());
      if (fresh) {
        PlannedUnit unit;
        unit.unit.graph = item.graph;
        unit.unit.bucketIndex = index;
        unit.key = key;
        unit.bucket = buckets[b];
        unit.label = op::label(item.graph);
        unit.count = 0;
        units.push_back(std::move(unit));
      }
      PlannedUnit& unit = units[at->second];
      if (!item.name.empty()) unit.names.push_back(item.name);
      unit.count += item.count;
      unit.share += cost;
    }
  }
  for (PlannedUnit& unit : units) {
    unit.share = total > 0 ? unit.share / total : 0;
    unit.unit.weight = unit.share;
  }
  std::stable_sort(units.begin(), units.end(),
                   [](const PlannedUnit& a, const PlannedUnit& b) { return a.share > b.share; });
  return units;
}

}  // namespace ktune::tools
