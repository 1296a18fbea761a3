#include "runtime/launch/devices/cuda/CudaPlan.h"

#include <algorithm>
#include <cstring>

#include "runtime/launch/devices/cuda/Cubin.h"

namespace ktune::runtime::cuda {

namespace {

constexpr size_t kMapAlignment = 128;  // Of a __grid_constant__ CUtensorMap argument.
constexpr size_t kMaxRank = 5;
constexpr int64_t kPortableCluster = 8;  // Blocks; more need the function's consent.
constexpr int64_t kMaxCluster = 16;
constexpr size_t kMaxAttributes = 4;

std::string sizesText(const std::array<int32_t, 3>& v) {
  return std::to_string(v[0]) + " x " + std::to_string(v[1]) + " x " + std::to_string(v[2]);
}

int64_t product(const std::array<int32_t, 3>& v) {
  return int64_t{v[0]} * v[1] * v[2];
}

}  // namespace

// A tensor map of one launch parameter, encoded again when address or sizes change.
struct CudaPlan::TensorMap {
  alignas(kMapAlignment) CUtensorMap encoded{};
  const void* address = nullptr;
  std::vector<int64_t> symbols;  ///< For which it was encoded; same size as the plan's from the start.
  bool valid = false;
  cache::TensorMapParameter parameter;
};

// How one argument of a launch is made; VALUE is what the driver copies it from.
struct CudaPlan::Argument {
  enum class Kind : uint8_t { kTensor, kSymbol, kWorkspace, kScalar, kTensorMap } kind = Kind::kScalar;
  size_t index = 0;
  uint64_t value = 0;
  std::string scalar;
  std::unique_ptr<TensorMap> map;
  [[nodiscard]] size_t bytes() const {
    return kind == Kind::kScalar ? scalar.size() : kind == Kind::kTensorMap ? sizeof(CUtensorMap) : sizeof value;
  }
};

struct CudaPlan::LoadedLaunch {
  std::string symbol;
  CUfunction function = nullptr;
  std::vector<Argument> arguments;
  std::vector<void*> pointers;  ///< To the arguments' values, as the driver wants them.
  std::array<cache::Extent, 3> grid;
  std::array<int32_t, 3> block{1, 1, 1};
  std::array<int32_t, 3> cluster{1, 1, 1};
  int32_t dynamicSharedBytes = 0;
  std::array<CUlaunchAttribute, kMaxAttributes> attributes{};
  unsigned attributeCount = 0;
  /// Attributes of which the last one is left out when launches must not overlap.
  unsigned serialAttributeCount = 0;
};

CudaPlan::CudaPlan(std::shared_ptr<CudaContext> context, const cache::Plan& plan)
    : context_(std::move(context)),
      workspaces_(plan.workspaces),
      symbols_(static_cast<size_t>(plan.symbolCount)),
      slotOffsets_(plan.workspaces.size()) {}

CudaPlan::~CudaPlan() {
  Current current(*context_);
  // Launches that are still queued run code of these modules.
  (void)context_->driver().streamSynchronize(context_->stream());
  for (CUmodule module : modules_) (void)context_->driver().moduleUnload(module);
}

Result<std::unique_ptr<CudaPlan>> CudaPlan::load(std::shared_ptr<CudaContext> context, const cache::Plan& plan) {
  KTUNE_TRY(plan.validate());
  for (const cache::Workspace& workspace : plan.workspaces) {
    if (workspace.alignmentBytes > static_cast<int64_t>(kWorkspaceAlignment))
      return unsupported("a workspace alignment of " + std::to_string(workspace.alignmentBytes) +
                         " bytes; the most is " + std::to_string(kWorkspaceAlignment));
  }
  Current current(*context);
  KTUNE_TRY(current.status());
  std::unique_ptr<CudaPlan> loaded(new CudaPlan(context, plan));
  for (const cache::Artefact& artefact : plan.artefacts) {
    if (artefact.kind != cache::ArtefactKind::kCubin)
      return unsupported("the cuda device runs cubins; this artefact is of kind " +
                         std::to_string(static_cast<int>(artefact.kind)));
    if (digestOf(artefact.bytes) != artefact.digest)
      return corrupt("the artefact's bytes do not have the digest " + artefact.digest.hex());
    KTUNE_TRY(inspectCubin(artefact.bytes));
    CUmodule module = nullptr;
    KTUNE_TRY(context->check(context->driver().moduleLoadData(&module, artefact.bytes.data()), "cuModuleLoadData"));
    loaded->modules_.push_back(module);
  }
  for (const cache::Launch& launch : plan.launches) KTUNE_TRY(loaded->addLaunch(launch));
  KTUNE_TRY(loaded->prepareFunctions());
  return loaded;
}

Status CudaPlan::addLaunch(const cache::Launch& launch) {
  const Driver& driver = context_->driver();
  const Limits& limits = context_->limits();
  auto loaded = std::make_unique<LoadedLaunch>();
  loaded->symbol = launch.symbol;
  const CUmodule module = modules_[static_cast<size_t>(launch.artefact)];
  const CUresult found = driver.moduleGetFunction(&loaded->function, module, launch.symbol.c_str());
  if (found == CUDA_ERROR_NOT_FOUND) return notFound("the artefact has no symbol '" + launch.symbol + "'");
  KTUNE_TRY(context_->check(found, "cuModuleGetFunction"));
  // Otherwise the first launch would load it, which a stream that is being captured can't.
  if (driver.funcLoad != nullptr) KTUNE_TRY(context_->check(driver.funcLoad(loaded->function), "cuFuncLoad"));

  for (size_t i = 0; i < 3; ++i) {
    if (launch.block[i] > limits.maxBlock[i] || product(launch.block) > limits.maxThreads)
      return invalidArgument(launch.symbol + ": blocks of " + sizesText(launch.block) + " threads; the device takes " +
                             std::to_string(limits.maxThreads));
  }
  loaded->grid = launch.grid;
  loaded->block = launch.block;
  loaded->cluster = launch.cluster;
  loaded->dynamicSharedBytes = launch.dynamicSharedBytes;
  // Pointers into the arguments are taken when all are there: the vector no longer moves then.
  loaded->arguments.reserve(launch.parameters.size());
  for (const cache::LaunchParameter& parameter : launch.parameters) KTUNE_TRY(addArgument(parameter, *loaded));
  for (Argument& argument : loaded->arguments) {
    void* const from = argument.kind == Argument::Kind::kScalar      ? static_cast<void*>(argument.scalar.data())
                       : argument.kind == Argument::Kind::kTensorMap ? static_cast<void*>(&argument.map->encoded)
                                                                     : static_cast<void*>(&argument.value);
    loaded->pointers.push_back(from);
  }
  KTUNE_TRY(checkParameters(*loaded));
  KTUNE_TRY(addAttributes(launch, *loaded));
  launches_.push_back(std::move(loaded));
  return Status::ok();
}

Status CudaPlan::addArgument(const cache::LaunchParameter& parameter, LoadedLaunch& launch) {
  using Kind = Argument::Kind;
  Argument argument;
  if (const auto* p = std::get_if<cache::PointerParameter>(&parameter)) {
    argument.kind = Kind::kTensor;
    argument.index = static_cast<size_t>(p->tensor);
  } else if (const auto* p = std::get_if<cache::SymbolParameter>(&parameter)) {
    argument.kind = Kind::kSymbol;
    argument.index = static_cast<size_t>(p->symbol);
  } else if (const auto* p = std::get_if<cache::WorkspaceParameter>(&parameter)) {
    argument.kind = Kind::kWorkspace;
    argument.index = static_cast<size_t>(p->slot);
  } else if (const auto* p = std::get_if<cache::ScalarParameter>(&parameter)) {
    argument.scalar = p->bytes;
  } else if (const auto* p = std::get_if<cache::TensorMapParameter>(&parameter)) {
    if (context_->driver().tensorMapEncodeTiled == nullptr || context_->limits().major < 9)
      return unsupported(launch.symbol + ": this device or driver has no tensor maps (compute capability 9.0)");
    if (p->extents.empty() || p->extents.size() > kMaxRank || p->stridesBytes.size() + 1 != p->extents.size() ||
        p->box.size() != p->extents.size())
      return invalidArgument(launch.symbol + ": a tensor map with sizes that do not fit together");
    argument.kind = Kind::kTensorMap;
    argument.index = static_cast<size_t>(p->tensor);
    argument.map = std::make_unique<TensorMap>();
    argument.map->parameter = *p;
    argument.map->symbols.resize(symbols_.size());
  }
  launch.arguments.push_back(std::move(argument));
  return Status::ok();
}

// The driver copies as many bytes as the kernel declares: a plan that has other parameters would read past its own.
Status CudaPlan::checkParameters(const LoadedLaunch& launch) const {
  const Driver& driver = context_->driver();
  if (driver.funcGetParamInfo == nullptr) return Status::ok();
  size_t offset = 0, bytes = 0, count = 0;
  for (; count <= launch.arguments.size(); ++count) {
    const CUresult result = driver.funcGetParamInfo(launch.function, count, &offset, &bytes);
    if (result == CUDA_ERROR_INVALID_VALUE) break;  // There are no more.
    KTUNE_TRY(context_->check(result, "cuFuncGetParamInfo"));
    if (count < launch.arguments.size() && launch.arguments[count].bytes() != bytes)
      return invalidArgument(launch.symbol + ": parameter " + std::to_string(count) + " has " + std::to_string(bytes) +
                             " bytes, the plan gives " + std::to_string(launch.arguments[count].bytes()));
  }
  if (count != launch.arguments.size())
    return invalidArgument(launch.symbol + " has " +
                           (count > launch.arguments.size() ? "more" : std::to_string(count)) +
                           " parameters; the plan gives " + std::to_string(launch.arguments.size()));
  return Status::ok();
}

Status CudaPlan::addAttributes(const cache::Launch& launch, LoadedLaunch& loaded) {
  const auto add = [&loaded](CUlaunchAttributeID id) -> CUlaunchAttributeValue& {
    CUlaunchAttribute& attribute = loaded.attributes[loaded.attributeCount++];
    attribute.id = id;
    return attribute.value;
  };
  const int64_t blocks = product(launch.cluster);
  if (blocks > 1) {
    if (context_->limits().major < 9)
      return unsupported(launch.symbol + ": clusters need a device of compute capability 9.0");
    if (blocks > kMaxCluster)
      return invalidArgument(launch.symbol + ": a cluster of " + std::to_string(blocks) + " blocks; the most is " +
                             std::to_string(kMaxCluster));
    auto& size = add(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).clusterDim;
    size.x = static_cast<unsigned>(launch.cluster[0]);
    size.y = static_cast<unsigned>(launch.cluster[1]);
    size.z = static_cast<unsigned>(launch.cluster[2]);
  }
  bool cooperative = false, programmatic = false;
  const cache::LaunchAttribute* priority = nullptr;
  for (const cache::LaunchAttribute& attribute : launch.attributes) {
    if (attribute.name == "cooperative") {
      cooperative = attribute.value != 0;
    } else if (attribute.name == "priority") {
      priority = &attribute;
    } else if (attribute.name == "programmatic_stream_serialization") {
      programmatic = attribute.value != 0;
    } else {
      return unsupported(launch.symbol + ": unknown launch attribute '" + attribute.name + "'");
    }
  }
  if (cooperative) add(CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative = 1;
  if (priority != nullptr) add(CU_LAUNCH_ATTRIBUTE_PRIORITY).priority = static_cast<int>(priority->value);
  loaded.serialAttributeCount = loaded.attributeCount;
  if (programmatic)
    add(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION).programmaticStreamSerializationAllowed = 1;
  return Status::ok();
}

// Limits that depend on the compiled function, and what it must be told before it is launched.
Status CudaPlan::prepareFunctions() {
  const Driver& driver = context_->driver();
  for (const std::unique_ptr<LoadedLaunch>& launch : launches_) {
    const auto get = [&](CUfunction_attribute which, int& value) {
      return context_->check(driver.funcGetAttribute(&value, which, launch->function), "cuFuncGetAttribute");
    };
    int threads = 0, fixedShared = 0;
    KTUNE_TRY(get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, threads));
    KTUNE_TRY(get(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, fixedShared));
    if (product(launch->block) > threads)
      return invalidArgument(launch->symbol + ": blocks of " + std::to_string(product(launch->block)) +
                             " threads; with its registers the kernel can have " + std::to_string(threads));
    const int64_t shared = int64_t{launch->dynamicSharedBytes} + fixedShared;
    if (shared > context_->limits().sharedOptinBytes)
      return invalidArgument(launch->symbol + ": " + std::to_string(shared) +
                             " bytes of shared memory a block; the device has " +
                             std::to_string(context_->limits().sharedOptinBytes));
    // The most of all launches of this function: it has one setting.
    int32_t most = 0;
    for (const std::unique_ptr<LoadedLaunch>& other : launches_) {
      if (other->function == launch->function) most = std::max(most, other->dynamicSharedBytes);
    }
    if (most > 0)
      KTUNE_TRY(context_->check(
          driver.funcSetAttribute(launch->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most),
          "cuFuncSetAttribute of dynamic shared memory", static_cast<size_t>(most)));
    if (product(launch->cluster) > kPortableCluster)
      KTUNE_TRY(context_->check(
          driver.funcSetAttribute(launch->function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
          "cuFuncSetAttribute of the cluster's size"));
  }
  return Status::ok();
}

Status CudaPlan::encode(TensorMap& map, void* address) {
  if (map.valid && map.address == address && map.symbols == symbols_) return Status::ok();
  const cache::TensorMapParameter& p = map.parameter;
  std::array<cuuint64_t, kMaxRank> extents{}, strides{};
  std::array<cuuint32_t, kMaxRank> box{}, steps{};
  for (size_t i = 0; i < p.extents.size(); ++i) {
    extents[i] = static_cast<cuuint64_t>(p.extents[i].evaluate(symbols_));
    box[i] = p.box[i];
    steps[i] = 1;
    if (i + 1 < p.extents.size()) strides[i] = static_cast<cuuint64_t>(p.stridesBytes[i].evaluate(symbols_));
  }
  map.valid = false;
  KTUNE_TRY(context_->check(
      context_->driver().tensorMapEncodeTiled(
          &map.encoded, static_cast<CUtensorMapDataType>(p.elementType), static_cast<cuuint32_t>(p.extents.size()),
          address, extents.data(), strides.data(), box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
          static_cast<CUtensorMapSwizzle>(p.swizzle), static_cast<CUtensorMapL2promotion>(p.l2Promotion),
          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
      "cuTensorMapEncodeTiled"));
  map.address = address;
  std::copy(symbols_.begin(), symbols_.end(), map.symbols.begin());
  map.valid = true;
  return Status::ok();
}

Status CudaPlan::launchOne(LoadedLaunch& launch, std::span<void* const> tensors, char* workspace, bool programmatic) {
  std::array<int64_t, 3> grid{};
  for (size_t i = 0; i < 3; ++i) grid[i] = launch.grid[i].evaluate(symbols_);
  if (std::any_of(grid.begin(), grid.end(), [](int64_t n) { return n <= 0; })) return Status::ok();
  for (size_t i = 0; i < 3; ++i) {
    if (grid[i] > context_->limits().maxGrid[i])
      return invalidArgument(launch.symbol + ": a grid of " + std::to_string(grid[i]) + " blocks in dimension " +
                             std::to_string(i) + "; the device takes " + std::to_string(context_->limits().maxGrid[i]));
    if (grid[i] % launch.cluster[i] != 0)
      return invalidArgument(launch.symbol + ": a grid of " + std::to_string(grid[i]) + " blocks in dimension " +
                             std::to_string(i) + " is no multiple of the cluster's " +
                             std::to_string(launch.cluster[i]));
  }
  for (Argument& argument : launch.arguments) {
    switch (argument.kind) {
      case Argument::Kind::kTensor:
        argument.value = reinterpret_cast<uintptr_t>(tensors[argument.index]);
        break;
      case Argument::Kind::kSymbol:
        argument.value = static_cast<uint64_t>(symbols_[argument.index]);
        break;
      case Argument::Kind::kWorkspace:
        argument.value = reinterpret_cast<uintptr_t>(workspace) + slotOffsets_[argument.index];
        break;
      case Argument::Kind::kTensorMap:
        KTUNE_TRY(encode(*argument.map, tensors[argument.index]));
        break;
      case Argument::Kind::kScalar:
        break;
    }
  }
  CUlaunchConfig config{};
  config.gridDimX = static_cast<unsigned>(grid[0]);
  config.gridDimY = static_cast<unsigned>(grid[1]);
  config.gridDimZ = static_cast<unsigned>(grid[2]);
  config.blockDimX = static_cast<unsigned>(launch.block[0]);
  config.blockDimY = static_cast<unsigned>(launch.block[1]);
  config.blockDimZ = static_cast<unsigned>(launch.block[2]);
  config.sharedMemBytes = static_cast<unsigned>(launch.dynamicSharedBytes);
  config.hStream = context_->stream();
  config.numAttrs = programmatic ? launch.attributeCount : launch.serialAttributeCount;
  config.attrs = config.numAttrs == 0 ? nullptr : launch.attributes.data();
  const CUresult result = context_->driver().launchKernelEx(&config, launch.function, launch.pointers.data(), nullptr);
  if (result == CUDA_SUCCESS) return Status::ok();
  return context_->check(result, ("launching " + launch.symbol).c_str());
}

Status CudaPlan::launchAll(std::span<void* const> tensors, std::span<const int64_t> symbolValues, void* workspace,
                           bool programmatic) {
  Current current(*context_);
  KTUNE_TRY(current.status());
  std::copy_n(symbolValues.begin(), symbols_.size(), symbols_.begin());
  layOutWorkspace(workspaces_, symbols_, slotOffsets_);
  for (const std::unique_ptr<LoadedLaunch>& launch : launches_)
    KTUNE_TRY(launchOne(*launch, tensors, static_cast<char*>(workspace), programmatic));
  return Status::ok();
}

}  // namespace ktune::runtime::cuda
