// What stands behind the opaque handles. Each holds its state by shared_ptr, and states hold the states that they need,
// so that a caller may destroy handles in any order.
#pragma once

#include <ktune/ktune.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/Log.h"
#include "cache/format/Record.h"
#include "ir/op/Graph.h"
#include "runtime/launch/Device.h"
#include "runtime/library/ProcessMark.h"

namespace ktune::library {

/// Where a context's messages go.
struct LogTarget {
  LogLevel minimum = LogLevel::kWarning;
  ktune_log_function function = nullptr;
  void* userData = nullptr;
};

struct ContextState {
  LogTarget log;
  ProcessMark mark;

  /// Looked up at the first question: reading the machine's identity takes milliseconds.
  [[nodiscard]] const std::vector<runtime::DeviceInfo>& devices();

 private:
  std::once_flag devicesOnce_;
  std::vector<runtime::DeviceInfo> devices_;
};

struct DeviceState {
  std::shared_ptr<ContextState> context;
  std::unique_ptr<runtime::Device> device;
  std::atomic<bool> running{false};  ///< A run is in progress.
};

/// How a tensor lies in memory, reduced to what a run needs to know.
struct TensorLayout {
  op::DType dtype = op::DType::kF32;
  op::Shape shape;
  std::vector<int64_t> strides;  ///< Empty: dense.
  int32_t alias = -1;
  bool isOutput = false;

  /// Bytes from the first to the end of the last element. Allocates nothing. REQUIRES: values in their ranges.
  [[nodiscard]] uint64_t spanBytes(const std::vector<int64_t>& symbolValues) const;
};

/// A verified description with what the interface answers from.
struct OperatorState {
  std::shared_ptr<ContextState> context;
  op::Graph graph;
  std::string label;
  std::vector<op::Bucket> buckets;
  std::vector<std::string> names;       ///< Per tensor: inputs, then outputs.
  std::vector<TensorLayout> tensors;    ///< Likewise.
  std::vector<int64_t> alignmentBytes;  ///< Likewise.

  /// Errors: as op::verify.
  [[nodiscard]] static Result<OperatorState> create(std::shared_ptr<ContextState> context, op::Graph graph);
  /// Errors: kInvalidArgument unless there is one value per symbol, each in its range.
  [[nodiscard]] Status checkSymbols(const int64_t* values, size_t count) const;
};

struct PlanState {
  OperatorState op;  ///< Rebuilt from the record's canonical description.
  cache::Record record;
  std::string key, digest;

  // Set by prepare. The order matters: the loaded plan goes before its device.
  std::shared_ptr<DeviceState> device;
  std::unique_ptr<runtime::LoadedPlan> loaded;
  size_t workspaceBytes = 0;

  /// Room for a run's symbol values, so that a run does not allocate. Used only while device->running is ours.
  std::vector<int64_t> symbolValues;

  /// Reads a record and checks it against itself. Errors: kCorrupt, kUnsupported.
  [[nodiscard]] static Result<std::unique_ptr<PlanState>> create(std::shared_ptr<ContextState> context,
                                                                 std::string_view bytes);
  [[nodiscard]] Status prepare(std::shared_ptr<DeviceState> onDevice, const OperatorState* expected);
  [[nodiscard]] Status run(const ktune_run_arguments& arguments);
  [[nodiscard]] bool needsZeroedWorkspace() const;

 private:
  [[nodiscard]] Status takeSymbols(const int64_t* values, size_t count);
  [[nodiscard]] Status checkTensors(void* const* addresses) const;
};

}  // namespace ktune::library

// The handles' own types, as ktune.h declares them.
struct ktune_context {
  std::shared_ptr<ktune::library::ContextState> state;
};
struct ktune_device {
  std::shared_ptr<ktune::library::DeviceState> state;
};
struct ktune_operator {
  ktune::library::OperatorState state;
};
struct ktune_plan {
  std::unique_ptr<ktune::library::PlanState> state;
};
