// ktune.hpp: the C++20 face of ktune.h. Header only: it compiles into the caller, so that the caller's compiler and
// standard library need not be those of libktune. Failures throw ktune::Error in the caller's code; only
// Plan::tryRun(), for hot paths, returns a status. What each call does, its errors and its thread-safety stand in
// ktune.h; objects are move-only owners of one handle and may be destroyed in any order.
#ifndef KTUNE_KTUNE_HPP
#define KTUNE_KTUNE_HPP

#include <ktune/ktune.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ktune {

/// What a failing call throws: the status and the library's message.
class Error : public std::runtime_error {
 public:
  Error(ktune_status code, const std::string& message) : std::runtime_error(message), code_(code) {}
  /// KTUNE_INVALID_ARGUMENT and so on.
  [[nodiscard]] ktune_status code() const noexcept { return code_; }

 private:
  ktune_status code_;
};

/// Throws Error unless STATUS is KTUNE_OK. For callers that mix both interfaces.
inline void check(ktune_status status) {
  if (status != KTUNE_OK) {
    throw Error(status, std::string("ktune: ") + ktune_status_name(status) + ": " + ktune_last_error());
  }
}

/// A device as the context sees it. The views belong to the context.
struct DeviceInfo {
  std::string_view name, description, hardware;
};

/// A tensor of an operator. The name belongs to the operator.
struct TensorInfo {
  std::string_view name;
  int32_t dtype = KTUNE_F32;  ///< KTUNE_F32 and so on.
  int32_t rank = 0;
  bool isOutput = false;
  bool isConstant = false;
  int32_t alias = -1;  ///< Outputs: the input whose memory is overwritten, or -1.
  int64_t alignmentBytes = 1;
};

/// A tensor's place in memory at certain symbol values.
struct TensorExtents {
  std::vector<int64_t> extents;
  uint64_t bytes = 0;  ///< From the first to the end of the last element.
};

/// Inclusive ranges, one per symbol.
struct BucketRange {
  std::vector<int64_t> low, high;
};

struct WorkspaceInfo {
  uint64_t bytes = 0, alignmentBytes = 1;
  bool mustBeZero = false;
};

/// What a plan is and where it comes from. The views belong to the plan.
struct PlanInfo {
  std::string_view label, key, hardware, digest;
  size_t bucketIndex = 0;
  int32_t decision = KTUNE_DECISION_DEFAULT;  ///< KTUNE_DECISION_TUNED and so on.
};

namespace detail {
template <typename T, void (*kDestroy)(T*)>
struct Destroy {
  void operator()(T* handle) const noexcept { kDestroy(handle); }
};
template <typename T, void (*kDestroy)(T*)>
using Handle = std::unique_ptr<T, Destroy<T, kDestroy>>;
}  // namespace detail

/// The root of everything else.
class Context {
 public:
  explicit Context(const ktune_context_options& options = KTUNE_CONTEXT_OPTIONS_INIT) {
    ktune_context* raw = nullptr;
    check(ktune_context_create(&options, &raw));
    handle_.reset(raw);
  }
  [[nodiscard]] ktune_context* get() const noexcept { return handle_.get(); }

  /// The devices of this machine, best first.
  [[nodiscard]] std::vector<DeviceInfo> devices() const {
    size_t count = 0;
    check(ktune_device_count(get(), &count));
    std::vector<DeviceInfo> devices;
    for (size_t i = 0; i < count; ++i) {
      ktune_device_info info = KTUNE_DEVICE_INFO_INIT;
      check(ktune_device_at(get(), i, &info));
      devices.push_back({info.name, info.description, info.hardware});
    }
    return devices;
  }
  /// The identity text that keys of the device NAME are made with.
  [[nodiscard]] std::string_view hardware(const std::string& name) const {
    const char* text = nullptr;
    check(ktune_device_hardware(get(), name.c_str(), &text));
    return text;
  }

 private:
  detail::Handle<ktune_context, ktune_context_destroy> handle_;
};

/// An opened device. Runs on one device do not overlap.
class Device {
 public:
  /// THREADS: as ktune_device_options::threads (1: the caller's alone, -1: one per usable core).
  Device(const Context& context, const std::string& name, int32_t threads = 1) {
    ktune_device_options options = KTUNE_DEVICE_OPTIONS_INIT;
    options.threads = threads;
    ktune_device* raw = nullptr;
    check(ktune_device_open(context.get(), name.c_str(), &options, &raw));
    handle_.reset(raw);
  }
  [[nodiscard]] ktune_device* get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<ktune_device, ktune_device_destroy> handle_;
};

/// A verified operator description.
class Operator {
 public:
  /// JSON as in docs/manifest.md.
  Operator(const Context& context, std::string_view json) {
    ktune_operator* raw = nullptr;
    check(ktune_operator_create(context.get(), json.data(), json.size(), &raw));
    handle_.reset(raw);
  }
  [[nodiscard]] ktune_operator* get() const noexcept { return handle_.get(); }

  [[nodiscard]] std::string_view label() const {
    const char* text = nullptr;
    check(ktune_operator_label(get(), &text));
    return text;
  }
  [[nodiscard]] std::string key(std::string_view hardware) const {
    char key[KTUNE_KEY_SIZE];
    check(ktune_operator_key(get(), std::string(hardware).c_str(), key));
    return key;
  }
  /// Inputs, then outputs.
  [[nodiscard]] std::vector<TensorInfo> tensors() const {
    size_t count = 0;
    check(ktune_operator_tensor_count(get(), &count));
    std::vector<TensorInfo> tensors;
    for (size_t i = 0; i < count; ++i) {
      ktune_tensor_info info = KTUNE_TENSOR_INFO_INIT;
      check(ktune_operator_tensor_at(get(), i, &info));
      tensors.push_back({info.name, info.dtype, info.rank, info.is_output != 0, info.is_constant != 0, info.alias,
                         info.alignment_bytes});
    }
    return tensors;
  }
  [[nodiscard]] TensorExtents tensorExtents(size_t index, std::span<const int64_t> symbolValues = {}) const {
    ktune_tensor_info info = KTUNE_TENSOR_INFO_INIT;
    check(ktune_operator_tensor_at(get(), index, &info));
    TensorExtents result;
    result.extents.resize(static_cast<size_t>(info.rank));
    check(ktune_operator_tensor_extents(get(), index, symbolValues.data(), symbolValues.size(), result.extents.data(),
                                        result.extents.size(), &result.bytes));
    return result;
  }
  [[nodiscard]] std::vector<std::string_view> symbols() const {
    size_t count = 0;
    check(ktune_operator_symbol_count(get(), &count));
    std::vector<std::string_view> names(count);
    for (size_t i = 0; i < count; ++i) {
      const char* name = nullptr;
      check(ktune_operator_symbol_name(get(), i, &name));
      names[i] = name;
    }
    return names;
  }
  [[nodiscard]] std::vector<BucketRange> buckets() const {
    size_t count = 0;
    size_t symbolCount = 0;
    check(ktune_operator_bucket_count(get(), &count));
    check(ktune_operator_symbol_count(get(), &symbolCount));
    std::vector<BucketRange> ranges(count);
    for (size_t i = 0; i < count; ++i) {
      ranges[i].low.resize(symbolCount);
      ranges[i].high.resize(symbolCount);
      check(ktune_operator_bucket_range(get(), i, ranges[i].low.data(), ranges[i].high.data(), symbolCount));
    }
    return ranges;
  }
  /// The bucket that the values fall into.
  [[nodiscard]] size_t findBucket(std::span<const int64_t> symbolValues) const {
    size_t index = 0;
    check(ktune_operator_find_bucket(get(), symbolValues.data(), symbolValues.size(), &index));
    return index;
  }

 private:
  detail::Handle<ktune_operator, ktune_operator_destroy> handle_;
};

/// How to run one bucket of one operator.
class Plan {
 public:
  /// RECORD: the bytes of a file that `ktune show KEY --bucket N --export FILE` wrote.
  Plan(const Context& context, std::span<const std::byte> record) {
    ktune_plan* raw = nullptr;
    check(ktune_plan_from_bytes(context.get(), record.data(), record.size(), &raw));
    handle_.reset(raw);
  }
  [[nodiscard]] ktune_plan* get() const noexcept { return handle_.get(); }

  [[nodiscard]] PlanInfo info() const {
    ktune_plan_info info = KTUNE_PLAN_INFO_INIT;
    check(ktune_plan_get_info(get(), &info));
    return {info.label, info.key, info.hardware, info.digest, info.bucket_index, info.decision};
  }
  /// Loads the kernels; afterwards run() may be called.
  void prepare(const Device& device) { check(ktune_plan_prepare(get(), device.get(), nullptr)); }
  /// The same, and refuses a plan that was made for another operator than OP.
  void prepare(const Device& device, const Operator& op) { check(ktune_plan_prepare(get(), device.get(), op.get())); }

  [[nodiscard]] WorkspaceInfo workspace() const {
    ktune_workspace_info info = KTUNE_WORKSPACE_INFO_INIT;
    check(ktune_plan_workspace(get(), &info));
    return {info.bytes, info.alignment_bytes, info.must_be_zero != 0};
  }
  /// TENSORS: inputs, then outputs.
  void run(std::span<void* const> tensors, std::span<const int64_t> symbolValues = {},
           std::span<std::byte> workspace = {}) {
    check(tryRun(tensors, symbolValues, workspace));
  }
  /// The same without exceptions; ktune_last_error() has the message.
  [[nodiscard]] ktune_status tryRun(std::span<void* const> tensors, std::span<const int64_t> symbolValues = {},
                                    std::span<std::byte> workspace = {}) noexcept {
    ktune_run_arguments arguments = KTUNE_RUN_ARGUMENTS_INIT;
    arguments.tensors = tensors.data();
    arguments.tensor_count = tensors.size();
    arguments.symbol_values = symbolValues.data();
    arguments.symbol_count = symbolValues.size();
    arguments.workspace = workspace.data();
    arguments.workspace_bytes = workspace.size();
    return ktune_plan_run(get(), &arguments);
  }

 private:
  detail::Handle<ktune_plan, ktune_plan_destroy> handle_;
};

}  // namespace ktune

#endif  // KTUNE_KTUNE_HPP
