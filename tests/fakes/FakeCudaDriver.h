// A CUDA driver without a GPU: "device" memory is the host's, launches are recorded, time is virtual, and every
// function can be made to fail. One at a time in a process.
#pragma once

#include <elf.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/launch/devices/cuda/Driver.h"
#include "runtime/launch/devices/cuda/Nvml.h"

namespace ktune::test {

/// A cubin with these sections (name, bytes, flags) and nothing else.
struct FakeSection {
  std::string name;
  uint64_t bytes = 16;
  uint64_t flags = SHF_ALLOC;
};
inline std::string fakeCubin(const std::vector<FakeSection>& sections = {{".text.k", 64, SHF_ALLOC | SHF_EXECINSTR}}) {
  std::string names(1, '\0');
  std::vector<Elf64_Shdr> headers(1);
  const auto nameOf = [&names](const std::string& name) {
    const auto at = static_cast<Elf64_Word>(names.size());
    names += name;
    names += '\0';
    return at;
  };
  for (const FakeSection& s : sections) {
    Elf64_Shdr header{};
    header.sh_name = nameOf(s.name);
    header.sh_type = SHT_NOBITS;
    header.sh_flags = s.flags;
    header.sh_size = s.bytes;
    headers.push_back(header);
  }
  Elf64_Shdr strings{};
  strings.sh_name = nameOf(".shstrtab");
  strings.sh_type = SHT_STRTAB;
  strings.sh_offset = sizeof(Elf64_Ehdr);
  strings.sh_size = names.size();
  headers.push_back(strings);
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_machine = 190;
  header.e_shoff = sizeof header + names.size();
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = static_cast<Elf64_Half>(headers.size());
  header.e_shstrndx = static_cast<Elf64_Half>(headers.size() - 1);
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += names;
  bytes.append(reinterpret_cast<const char*>(headers.data()), headers.size() * sizeof(Elf64_Shdr));
  return bytes;
}

struct RecordedLaunch {
  std::string kernel;
  unsigned grid[3] = {}, block[3] = {};
  unsigned sharedBytes = 0;
  std::vector<CUlaunchAttribute> attributes;
  std::vector<std::string> arguments;  ///< The bytes of each.
  bool captured = false;
};

struct RecordedMap {
  CUtensorMapDataType type{};
  unsigned rank = 0;
  void* address = nullptr;
  std::vector<uint64_t> extents, strides;
  std::vector<uint32_t> box, steps;
  CUtensorMapInterleave interleave{};
  CUtensorMapSwizzle swizzle{};
  CUtensorMapL2promotion l2Promotion{};
  CUtensorMapFloatOOBfill fill{};
};

class FakeCudaDriver {
 public:
  FakeCudaDriver() : driver(table()) {
    instance() = this;
    runtime::cuda::overrideDriverForTests(&driver);
    runtime::cuda::overrideNvmlForTests(&nvml_);
  }
  ~FakeCudaDriver() {
    runtime::cuda::overrideNvmlForTests(nullptr);
    runtime::cuda::overrideDriverForTests(nullptr);
    instance() = nullptr;
  }
  FakeCudaDriver(const FakeCudaDriver&) = delete;
  FakeCudaDriver& operator=(const FakeCudaDriver&) = delete;

  runtime::cuda::Driver driver;

  // --- What the fake device is.
  std::string product = "NVIDIA H200";
  int deviceCount = 1;
  std::map<int, int> attributes = {
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
  };
  /// Parameter sizes of each kernel that every module has.
  std::map<std::string, std::vector<size_t>> kernels = {{"ktune_empty", {}}};
  std::map<int, int> functionAttributes = {{CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
                                           {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 1024}};
  double launchNs = 5000;  ///< Of virtual time.
  double copyBytesPerNs = 2000;
  std::function<void(const RecordedLaunch&)> onLaunch;
  std::vector<runtime::cuda::GpuProcess> processes;

  /// Member of DriverTable.def -> what it returns instead of doing anything.
  std::map<std::string, CUresult> faults;

  // --- What happened.
  std::vector<RecordedLaunch> launches;
  std::vector<RecordedMap> maps;
  std::vector<std::pair<int, int>> functionSettings;
  std::map<std::string, int> calls;
  int64_t liveAllocations = 0, liveModules = 0, liveContexts = 0, liveEvents = 0, liveGraphs = 0, liveStreams = 0;
  int64_t pinnedBytes = 0;
  int contextDepth = 0;

 private:
  struct Function {
    std::string name;
    std::vector<size_t> parameters;
  };
  std::map<std::string, std::unique_ptr<Function>> functions_;
  std::vector<std::unique_ptr<double>> kept_;  ///< What graphs (launches) and events (times) are; ends with the fake.
  bool capturing_ = false;
  int capturedLaunches_ = 0;
  double now_ = 0;
  runtime::cuda::NvmlTable nvml_ = nvmlTable();

  static FakeCudaDriver*& instance() {
    static FakeCudaDriver* fake = nullptr;
    return fake;
  }
  double* keep(double value) { return kept_.emplace_back(std::make_unique<double>(value)).get(); }
  // Counts the call; true when it shall fail with RESULT.
  bool fails(const char* member, CUresult& result) {
    ++calls[member];
    const auto found = faults.find(member);
    if (found == faults.end()) return false;
    result = found->second;
    return true;
  }

  static runtime::cuda::NvmlTable nvmlTable() {
    using Table = runtime::cuda::NvmlTable;
    Table table;
    table.deviceGetHandleByUUID = [](const char*, Table::Handle* device) {
      *device = reinterpret_cast<Table::Handle>(uintptr_t{1});
      return 0;
    };
    table.systemGetDriverVersion = [](char* version, unsigned length) {
      std::strncpy(version, "580.65.06", length);
      return 0;
    };
    table.deviceGetComputeRunningProcesses = [](Table::Handle, unsigned* count, Table::Process* list) {
      const auto& all = instance()->processes;
      const unsigned room = std::exchange(*count, static_cast<unsigned>(all.size()));
      if (room < all.size()) return 7;
      for (size_t i = 0; i < all.size(); ++i) list[i] = {static_cast<unsigned>(all[i].pid), all[i].memoryBytes, 0, 0};
      return 0;
    };
    table.deviceGetClockInfo = [](Table::Handle, int type, unsigned* mhz) {
      *mhz = type == 1 ? 1980 : 0;
      return 0;
    };
    table.deviceGetPowerUsage = [](Table::Handle, unsigned* milliwatts) {
      *milliwatts = 345600;
      return 0;
    };
    table.deviceGetTemperature = [](Table::Handle, int, unsigned* celsius) {
      *celsius = 51;
      return 0;
    };
    table.deviceGetClocksReasons = [](Table::Handle, unsigned long long* reasons) {
      *reasons = 0x1 | 0x4 | 0x20;
      return 0;
    };
    return table;
  }

  static runtime::cuda::Driver table();
};

#define KTUNE_FAKE(member)            \
  FakeCudaDriver& fake = *instance(); \
  CUresult fault = CUDA_SUCCESS;      \
  if (fake.fails(#member, fault)) return fault

inline runtime::cuda::Driver FakeCudaDriver::table() {
  runtime::cuda::Driver d;
  d.init = [](unsigned) {
    KTUNE_FAKE(init);
    return CUDA_SUCCESS;
  };
  d.driverGetVersion = [](int* version) {
    KTUNE_FAKE(driverGetVersion);
    *version = 13000;
    return CUDA_SUCCESS;
  };
  d.getErrorName = [](CUresult result, const char** text) {
    *text = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
  };
  d.getErrorString = [](CUresult, const char** text) {
    *text = "a fault of the test";
    return CUDA_SUCCESS;
  };
  d.deviceGetCount = [](int* count) {
    KTUNE_FAKE(deviceGetCount);
    *count = fake.deviceCount;
    return CUDA_SUCCESS;
  };
  d.deviceGet = [](CUdevice* device, int ordinal) {
    KTUNE_FAKE(deviceGet);
    *device = ordinal;
    return CUDA_SUCCESS;
  };
  d.deviceGetName = [](char* name, int length, CUdevice) {
    KTUNE_FAKE(deviceGetName);
    std::strncpy(name, fake.product.c_str(), static_cast<size_t>(length));
    return CUDA_SUCCESS;
  };
  d.deviceGetAttribute = [](int* value, CUdevice_attribute which, CUdevice) {
    KTUNE_FAKE(deviceGetAttribute);
    const auto found = fake.attributes.find(which);
    if (found == fake.attributes.end()) return CUDA_ERROR_INVALID_VALUE;
    *value = found->second;
    return CUDA_SUCCESS;
  };
  d.deviceTotalMem = [](size_t* bytes, CUdevice) {
    KTUNE_FAKE(deviceTotalMem);
    *bytes = size_t{141} << 30;
    return CUDA_SUCCESS;
  };
  d.deviceGetPCIBusId = [](char* id, int length, CUdevice) {
    KTUNE_FAKE(deviceGetPCIBusId);
    std::strncpy(id, "0000:18:00.0", static_cast<size_t>(length));
    return CUDA_SUCCESS;
  };
  d.deviceGetUuid = [](CUuuid* uuid, CUdevice device) {
    KTUNE_FAKE(deviceGetUuid);
    for (size_t i = 0; i < sizeof uuid->bytes; ++i) uuid->bytes[i] = static_cast<char>(0xf0 + i);
    uuid->bytes[15] = static_cast<char>(device);
    return CUDA_SUCCESS;
  };

  d.ctxCreate = [](CUcontext* context, unsigned, CUdevice) {
    KTUNE_FAKE(ctxCreate);
    *context = reinterpret_cast<CUcontext>(uintptr_t{0x10});
    ++fake.liveContexts;
    ++fake.contextDepth;
    return CUDA_SUCCESS;
  };
  d.ctxDestroy = [](CUcontext) {
    KTUNE_FAKE(ctxDestroy);
    --fake.liveContexts;
    return CUDA_SUCCESS;
  };
  d.ctxPushCurrent = [](CUcontext) {
    KTUNE_FAKE(ctxPushCurrent);
    ++fake.contextDepth;
    return CUDA_SUCCESS;
  };
  d.ctxPopCurrent = [](CUcontext*) {
    KTUNE_FAKE(ctxPopCurrent);
    --fake.contextDepth;
    return CUDA_SUCCESS;
  };
  d.ctxSynchronize = [] {
    KTUNE_FAKE(ctxSynchronize);
    return CUDA_SUCCESS;
  };
  d.ctxSetLimit = [](CUlimit, size_t) {
    KTUNE_FAKE(ctxSetLimit);
    return CUDA_SUCCESS;
  };
  d.ctxResetPersistingL2Cache = [] {
    KTUNE_FAKE(ctxResetPersistingL2Cache);
    return CUDA_SUCCESS;
  };

  d.moduleLoadData = [](CUmodule* module, const void*) {
    KTUNE_FAKE(moduleLoadData);
    *module = reinterpret_cast<CUmodule>(uintptr_t{0x20});
    ++fake.liveModules;
    return CUDA_SUCCESS;
  };
  d.moduleUnload = [](CUmodule) {
    KTUNE_FAKE(moduleUnload);
    --fake.liveModules;
    return CUDA_SUCCESS;
  };
  d.moduleGetFunction = [](CUfunction* function, CUmodule, const char* name) {
    KTUNE_FAKE(moduleGetFunction);
    const auto found = fake.kernels.find(name);
    if (found == fake.kernels.end()) return CUDA_ERROR_NOT_FOUND;
    auto& slot = fake.functions_[name];
    if (slot == nullptr) slot.reset(new Function{name, found->second});
    *function = reinterpret_cast<CUfunction>(slot.get());
    return CUDA_SUCCESS;
  };
  d.funcGetAttribute = [](int* value, CUfunction_attribute which, CUfunction) {
    KTUNE_FAKE(funcGetAttribute);
    *value = fake.functionAttributes[which];
    return CUDA_SUCCESS;
  };
  d.funcSetAttribute = [](CUfunction, CUfunction_attribute which, int value) {
    KTUNE_FAKE(funcSetAttribute);
    fake.functionSettings.emplace_back(which, value);
    return CUDA_SUCCESS;
  };
  d.funcGetParamInfo = [](CUfunction function, size_t index, size_t* offset, size_t* bytes) {
    KTUNE_FAKE(funcGetParamInfo);
    const auto& parameters = reinterpret_cast<Function*>(function)->parameters;
    if (index >= parameters.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = 0;
    *bytes = parameters[index];
    return CUDA_SUCCESS;
  };
  d.funcLoad = [](CUfunction) {
    KTUNE_FAKE(funcLoad);
    return CUDA_SUCCESS;
  };
  d.launchKernelEx = [](const CUlaunchConfig* config, CUfunction function, void** arguments, void**) {
    KTUNE_FAKE(launchKernelEx);
    const auto& f = *reinterpret_cast<Function*>(function);
    RecordedLaunch launch;
    launch.kernel = f.name;
    const unsigned grid[] = {config->gridDimX, config->gridDimY, config->gridDimZ};
    const unsigned block[] = {config->blockDimX, config->blockDimY, config->blockDimZ};
    std::copy_n(grid, 3, launch.grid);
    std::copy_n(block, 3, launch.block);
    launch.sharedBytes = config->sharedMemBytes;
    for (unsigned i = 0; i < config->numAttrs; ++i) launch.attributes.push_back(config->attrs[i]);
    for (size_t i = 0; i < f.parameters.size(); ++i)
      launch.arguments.emplace_back(static_cast<const char*>(arguments[i]), f.parameters[i]);
    launch.captured = fake.capturing_;
    if (fake.capturing_) {
      ++fake.capturedLaunches_;
    } else {
      fake.now_ += fake.launchNs;
    }
    if (fake.onLaunch) fake.onLaunch(launch);
    fake.launches.push_back(std::move(launch));
    return CUDA_SUCCESS;
  };
  d.tensorMapEncodeTiled = [](CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                              const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                              const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                              CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill fill) {
    KTUNE_FAKE(tensorMapEncodeTiled);
    fake.maps.push_back({type,
                         rank,
                         address,
                         {extents, extents + rank},
                         {strides, strides + rank - 1},
                         {box, box + rank},
                         {steps, steps + rank},
                         interleave,
                         swizzle,
                         l2Promotion,
                         fill});
    std::memset(map, static_cast<int>(fake.maps.size()), sizeof *map);
    return CUDA_SUCCESS;
  };

  d.memGetInfo = [](size_t* free, size_t* total) {
    KTUNE_FAKE(memGetInfo);
    *free = *total = size_t{1} << 30;
    return CUDA_SUCCESS;
  };
  d.memAlloc = [](CUdeviceptr* address, size_t bytes) {
    KTUNE_FAKE(memAlloc);
    void* const block = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (block == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = reinterpret_cast<CUdeviceptr>(block);
    ++fake.liveAllocations;
    return CUDA_SUCCESS;
  };
  d.memFree = [](CUdeviceptr address) {
    KTUNE_FAKE(memFree);
    std::free(reinterpret_cast<void*>(address));
    --fake.liveAllocations;
    return CUDA_SUCCESS;
  };
  d.memHostAlloc = [](void** address, size_t bytes, unsigned) {
    KTUNE_FAKE(memHostAlloc);
    *address = std::malloc(bytes);
    fake.pinnedBytes += static_cast<int64_t>(bytes);
    return CUDA_SUCCESS;
  };
  d.memFreeHost = [](void* address) {
    KTUNE_FAKE(memFreeHost);
    std::free(address);
    return CUDA_SUCCESS;
  };
  d.memcpyHtoDAsync = [](CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    KTUNE_FAKE(memcpyHtoDAsync);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;  // Of the default stream ours knows nothing.
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return CUDA_SUCCESS;
  };
  d.memcpyDtoHAsync = [](void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
    KTUNE_FAKE(memcpyDtoHAsync);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    std::memcpy(to, reinterpret_cast<void*>(from), bytes);
    return CUDA_SUCCESS;
  };
  d.memcpyDtoDAsync = [](CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
    KTUNE_FAKE(memcpyDtoDAsync);
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
    fake.now_ += static_cast<double>(bytes) / fake.copyBytesPerNs;
    return CUDA_SUCCESS;
  };

  d.streamCreate = [](CUstream* stream, unsigned) {
    KTUNE_FAKE(streamCreate);
    *stream = reinterpret_cast<CUstream>(uintptr_t{0x30});
    ++fake.liveStreams;
    return CUDA_SUCCESS;
  };
  d.streamDestroy = [](CUstream) {
    KTUNE_FAKE(streamDestroy);
    --fake.liveStreams;
    return CUDA_SUCCESS;
  };
  d.streamSynchronize = [](CUstream) {
    KTUNE_FAKE(streamSynchronize);
    return CUDA_SUCCESS;
  };
  d.streamBeginCapture = [](CUstream, CUstreamCaptureMode) {
    KTUNE_FAKE(streamBeginCapture);
    fake.capturing_ = true;
    fake.capturedLaunches_ = 0;
    return CUDA_SUCCESS;
  };
  d.streamEndCapture = [](CUstream, CUgraph* graph) {
    KTUNE_FAKE(streamEndCapture);
    fake.capturing_ = false;
    *graph = reinterpret_cast<CUgraph>(fake.keep(fake.capturedLaunches_));
    ++fake.liveGraphs;
    return CUDA_SUCCESS;
  };
  d.graphInstantiate = [](CUgraphExec* executable, CUgraph graph, unsigned long long) {
    KTUNE_FAKE(graphInstantiate);
    *executable = reinterpret_cast<CUgraphExec>(fake.keep(*reinterpret_cast<double*>(graph)));
    ++fake.liveGraphs;
    return CUDA_SUCCESS;
  };
  d.graphUpload = [](CUgraphExec, CUstream) {
    KTUNE_FAKE(graphUpload);
    return CUDA_SUCCESS;
  };
  d.graphLaunch = [](CUgraphExec executable, CUstream) {
    KTUNE_FAKE(graphLaunch);
    fake.now_ += fake.launchNs * *reinterpret_cast<double*>(executable);
    return CUDA_SUCCESS;
  };
  d.graphExecDestroy = [](CUgraphExec) {
    KTUNE_FAKE(graphExecDestroy);
    --fake.liveGraphs;
    return CUDA_SUCCESS;
  };
  d.graphDestroy = [](CUgraph) {
    KTUNE_FAKE(graphDestroy);
    --fake.liveGraphs;
    return CUDA_SUCCESS;
  };

  d.eventCreate = [](CUevent* event, unsigned) {
    KTUNE_FAKE(eventCreate);
    *event = reinterpret_cast<CUevent>(fake.keep(0));
    ++fake.liveEvents;
    return CUDA_SUCCESS;
  };
  d.eventRecord = [](CUevent event, CUstream) {
    KTUNE_FAKE(eventRecord);
    *reinterpret_cast<double*>(event) = fake.now_;
    return CUDA_SUCCESS;
  };
  d.eventSynchronize = [](CUevent) {
    KTUNE_FAKE(eventSynchronize);
    return CUDA_SUCCESS;
  };
  d.eventElapsedTime = [](float* ms, CUevent start, CUevent end) {
    KTUNE_FAKE(eventElapsedTime);
    *ms = static_cast<float>((*reinterpret_cast<double*>(end) - *reinterpret_cast<double*>(start)) * 1e-6);
    return CUDA_SUCCESS;
  };
  d.eventDestroy = [](CUevent) {
    KTUNE_FAKE(eventDestroy);
    --fake.liveEvents;
    return CUDA_SUCCESS;
  };
  return d;
}

#undef KTUNE_FAKE

}  // namespace ktune::test
