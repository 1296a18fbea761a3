// What to tune: operators read from a model's configuration, a manifest or options.
#pragma once

#include <string>
#include <vector>

#include "base/Json.h"
#include "ir/op/Graph.h"
#include "search/Tuner.h"

namespace ktune::tools {

/// One operator and how often a step of the model runs it.
struct WorkItem {
  op::Graph graph;
  std::string name;  ///< For people: "qkv_proj"; may be empty.
  double count = 1;
};

/// An operator of the model that ktune does not tune yet.
struct OutOfScope {
  std::string op;
  std::string why;
};

struct Workload {
  std::string source;  ///< "model qwen3 (examples/models/qwen3-8b.json)"
  std::vector<WorkItem> items;
  std::vector<OutOfScope> outOfScope;
  std::vector<std::string> notes;  ///< What the user should know, one sentence each.
};

/// The operators of a Hugging Face config.json of a Llama, Qwen2 or Qwen3 model, tokens cut at EDGES.
/// Errors: as readFile; kInvalidArgument naming the field; kUnsupported naming every feature of the model that is
/// not supported (another architecture, mixture of experts, latent attention).
/// KIND: of the device that it is for. The operators have the type that the model is stored in where such devices
/// compile it, else f32, and a note says so.
[[nodiscard]] Result<Workload> workloadFromModel(const std::string& path, const std::vector<int64_t>& edges,
                                                 schedule::DeviceKind kind);

/// The operators of a manifest (docs/manifest.md). EDGES apply to short forms without "tokens".
/// Errors: as readFile; kInvalidArgument naming the file and field.
[[nodiscard]] Result<Workload> workloadFromManifest(const std::string& path, const std::vector<int64_t>& edges);

/// One operator in the description's JSON form or in the short form ({"op": "linear", "n": ..., "k": ...}).
/// Errors: kInvalidArgument, prefixed by WHERE.
[[nodiscard]] Result<WorkItem> itemFromJson(const Json& json, const std::string& where,
                                            const std::vector<int64_t>& edges);

/// One (operator, bucket) in the order of tuning.
struct PlannedUnit {
  search::Unit unit;
  op::Key key;
  op::Bucket bucket;
  std::string label;               ///< "linear_f32_Mx6144x4096"
  std::vector<std::string> names;  ///< Of all operators that share this key.
  double count = 1;                ///< Their counts together.
  double share = 0;                ///< Estimated share of all buckets' steps together.
};

/// Units of WORKLOAD without repeats, biggest estimated share first; weights sum to one.
[[nodiscard]] std::vector<PlannedUnit> planUnits(const Workload& workload, const std::string& hardware);

}  // namespace ktune::tools
