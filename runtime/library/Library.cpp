// The C interface: each entry checks its handles and structs, then asks the state behind them. No entry calls another
// one, so that a program which replaces a symbol changes that symbol alone.
#include <ktune/ktune.h>

#include <array>
#include <cstdio>
#include <string>

#include "base/Log.h"
#include "base/Settings.h"
#include "base/System.h"
#include "ir/op/Canonical.h"
#include "ir/op/GraphJson.h"
#include "runtime/library/Entry.h"
#include "runtime/library/Handles.h"

using namespace ktune;
using namespace ktune::library;

// ---- What must never change: numbers and layouts that callers are compiled against.

static_assert(KTUNE_OK == static_cast<int>(StatusCode::kOk) &&
              KTUNE_INVALID_ARGUMENT == static_cast<int>(StatusCode::kInvalidArgument) &&
              KTUNE_NOT_FOUND == static_cast<int>(StatusCode::kNotFound) &&
              KTUNE_UNSUPPORTED == static_cast<int>(StatusCode::kUnsupported) &&
              KTUNE_CORRUPT == static_cast<int>(StatusCode::kCorrupt) &&
              KTUNE_PERMISSION_DENIED == static_cast<int>(StatusCode::kPermissionDenied) &&
              KTUNE_RESOURCE_EXHAUSTED == static_cast<int>(StatusCode::kResourceExhausted) &&
              KTUNE_DEADLINE_EXCEEDED == static_cast<int>(StatusCode::kDeadlineExceeded) &&
              KTUNE_CANCELLED == static_cast<int>(StatusCode::kCancelled) &&
              KTUNE_UNAVAILABLE == static_cast<int>(StatusCode::kUnavailable) &&
              KTUNE_INTERNAL == static_cast<int>(StatusCode::kInternal));
static_assert(KTUNE_F64 == static_cast<int>(op::DType::kF64) && KTUNE_F32 == static_cast<int>(op::DType::kF32) &&
              KTUNE_F16 == static_cast<int>(op::DType::kF16) && KTUNE_BF16 == static_cast<int>(op::DType::kBF16) &&
              KTUNE_I8 == static_cast<int>(op::DType::kI8) && KTUNE_I32 == static_cast<int>(op::DType::kI32) &&
              KTUNE_I64 == static_cast<int>(op::DType::kI64) && KTUNE_BOOL == static_cast<int>(op::DType::kBool) &&
              KTUNE_F8E4M3 == static_cast<int>(op::DType::kF8E4M3) &&
              KTUNE_F8E5M2 == static_cast<int>(op::DType::kF8E5M2) && op::kDTypeCount == 10);
static_assert(KTUNE_DECISION_TUNED == static_cast<int>(cache::Decision::kTuned) &&
              KTUNE_DECISION_DEFAULT == static_cast<int>(cache::Decision::kDefault) &&
              KTUNE_DECISION_USE_FALLBACK == static_cast<int>(cache::Decision::kUseFallback));
static_assert(KTUNE_LOG_DEBUG == static_cast<int>(LogLevel::kDebug) + 1 &&
              KTUNE_LOG_SILENT == static_cast<int>(LogLevel::kSilent) + 1);

// The sizes of version 0.1: the least that is accepted of each struct. A struct that grows keeps its number here.
namespace {
constexpr size_t kContextOptionsFirst = 32, kDeviceInfoFirst = 32, kDeviceOptionsFirst = 16, kTensorInfoFirst = 48,
                 kPlanInfoFirst = 56, kWorkspaceInfoFirst = 32, kRunArgumentsFirst = 56;
}  // namespace
static_assert(sizeof(void*) == 8 && sizeof(size_t) == 8);
static_assert(sizeof(ktune_context_options) == 32 && offsetof(ktune_context_options, log_level) == 8 &&
              offsetof(ktune_context_options, log_function) == 16 &&
              offsetof(ktune_context_options, log_user_data) == 24);
static_assert(sizeof(ktune_device_info) == 32 && offsetof(ktune_device_info, name) == 8 &&
              offsetof(ktune_device_info, description) == 16 && offsetof(ktune_device_info, hardware) == 24);
static_assert(sizeof(ktune_device_options) == 16 && offsetof(ktune_device_options, threads) == 8);
static_assert(sizeof(ktune_tensor_info) == 48 && offsetof(ktune_tensor_info, name) == 8 &&
              offsetof(ktune_tensor_info, dtype) == 16 && offsetof(ktune_tensor_info, rank) == 20 &&
              offsetof(ktune_tensor_info, is_output) == 24 && offsetof(ktune_tensor_info, is_constant) == 28 &&
              offsetof(ktune_tensor_info, alias) == 32 && offsetof(ktune_tensor_info, alignment_bytes) == 40);
static_assert(sizeof(ktune_plan_info) == 56 && offsetof(ktune_plan_info, label) == 8 &&
              offsetof(ktune_plan_info, key) == 16 && offsetof(ktune_plan_info, hardware) == 24 &&
              offsetof(ktune_plan_info, digest) == 32 && offsetof(ktune_plan_info, bucket_index) == 40 &&
              offsetof(ktune_plan_info, decision) == 48);
static_assert(sizeof(ktune_workspace_info) == 32 && offsetof(ktune_workspace_info, bytes) == 8 &&
              offsetof(ktune_workspace_info, alignment_bytes) == 16 &&
              offsetof(ktune_workspace_info, must_be_zero) == 24);
static_assert(sizeof(ktune_run_arguments) == 56 && offsetof(ktune_run_arguments, tensors) == 8 &&
              offsetof(ktune_run_arguments, tensor_count) == 16 && offsetof(ktune_run_arguments, symbol_values) == 24 &&
              offsetof(ktune_run_arguments, symbol_count) == 32 && offsetof(ktune_run_arguments, workspace) == 40 &&
              offsetof(ktune_run_arguments, workspace_bytes) == 48);

#define KTUNE_TEXT_OF(x) #x
#define KTUNE_VERSION_TEXT(a, b, c) KTUNE_TEXT_OF(a) "." KTUNE_TEXT_OF(b) "." KTUNE_TEXT_OF(c)

namespace {

constexpr size_t kMaxJsonBytes = size_t{4} << 20;
constexpr int32_t kMaxThreads = 1024;
constexpr const char* kVersionText = KTUNE_VERSION_TEXT(KTUNE_VERSION_MAJOR, KTUNE_VERSION_MINOR, KTUNE_VERSION_PATCH);
static_assert(std::string_view(KTUNE_VERSION_TEXT(KTUNE_VERSION_MAJOR, KTUNE_VERSION_MINOR, KTUNE_VERSION_PATCH)) ==
                  KTUNE_PROJECT_VERSION,
              "the version in ktune.h is not the one in CMakeLists.txt");

// Plain data, so that unloading the library has no destructors to run in threads that it does not know.
thread_local std::array<char, 1024> threadError{};
thread_local const LogTarget* threadLog = nullptr;

/// The process's one log sink hands each message to the context whose entry the thread is in.
void routeMessage(LogLevel level, std::string_view message) {
  const LogTarget* target = threadLog;
  if (target == nullptr || level < target->minimum) return;
  const std::string text(message);
  if (target->function != nullptr) {
    target->function(target->userData, static_cast<int32_t>(level) + 1, text.c_str());
  } else {
    static constexpr const char* kLevelNames[] = {"debug", "info", "warning", "error"};
    std::fprintf(stderr, "ktune: %s: %s\n", kLevelNames[static_cast<size_t>(level)], text.c_str());
  }
}

/// While it lives, messages of this thread go to CONTEXT.
class LogScope {
 public:
  explicit LogScope(const ContextState& context) : before_(std::exchange(threadLog, &context.log)) {}
  ~LogScope() { threadLog = before_; }
  LogScope(const LogScope&) = delete;
  LogScope& operator=(const LogScope&) = delete;

 private:
  const LogTarget* before_;
};

Status checkProcess(const ContextState& context) {
  if (context.mark.inSameProcess()) return Status::ok();
  return unavailable("this handle was made before fork(), by process " + std::to_string(context.mark.owner()) +
                     "; create a new ktune_context in the child");
}

/// An entry with a handle: refuses NULL and handles of a parent process, routes messages, guards.
template <typename Handle, typename Context, typename Body>
ktune_status entry(Handle* handle, const char* what, Context contextOf, Body body) {
  return guarded([&]() -> Status {
    if (handle == nullptr) return invalidArgument(std::string(what) + " is NULL");
    ContextState& context = *contextOf(*handle);
    KTUNE_TRY(checkProcess(context));
    const LogScope scope(context);
    return body();
  });
}
template <typename Body>
ktune_status contextEntry(ktune_context* context, Body body) {
  return entry(
      context, "context", [](ktune_context& c) { return c.state; }, body);
}
template <typename Body>
ktune_status operatorEntry(const ktune_operator* op, Body body) {
  return entry(
      op, "op", [](const ktune_operator& o) { return o.state.context; }, [&] { return body(op->state); });
}
template <typename Plan, typename Body>
ktune_status planEntry(Plan* plan, Body body) {
  return entry(
      plan, "plan", [](Plan& p) { return p.state->op.context; }, [&] { return body(*plan->state); });
}

/// Destroys a handle. In a child process it is only forgotten: its threads do not exist there.
template <typename Handle>
void destroy(Handle* handle, const ContextState& context) {
  if (context.mark.inSameProcess()) delete handle;
}

template <typename T>
Status store(T* out, const char* what, T value) {
  if (out == nullptr) return invalidArgument(std::string(what) + " is NULL");
  *out = value;
  return Status::ok();
}

Status indexStatus(const char* what, size_t index, size_t count) {
  if (index < count) return Status::ok();
  return notFound(std::string(what) + " " + std::to_string(index) + " does not exist; there are " +
                  std::to_string(count));
}

Result<const runtime::DeviceInfo*> findDevice(ContextState& context, std::string_view name) {
  std::string known;
  for (const runtime::DeviceInfo& device : context.devices()) {
    if (device.name == name) return &device;
    known += (known.empty() ? "" : ", ") + device.name;
  }
  return notFound("no device \"" + std::string(name) + "\"; there are: " + known);
}

}  // namespace

namespace ktune::library {

const char* lastError() noexcept {
  return threadError.data();
}

void setLastError(const char* message) noexcept {
  std::snprintf(threadError.data(), threadError.size(), "%s", message);
}

}  // namespace ktune::library

extern "C" {

const char* ktune_status_name(ktune_status status) {
  if (status < KTUNE_OK || status > KTUNE_INTERNAL) return "unknown";
  return statusCodeName(static_cast<StatusCode>(status)).data();
}

const char* ktune_last_error(void) {
  return lastError();
}

uint32_t ktune_version(void) {
  return KTUNE_VERSION;
}

const char* ktune_version_string(void) {
  return kVersionText;
}

ktune_status ktune_context_create(const ktune_context_options* options, ktune_context** context) {
  return guarded([&]() -> Status {
    if (context == nullptr) return invalidArgument("context is NULL");
    ktune_context_options o = KTUNE_CONTEXT_OPTIONS_INIT;
    if (options != nullptr) KTUNE_TRY(readStruct(options, kContextOptionsFirst, "options", o));
    if (o.log_level < KTUNE_LOG_DEFAULT || o.log_level > KTUNE_LOG_SILENT) {
      return invalidArgument("options.log_level is " + std::to_string(o.log_level) + "; it must be 0 to 5");
    }
    if (o.reserved != 0) return invalidArgument("options.reserved must be 0");
    auto handle = std::make_unique<ktune_context>();
    handle->state = std::make_shared<ContextState>();
    LogTarget& log = handle->state->log;
    log.function = o.log_function;
    log.userData = o.log_user_data;
    if (o.log_level == KTUNE_LOG_DEFAULT) {
      KTUNE_ASSIGN(const Settings settings, readSettings());
      log.minimum = settings.logLevel;
    } else {
      log.minimum = static_cast<LogLevel>(o.log_level - 1);
    }
    setLogLevel(LogLevel::kDebug);  // Each context filters for itself.
    setLogSink(routeMessage);
    *context = handle.release();
    return Status::ok();
  });
}

void ktune_context_destroy(ktune_context* context) {
  if (context != nullptr) destroy(context, *context->state);
}

// ---- Devices.

ktune_status ktune_device_count(ktune_context* context, size_t* count) {
  return contextEntry(context, [&] { return store(count, "count", context->state->devices().size()); });
}

ktune_status ktune_device_at(ktune_context* context, size_t index, ktune_device_info* info) {
  return contextEntry(context, [&]() -> Status {
    const std::vector<runtime::DeviceInfo>& devices = context->state->devices();
    KTUNE_TRY(indexStatus("device", index, devices.size()));
    ktune_device_info value = KTUNE_DEVICE_INFO_INIT;
    value.name = devices[index].name.c_str();
    value.description = devices[index].description.c_str();
    value.hardware = devices[index].target.hardware.c_str();
    return fillStruct(info, kDeviceInfoFirst, "info", value);
  });
}

ktune_status ktune_device_hardware(ktune_context* context, const char* name, const char** hardware) {
  return contextEntry(context, [&]() -> Status {
    if (name == nullptr) return invalidArgument("name is NULL");
    KTUNE_ASSIGN(const runtime::DeviceInfo* device, findDevice(*context->state, name));
    return store(hardware, "hardware", device->target.hardware.c_str());
  });
}

ktune_status ktune_device_open(ktune_context* context, const char* name, const ktune_device_options* options,
                               ktune_device** device) {
  return contextEntry(context, [&]() -> Status {
    if (name == nullptr) return invalidArgument("name is NULL");
    if (device == nullptr) return invalidArgument("device is NULL");
    ktune_device_options o = KTUNE_DEVICE_OPTIONS_INIT;
    if (options != nullptr) KTUNE_TRY(readStruct(options, kDeviceOptionsFirst, "options", o));
    if (o.threads < -1 || o.threads > kMaxThreads) {
      return invalidArgument("options.threads is " + std::to_string(o.threads) + "; it must be -1 to " +
                             std::to_string(kMaxThreads));
    }
    if (o.reserved != 0) return invalidArgument("options.reserved must be 0");
    // A run has no stream to be queued on yet: nobody could tell when its results are there.
    if (std::string_view(name).starts_with("cuda"))
      return unsupported("libktune runs plans on the cpu device only; " + std::string(name) +
                         " can be tuned for with the ktune program");
    runtime::DeviceOptions deviceOptions;
    deviceOptions.threads = o.threads < 0 ? usableCores() : std::max(o.threads, 1);
    auto handle = std::make_unique<ktune_device>();
    handle->state = std::make_shared<DeviceState>();
    handle->state->context = context->state;
    KTUNE_ASSIGN(handle->state->device, runtime::openDevice(name, deviceOptions));
    *device = handle.release();
    return Status::ok();
  });
}

void ktune_device_destroy(ktune_device* device) {
  if (device != nullptr) destroy(device, *device->state->context);
}

// ---- Operators.

ktune_status ktune_operator_create(ktune_context* context, const char* json, size_t length, ktune_operator** op) {
  return contextEntry(context, [&]() -> Status {
    if (json == nullptr) return invalidArgument("json is NULL");
    if (op == nullptr) return invalidArgument("op is NULL");
    if (length > kMaxJsonBytes) {
      return invalidArgument("the description has " + std::to_string(length) + " bytes; at most " +
                             std::to_string(kMaxJsonBytes) + " are read");
    }
    KTUNE_ASSIGN(const Json parsed, parseJson(std::string_view(json, length), "description"));
    KTUNE_ASSIGN(op::Graph graph, op::fromJson(parsed, "description"));
    KTUNE_ASSIGN(OperatorState state, OperatorState::create(context->state, std::move(graph)));
    *op = new ktune_operator{std::move(state)};
    return Status::ok();
  });
}

void ktune_operator_destroy(ktune_operator* op) {
  if (op != nullptr) destroy(op, *op->state.context);
}

ktune_status ktune_operator_label(const ktune_operator* op, const char** label) {
  return operatorEntry(op, [&](const OperatorState& s) { return store(label, "label", s.label.c_str()); });
}

ktune_status ktune_operator_key(const ktune_operator* op, const char* hardware, char key[KTUNE_KEY_SIZE]) {
  return operatorEntry(op, [&](const OperatorState& s) -> Status {
    if (hardware == nullptr) return invalidArgument("hardware is NULL");
    if (key == nullptr) return invalidArgument("key is NULL");
    const std::string hex = op::keyOf(s.graph, hardware).hex();
    if (hex.size() + 1 != KTUNE_KEY_SIZE) return internalError("a key of " + std::to_string(hex.size()) + " digits");
    std::memcpy(key, hex.c_str(), KTUNE_KEY_SIZE);
    return Status::ok();
  });
}

ktune_status ktune_operator_tensor_count(const ktune_operator* op, size_t* count) {
  return operatorEntry(op, [&](const OperatorState& s) { return store(count, "count", s.tensors.size()); });
}

ktune_status ktune_operator_tensor_at(const ktune_operator* op, size_t index, ktune_tensor_info* info) {
  return operatorEntry(op, [&](const OperatorState& s) -> Status {
    KTUNE_TRY(indexStatus("tensor", index, s.tensors.size()));
    const TensorLayout& tensor = s.tensors[index];
    ktune_tensor_info value = KTUNE_TENSOR_INFO_INIT;
    value.name = s.names[index].c_str();
    value.dtype = static_cast<int32_t>(tensor.dtype);
    value.rank = static_cast<int32_t>(tensor.shape.size());
    value.is_output = tensor.isOutput ? 1 : 0;
    value.is_constant = !tensor.isOutput && s.graph.inputs[index].constant ? 1 : 0;
    value.alias = tensor.alias;
    value.alignment_bytes = s.alignmentBytes[index];
    return fillStruct(info, kTensorInfoFirst, "info", value);
  });
}

ktune_status ktune_operator_tensor_extents(const ktune_operator* op, size_t index, const int64_t* symbol_values,
                                           size_t symbol_count, int64_t* extents, size_t capacity, uint64_t* bytes) {
  return operatorEntry(op, [&](const OperatorState& s) -> Status {
    KTUNE_TRY(indexStatus("tensor", index, s.tensors.size()));
    KTUNE_TRY(s.checkSymbols(symbol_values, symbol_count));
    const op::Shape& shape = s.tensors[index].shape;
    if (capacity < shape.size()) {
      return invalidArgument("room for " + std::to_string(capacity) + " extents, the tensor has " +
                             std::to_string(shape.size()));
    }
    if (extents == nullptr && !shape.empty()) return invalidArgument("extents is NULL");
    const std::vector<int64_t> values(symbol_values, symbol_values + symbol_count);
    for (size_t d = 0; d < shape.size(); ++d) extents[d] = shape[d].extent(values);
    if (bytes != nullptr) *bytes = s.tensors[index].spanBytes(values);
    return Status::ok();
  });
}

ktune_status ktune_operator_symbol_count(const ktune_operator* op, size_t* count) {
  return operatorEntry(op, [&](const OperatorState& s) { return store(count, "count", s.graph.symbols.size()); });
}

ktune_status ktune_operator_symbol_name(const ktune_operator* op, size_t index, const char** name) {
  return operatorEntry(op, [&](const OperatorState& s) -> Status {
    KTUNE_TRY(indexStatus("symbol", index, s.graph.symbols.size()));
    return store(name, "name", s.graph.symbols[index].name.c_str());
  });
}

ktune_status ktune_operator_bucket_count(const ktune_operator* op, size_t* count) {
  return operatorEntry(op, [&](const OperatorState& s) { return store(count, "count", s.buckets.size()); });
}

ktune_status ktune_operator_bucket_range(const ktune_operator* op, size_t index, int64_t* low, int64_t* high,
                                         size_t symbol_count) {
  return operatorEntry(op, [&](const OperatorState& s) -> Status {
    KTUNE_TRY(indexStatus("bucket", index, s.buckets.size()));
    if (symbol_count != s.graph.symbols.size()) {
      return invalidArgument("expected room for " + std::to_string(s.graph.symbols.size()) + " symbols, got " +
                             std::to_string(symbol_count));
    }
    if (symbol_count > 0 && (low == nullptr || high == nullptr)) return invalidArgument("low or high is NULL");
    std::copy(s.buckets[index].low.begin(), s.buckets[index].low.end(), low);
    std::copy(s.buckets[index].high.begin(), s.buckets[index].high.end(), high);
    return Status::ok();
  });
}

ktune_status ktune_operator_find_bucket(const ktune_operator* op, const int64_t* symbol_values, size_t symbol_count,
                                        size_t* index) {
  return operatorEntry(op, [&](const OperatorState& s) -> Status {
    if (symbol_count != s.graph.symbols.size() || (symbol_count > 0 && symbol_values == nullptr)) {
      return s.checkSymbols(symbol_values, symbol_count);
    }
    const std::vector<int64_t> values(symbol_values, symbol_values + symbol_count);
    for (size_t i = 0; i < s.buckets.size(); ++i) {
      if (s.buckets[i].contains(values)) return store(index, "index", i);
    }
    return notFound(s.checkSymbols(symbol_values, symbol_count).message());
  });
}

// ---- Plans.

ktune_status ktune_plan_from_bytes(ktune_context* context, const void* bytes, size_t size, ktune_plan** plan) {
  return contextEntry(context, [&]() -> Status {
    if (bytes == nullptr) return invalidArgument("bytes is NULL");
    if (plan == nullptr) return invalidArgument("plan is NULL");
    auto handle = std::make_unique<ktune_plan>();
    KTUNE_ASSIGN(handle->state,
                 PlanState::create(context->state, std::string_view(static_cast<const char*>(bytes), size)));
    *plan = handle.release();
    return Status::ok();
  });
}

void ktune_plan_destroy(ktune_plan* plan) {
  if (plan != nullptr) destroy(plan, *plan->state->op.context);
}

ktune_status ktune_plan_get_info(const ktune_plan* plan, ktune_plan_info* info) {
  return planEntry(plan, [&](const PlanState& s) {
    ktune_plan_info value = KTUNE_PLAN_INFO_INIT;
    value.label = s.op.label.c_str();
    value.key = s.key.c_str();
    value.hardware = s.record.hardware.c_str();
    value.digest = s.digest.c_str();
    value.bucket_index = static_cast<size_t>(s.record.bucketIndex);
    value.decision = static_cast<int32_t>(s.record.decision);
    return fillStruct(info, kPlanInfoFirst, "info", value);
  });
}

ktune_status ktune_plan_prepare(ktune_plan* plan, ktune_device* device, const ktune_operator* op) {
  return planEntry(plan, [&](PlanState& s) -> Status {
    if (device == nullptr) return invalidArgument("device is NULL");
    KTUNE_TRY(checkProcess(*device->state->context));
    // Before the change, for it allocates: a call that fails changes nothing.
    const std::string message = "prepared " + s.op.label + " " + s.record.bucket.describe(s.op.graph) + " (key " +
                                s.key + ") on " + device->state->device->name();
    KTUNE_TRY(s.prepare(device->state, op == nullptr ? nullptr : &op->state));
    logInfo(message);
    return Status::ok();
  });
}

ktune_status ktune_plan_workspace(const ktune_plan* plan, ktune_workspace_info* info) {
  return planEntry(plan, [&](const PlanState& s) -> Status {
    if (!s.loaded) return invalidArgument("the plan is not prepared");
    ktune_workspace_info value = KTUNE_WORKSPACE_INFO_INIT;
    value.bytes = s.workspaceBytes;
    value.alignment_bytes = s.workspaceBytes == 0 ? 1 : runtime::kWorkspaceAlignment;
    value.must_be_zero = s.needsZeroedWorkspace() ? 1 : 0;
    return fillStruct(info, kWorkspaceInfoFirst, "info", value);
  });
}

ktune_status ktune_plan_run(ktune_plan* plan, const ktune_run_arguments* arguments) {
  // Not planEntry: the hot path does without the shared pointer's count and the log scope, for it logs nothing.
  return guarded([&]() -> Status {
    if (plan == nullptr) return invalidArgument("plan is NULL");
    KTUNE_TRY(checkProcess(*plan->state->op.context));
    ktune_run_arguments a = KTUNE_RUN_ARGUMENTS_INIT;
    KTUNE_TRY(readStruct(arguments, kRunArgumentsFirst, "arguments", a));
    return plan->state->run(a);
  });
}

}  // extern "C"
