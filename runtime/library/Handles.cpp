#include "runtime/library/Handles.h"

#include <algorithm>
#include <utility>

#include "ir/op/Canonical.h"

namespace ktune::library {
namespace {

/// Gives the device back at the end of a run, also when the run throws.
class RunTicket {
 public:
  explicit RunTicket(std::atomic<bool>& running)
      : running_(running), taken_(!running.exchange(true, std::memory_order_acquire)) {}
  ~RunTicket() {
    if (taken_) running_.store(false, std::memory_order_release);
  }
  RunTicket(const RunTicket&) = delete;
  RunTicket& operator=(const RunTicket&) = delete;
  [[nodiscard]] bool taken() const { return taken_; }

 private:
  std::atomic<bool>& running_;
  bool taken_;
};

std::string countText(const char* what, size_t wanted, size_t given) {
  return std::string("expected ") + std::to_string(wanted) + " " + what + ", got " + std::to_string(given);
}

}  // namespace

const std::vector<runtime::DeviceInfo>& ContextState::devices() {
  std::call_once(devicesOnce_, [this] { devices_ = runtime::listDevices(); });
  return devices_;
}

uint64_t TensorLayout::spanBytes(const std::vector<int64_t>& symbolValues) const {
  uint64_t elements = 1;
  for (size_t d = 0; d < shape.size(); ++d) {
    const auto extent = static_cast<uint64_t>(shape[d].extent(symbolValues));
    elements = strides.empty() ? elements * extent : elements + (extent - 1) * static_cast<uint64_t>(strides[d]);
  }
  return elements * static_cast<uint64_t>(op::dtypeBytes(dtype));
}

Result<OperatorState> OperatorState::create(std::shared_ptr<ContextState> context, op::Graph graph) {
  KTUNE_TRY(op::verify(graph));
  KTUNE_ASSIGN(const std::vector<op::ValueType> types, op::inferTypes(graph));
  OperatorState state;
  for (const op::Input& input : graph.inputs) {
    state.names.push_back(input.name);
    state.tensors.push_back({input.type.dtype, input.type.shape, input.strides, -1, false});
    state.alignmentBytes.push_back(input.alignmentBytes);
  }
  for (const op::Output& output : graph.outputs) {
    const op::ValueType& type = types[static_cast<size_t>(output.value)];
    state.names.push_back(graph.valueName(output.value));
    // An output in an input's memory lies there as the input does.
    std::vector<int64_t> strides;
    if (output.aliasInput >= 0) strides = graph.inputs[static_cast<size_t>(output.aliasInput)].strides;
    state.tensors.push_back({type.dtype, type.shape, std::move(strides), output.aliasInput, true});
    state.alignmentBytes.push_back(output.alignmentBytes);
  }
  state.label = op::label(graph);
  state.buckets = op::bucketsOf(graph);
  state.graph = std::move(graph);
  state.context = std::move(context);
  return state;
}

Status OperatorState::checkSymbols(const int64_t* values, size_t count) const {
  if (count != graph.symbols.size()) {
    return invalidArgument(label + ": " + countText("symbol values", graph.symbols.size(), count));
  }
  if (count > 0 && values == nullptr) return invalidArgument("symbol_values is NULL");
  for (size_t i = 0; i < count; ++i) {
    const op::Symbol& symbol = graph.symbols[i];
    if (values[i] < symbol.min || values[i] > symbol.max) {
      return invalidArgument(label + ": " + symbol.name + " = " + std::to_string(values[i]) + " is outside " +
                             std::to_string(symbol.min) + ".." + std::to_string(symbol.max));
    }
  }
  return Status::ok();
}

Result<std::unique_ptr<PlanState>> PlanState::create(std::shared_ptr<ContextState> context, std::string_view bytes) {
  auto state = std::make_unique<PlanState>();
  KTUNE_ASSIGN(state->record, cache::Record::fromBytes(bytes));
  const cache::Record& record = state->record;
  Result<op::Graph> graph = op::fromCanonicalBytes(record.canonical);
  if (!graph) return corrupt("the record's description: " + graph.error().message());
  KTUNE_ASSIGN(state->op, OperatorState::create(std::move(context), std::move(*graph)));
  state->key = record.key.hex();
  if (const op::Key key = op::keyOf(state->op.graph, record.hardware); key != record.key) {
    return corrupt("the record's key is " + state->key + ", its description and hardware give " + key.hex());
  }
  const std::vector<op::Bucket>& buckets = state->op.buckets;
  if (record.bucketIndex < 0 || static_cast<size_t>(record.bucketIndex) >= buckets.size() ||
      buckets[static_cast<size_t>(record.bucketIndex)] != record.bucket) {
    return corrupt("the record's bucket " + std::to_string(record.bucketIndex) + " is not one of its description's");
  }
  state->digest = record.plan.digest().hex();
  state->symbolValues.reserve(state->op.graph.symbols.size());
  if (record.decision == cache::Decision::kUseFallback) return state;

  const cache::Plan& plan = record.plan;
  if (plan.launches.empty()) return corrupt("the record's plan launches nothing");
  if (static_cast<size_t>(plan.tensorCount) != state->op.tensors.size() ||
      static_cast<size_t>(plan.symbolCount) != state->op.graph.symbols.size()) {
    return corrupt("the record's plan takes " + std::to_string(plan.tensorCount) + " tensors and " +
                   std::to_string(plan.symbolCount) + " symbols, its description has " +
                   std::to_string(state->op.tensors.size()) + " and " + std::to_string(state->op.graph.symbols.size()));
  }
  KTUNE_TRY(plan.validate());
  for (const cache::Artefact& artefact : plan.artefacts) {
    if (digestOf(artefact.bytes) != artefact.digest) {
      return corrupt("a kernel of the record does not have its digest " + artefact.digest.hex());
    }
  }
  // What runs must be what was proven and timed.
  if (plan.digest() != record.evidence.planDigest) {
    return corrupt("the record's plan (" + state->digest + ") is not the one that was timed (" +
                   record.evidence.planDigest.hex() + ")");
  }
  return state;
}

Status PlanState::prepare(std::shared_ptr<DeviceState> onDevice, const OperatorState* expected) {
  if (expected != nullptr && op::canonicalBytes(expected->graph) != record.canonical) {
    return invalidArgument("the plan was made for " + op.label + " (key " + key + "), not for " + expected->label +
                           " (key " + op::keyOf(expected->graph, record.hardware).hex() + " on the same hardware)");
  }
  if (record.decision == cache::Decision::kUseFallback) {
    return notFound("the record of " + op.label + " (key " + key +
                    ") says use-fallback: there is no kernel to run, use your own");
  }
  const schedule::Target& target = onDevice->device->target();
  if (record.hardware != target.hardware) {
    return unsupported("the plan of " + op.label + " was tuned for \"" + record.hardware + "\", this device is \"" +
                       target.hardware + "\"");
  }
  KTUNE_ASSIGN(std::unique_ptr<runtime::LoadedPlan> next, onDevice->device->load(record.plan));
  // The most that any size of the bucket needs: no slot shrinks when a symbol grows.
  workspaceBytes = next->workspaceBytes(record.bucket.high);
  loaded = std::move(next);
  device = std::move(onDevice);
  return Status::ok();
}

Status PlanState::takeSymbols(const int64_t* values, size_t count) {
  KTUNE_TRY(op.checkSymbols(values, count));
  symbolValues.assign(values, values + count);
  if (!record.bucket.contains(symbolValues)) {
    std::string given;
    for (size_t i = 0; i < count; ++i) {
      given += (i == 0 ? "" : ", ") + op.graph.symbols[i].name + "=" + std::to_string(values[i]);
    }
    return invalidArgument("the plan of " + op.label + " is for " + record.bucket.describe(op.graph) + ", not for " +
                           given);
  }
  return Status::ok();
}

bool PlanState::needsZeroedWorkspace() const {
  return std::any_of(record.plan.workspaces.begin(), record.plan.workspaces.end(),
                     [](const cache::Workspace& w) { return w.kind == cache::WorkspaceKind::kZeroed; });
}

Status PlanState::checkTensors(void* const* addresses) const {
  const auto begin = [&](size_t t) { return reinterpret_cast<uintptr_t>(addresses[t]); };
  for (size_t t = 0; t < op.tensors.size(); ++t) {
    if (addresses[t] == nullptr) return invalidArgument("tensor '" + op.names[t] + "' is NULL");
  }
  for (size_t t = 0; t < op.tensors.size(); ++t) {
    const TensorLayout& tensor = op.tensors[t];
    if (!tensor.isOutput) continue;
    if (tensor.alias >= 0 && addresses[t] != addresses[tensor.alias]) {
      return invalidArgument("output '" + op.names[t] + "' must have the address of input '" +
                             op.names[static_cast<size_t>(tensor.alias)] + "', which it overwrites");
    }
    const uint64_t bytes = tensor.spanBytes(symbolValues);
    for (size_t other = 0; other < op.tensors.size(); ++other) {
      if (other == t || static_cast<int32_t>(other) == tensor.alias) continue;
      if (begin(t) < begin(other) + op.tensors[other].spanBytes(symbolValues) && begin(other) < begin(t) + bytes) {
        return invalidArgument("output '" + op.names[t] + "' overlaps tensor '" + op.names[other] +
                               "'; describe an output that overwrites an input as its alias");
      }
    }
  }
  return Status::ok();
}

Status PlanState::run(const ktune_run_arguments& arguments) {
  if (!loaded) return invalidArgument("the plan is not prepared");
  const RunTicket ticket(device->running);
  if (!ticket.taken()) return unavailable("another run on this device is in progress");
  if (arguments.tensor_count != op.tensors.size()) {
    return invalidArgument(op.label + ": " + countText("tensors", op.tensors.size(), arguments.tensor_count));
  }
  if (arguments.tensors == nullptr) return invalidArgument("tensors is NULL");
  KTUNE_TRY(takeSymbols(arguments.symbol_values, arguments.symbol_count));
  KTUNE_TRY(checkTensors(arguments.tensors));
  const std::span<void* const> tensors(arguments.tensors, arguments.tensor_count);
  KTUNE_TRY(runtime::checkPreconditions(record.plan, tensors, symbolValues));
  if (workspaceBytes > 0) {
    const auto address = reinterpret_cast<uintptr_t>(arguments.workspace);
    if (address == 0 || arguments.workspace_bytes < workspaceBytes) {
      return invalidArgument(op.label + " needs a workspace of " + std::to_string(workspaceBytes) + " bytes, got " +
                             std::to_string(address == 0 ? 0 : arguments.workspace_bytes));
    }
    if (address % runtime::kWorkspaceAlignment != 0) {
      return invalidArgument("the workspace must be aligned to " + std::to_string(runtime::kWorkspaceAlignment) +
                             " bytes");
    }
  }
  return loaded->run(tensors, symbolValues, arguments.workspace);
}

}  // namespace ktune::library
