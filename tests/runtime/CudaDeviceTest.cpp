// The cuda device with a driver that is a table of the test's own. tests/gpu has what only a GPU can show.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <numeric>

#include "base/File.h"
#include "fakes/FakeCudaDriver.h"
#include "runtime/launch/devices/cuda/Cubin.h"
#include "runtime/launch/devices/cuda/CudaDevice.h"
#include "runtime/launch/devices/cuda/CudaDot.h"
#include "runtime/launch/devices/cuda/CudaInspector.h"
#include "runtime/launch/devices/cuda/CudaTiming.h"
#include "runtime/launch/devices/cuda/Lease.h"
#include "runtime/nvrtc/Nvrtc.h"

namespace ktune::runtime {
namespace {

using cuda::Lease;
using cuda::LeaseProbes;
using test::fakeCubin;
using test::FakeCudaDriver;

std::unique_ptr<Device> open(const DeviceOptions& options = {}) {
  Result<std::unique_ptr<Device>> device = openDevice("cuda:0", options);
  EXPECT_TRUE(device) << device.status().toString();
  return device ? std::move(*device) : nullptr;
}

cache::Plan planOf(std::vector<cache::Launch> launches, int tensors, int symbols, std::string cubin = fakeCubin()) {
  cache::Plan plan;
  cache::Artefact artefact;
  artefact.kind = cache::ArtefactKind::kCubin;
  artefact.digest = digestOf(cubin);
  artefact.bytes = std::move(cubin);
  plan.artefacts.push_back(std::move(artefact));
  plan.launches = std::move(launches);
  plan.tensorCount = tensors;
  plan.symbolCount = symbols;
  return plan;
}

cache::Launch launchOf(const std::string& symbol, std::vector<cache::LaunchParameter> parameters) {
  cache::Launch launch;
  launch.symbol = symbol;
  launch.parameters = std::move(parameters);
  launch.block = {128, 1, 1};
  return launch;
}

template <typename T>
T as(const std::string& bytes) {
  T value{};
  EXPECT_EQ(bytes.size(), sizeof value);
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof value));
  return value;
}

void* address(uintptr_t value) {
  return reinterpret_cast<void*>(value);
}

// --------------------------------------------------------------------------------------------------------- identity

TEST(CudaDevices, NoDriverIsAnEmptyList) {
  cuda::overrideDriverForTests(notFound("there is no CUDA driver"));
  EXPECT_TRUE(cuda::listCudaFacts().empty());
  for (const DeviceInfo& info : listDevices()) EXPECT_NE(info.target.kind, schedule::DeviceKind::kCuda);
  const Result<std::unique_ptr<Device>> device = openDevice("cuda:0");
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code(), StatusCode::kNotFound);
  EXPECT_NE(device.error().message().find("no CUDA driver"), std::string::npos);
  cuda::overrideDriverForTests(nullptr);
}

TEST(CudaDevices, IdentityTargetAndNames) {
  FakeCudaDriver fake;
  fake.deviceCount = 2;
  const std::vector<DeviceInfo> devices = listDevices();
  ASSERT_GE(devices.size(), 2u);
  EXPECT_EQ(devices[0].name, "cuda:0");  // Before the cpu.
  EXPECT_EQ(devices[1].name, "cuda:1");
  const schedule::Target& target = devices[0].target;
  EXPECT_EQ(target.kind, schedule::DeviceKind::kCuda);
  EXPECT_EQ(target.hardware, "cuda;NVIDIA H200;sm=9.0;sms=132;mig=none;l2=62914560");
  EXPECT_EQ(target.hardware, devices[1].target.hardware);
  EXPECT_EQ(target.architecture, "sm_90a");
  EXPECT_EQ(target.cores, 132);
  EXPECT_EQ(target.vectorBytes, 16);
  EXPECT_EQ(target.vectorRegisters, 255);
  EXPECT_EQ(target.l1Bytes, 232448u);
  EXPECT_EQ(target.l2Bytes, 62914560u);
  EXPECT_EQ(target.l3Bytes, 0u);
  EXPECT_EQ(target.memoryBytes, uint64_t{141} << 30);
  EXPECT_EQ(devices[0].driver, "CUDA driver 580.65.06 (13.0)");
  EXPECT_EQ(devices[0].description, "NVIDIA H200, 132 SMs, compute capability 9.0, 141 GiB");
  EXPECT_EQ(cuda::listCudaFacts()[0].uuid, "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe00");

  const Result<std::unique_ptr<Device>> byKind = openDevice("cuda");
  ASSERT_TRUE(byKind);
  EXPECT_EQ((*byKind)->name(), "cuda:0");
  EXPECT_FALSE((*byKind)->sharesHostMemory());
  EXPECT_EQ((*byKind)->target(), target);
  for (const char* wrong : {"cuda:2", "cuda:", "cuda:-1", "cuda:0x"}) {
    const Result<std::unique_ptr<Device>> device = openDevice(wrong);
    ASSERT_FALSE(device) << wrong;
    EXPECT_EQ(device.error().code(), StatusCode::kNotFound) << wrong;
  }
}

TEST(CudaDevices, MigProfileIsPartOfTheIdentity) {
  FakeCudaDriver fake;
  fake.product = "NVIDIA H200 MIG 1g.18gb";
  fake.attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = 16;
  const std::vector<cuda::CudaFacts> facts = cuda::listCudaFacts();
  ASSERT_EQ(facts.size(), 1u);
  EXPECT_EQ(cuda::cudaTarget(facts[0]).hardware, "cuda;NVIDIA H200;sm=9.0;sms=16;mig=1g.18gb;l2=62914560");
  EXPECT_TRUE(facts[0].uuid.starts_with("MIG-")) << facts[0].uuid;
}

TEST(CudaDevices, Architectures) {
  EXPECT_EQ(cuda::cudaArchitecture(8, 0), "sm_80");
  EXPECT_EQ(cuda::cudaArchitecture(8, 6), "sm_86");
  EXPECT_EQ(cuda::cudaArchitecture(8, 9), "sm_89");
  EXPECT_EQ(cuda::cudaArchitecture(9, 0), "sm_90a");
  EXPECT_EQ(cuda::cudaArchitecture(10, 0), "sm_100a");
  EXPECT_EQ(cuda::cudaArchitecture(10, 3), "sm_103a");
  EXPECT_EQ(cuda::cudaArchitecture(12, 0), "sm_120");
  EXPECT_EQ(cuda::cudaArchitecture(12, 1), "sm_121");
  EXPECT_EQ(cuda::cudaArchitecture(7, 5), "sm_75");
}

TEST(CudaDriver, MissingSymbolIsNamedWithTheVersion) {
  static const auto version = +[](int* value) {
    *value = 11040;
    return CUDA_SUCCESS;
  };
  const auto lookup = [](const std::string& missing) {
    return [missing](const char* symbol) -> void* {
      if (symbol == missing) return nullptr;
      return reinterpret_cast<void*>(version);  // Only this one is called.
    };
  };
  const Result<cuda::Driver> driver = cuda::resolveDriver(lookup("cuLaunchKernelEx"));
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().code(), StatusCode::kUnsupported);
  EXPECT_NE(driver.error().message().find("(11.4) has no cuLaunchKernelEx"), std::string::npos)
      << driver.error().message();
  const Result<cuda::Driver> without = cuda::resolveDriver(lookup("cuFuncGetParamInfo"));
  ASSERT_TRUE(without) << without.error().message();
  EXPECT_EQ(without->funcGetParamInfo, nullptr);
  std::vector<std::string> asked;
  (void)cuda::resolveDriver([&asked](const char* symbol) -> void* {
    asked.emplace_back(symbol);
    return nullptr;
  });
  for (const char* symbol : {"cuMemAlloc_v2", "cuCtxCreate_v2", "cuGraphInstantiateWithFlags", "cuEventElapsedTime",
                             "cuStreamBeginCapture_v2", "cuDeviceGetUuid_v2"})
    EXPECT_NE(std::find(asked.begin(), asked.end(), symbol), asked.end()) << symbol;
}

TEST(CudaDriver, ErrorsHaveCodes) {
  FakeCudaDriver fake;
  const struct {
    CUresult result;
    StatusCode code;
    bool fatal;
    const char* text;
  } cases[] = {
      {CUDA_ERROR_OUT_OF_MEMORY, StatusCode::kResourceExhausted, false, "OUT_OF_MEMORY"},
      {CUDA_ERROR_INVALID_VALUE, StatusCode::kInvalidArgument, false, "a fault of the test"},
      {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, StatusCode::kInvalidArgument, false, "(701"},
      {CUDA_ERROR_NOT_FOUND, StatusCode::kNotFound, false, "(500"},
      {CUDA_ERROR_INVALID_IMAGE, StatusCode::kCorrupt, false, "(200"},
      {CUDA_ERROR_NO_BINARY_FOR_GPU, StatusCode::kUnsupported, false, "another architecture"},
      {CUDA_ERROR_ILLEGAL_ADDRESS, StatusCode::kUnavailable, true, "illegal address"},
      {CUDA_ERROR_LAUNCH_FAILED, StatusCode::kUnavailable, true, "a kernel crashed"},
      {CUDA_ERROR_MISALIGNED_ADDRESS, StatusCode::kUnavailable, true, "misaligned"},
      {CUDA_ERROR_ILLEGAL_INSTRUCTION, StatusCode::kUnavailable, true, "illegal instruction"},
      {CUDA_ERROR_LAUNCH_TIMEOUT, StatusCode::kUnavailable, true, "longer than"},
      {CUDA_ERROR_DEVICE_UNAVAILABLE, StatusCode::kUnavailable, true, "device is lost"},
      {CUDA_ERROR_ECC_UNCORRECTABLE, StatusCode::kUnavailable, true, "could not be corrected"},
      {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, StatusCode::kUnavailable, false, "restart the machine"},
      {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, StatusCode::kInternal, false, "(901"},
  };
  for (const auto& c : cases) {
    const Status status = cuda::statusOf(fake.driver, c.result, "doing it");
    EXPECT_EQ(status.code(), c.code) << status.toString();
    EXPECT_EQ(cuda::isFatal(c.result), c.fatal) << status.toString();
    EXPECT_NE(status.message().find(c.text), std::string::npos) << status.toString();
    EXPECT_TRUE(status.message().starts_with("doing it: ")) << status.toString();
  }
  EXPECT_TRUE(cuda::statusOf(fake.driver, CUDA_SUCCESS, "doing it").isOk());
}

// -------------------------------------------------------------------------------------------------------- launching

TEST(CudaPlan, TwoLaunchesInOrderWithTheirWholeForm) {
  FakeCudaDriver fake;
  fake.kernels["first"] = {8, 2, 8, 8};
  fake.kernels["second"] = {8, 8, 8};
  const std::unique_ptr<Device> device = open();
  ASSERT_NE(device, nullptr);
  cache::Launch first =
      launchOf("first", {cache::PointerParameter{1}, cache::ScalarParameter{std::string("\x34\x12", 2)},
                         cache::SymbolParameter{0}, cache::WorkspaceParameter{1}});
  first.grid = {cache::Extent{1, 0, 16}, cache::Extent{6, -1, 1}, cache::Extent{3, 1, 2}};
  first.block = {32, 4, 2};
  first.cluster = {2, 3, 1};
  first.dynamicSharedBytes = 100000;
  first.attributes = {{"programmatic_stream_serialization", 1}, {"priority", -2}, {"cooperative", 0}};
  cache::Launch second =
      launchOf("second", {cache::WorkspaceParameter{0}, cache::PointerParameter{0}, cache::PointerParameter{2}});
  second.attributes = {{"cooperative", 1}};
  cache::Plan plan = planOf({first, second}, 3, 2);
  plan.workspaces = {{cache::WorkspaceKind::kScratch, 64, cache::Extent{10, 0, 1}},
                     {cache::WorkspaceKind::kZeroed, 1024, cache::Extent{256, -1, 1}}};
  Result<std::unique_ptr<LoadedPlan>> loaded = device->load(plan);
  ASSERT_TRUE(loaded) << loaded.error().toString();

  const std::vector<int64_t> symbols = {120, 7};
  EXPECT_EQ((*loaded)->workspaceBytes(symbols), 2048u + 256u);
  const std::vector<WorkspaceSlot> slots = (*loaded)->workspaceSlots(symbols);
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_EQ(slots[1].offset, 2048u);
  EXPECT_EQ(slots[1].kind, cache::WorkspaceKind::kZeroed);

  void* const tensors[] = {address(0x1000), address(0x2000), address(0x3000)};
  const Status ran = (*loaded)->run(tensors, symbols, address(0x10000));
  ASSERT_TRUE(ran.isOk()) << ran.toString();
  ASSERT_EQ(fake.launches.size(), 2u);
  const test::RecordedLaunch& one = fake.launches[0];
  EXPECT_EQ(one.kernel, "first");
  EXPECT_EQ(one.grid[0], 8u);  // ceil(120 / 16)
  EXPECT_EQ(one.grid[1], 6u);
  EXPECT_EQ(one.grid[2], 11u);  // ceil(3 * 7 / 2)
  EXPECT_EQ(one.block[0], 32u);
  EXPECT_EQ(one.block[1], 4u);
  EXPECT_EQ(one.block[2], 2u);
  EXPECT_EQ(one.sharedBytes, 100000u);
  ASSERT_EQ(one.arguments.size(), 4u);
  EXPECT_EQ(as<uint64_t>(one.arguments[0]), 0x2000u);
  EXPECT_EQ(as<uint16_t>(one.arguments[1]), 0x1234u);
  EXPECT_EQ(as<int64_t>(one.arguments[2]), 120);
  EXPECT_EQ(as<uint64_t>(one.arguments[3]), 0x10000u + 2048u);
  ASSERT_EQ(one.attributes.size(), 3u);
  EXPECT_EQ(one.attributes[0].id, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  EXPECT_EQ(one.attributes[0].value.clusterDim.x, 2u);
  EXPECT_EQ(one.attributes[0].value.clusterDim.y, 3u);
  EXPECT_EQ(one.attributes[0].value.clusterDim.z, 1u);
  EXPECT_EQ(one.attributes[1].id, CU_LAUNCH_ATTRIBUTE_PRIORITY);
  EXPECT_EQ(one.attributes[1].value.priority, -2);
  EXPECT_EQ(one.attributes[2].id, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
  EXPECT_EQ(one.attributes[2].value.programmaticStreamSerializationAllowed, 1);

  const test::RecordedLaunch& two = fake.launches[1];
  EXPECT_EQ(two.kernel, "second");
  EXPECT_EQ(two.grid[0] * two.grid[1] * two.grid[2], 1u);
  ASSERT_EQ(two.arguments.size(), 3u);
  EXPECT_EQ(as<uint64_t>(two.arguments[0]), 0x10000u);
  EXPECT_EQ(as<uint64_t>(two.arguments[1]), 0x1000u);
  EXPECT_EQ(as<uint64_t>(two.arguments[2]), 0x3000u);
  ASSERT_EQ(two.attributes.size(), 1u);
  EXPECT_EQ(two.attributes[0].id, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);

  // Shared memory beyond the usual 48 KiB was asked for when it was loaded.
  EXPECT_NE(std::find(fake.functionSettings.begin(), fake.functionSettings.end(),
                      std::pair<int, int>(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000)),
            fake.functionSettings.end());
  // No size, no launch.
  const std::vector<int64_t> none = {0, 7};
  fake.launches.clear();
  ASSERT_TRUE((*loaded)->run(tensors, none, address(0x10000)).isOk());
  ASSERT_EQ(fake.launches.size(), 1u);
  EXPECT_EQ(fake.launches[0].kernel, "second");
  // A grid that clusters do not tile.
  const std::vector<int64_t> odd = {100, 7};
  const Status refused = (*loaded)->run(tensors, odd, address(0x10000));
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("multiple of the cluster"), std::string::npos) << refused.message();
}

TEST(CudaPlan, LargeClustersNeedConsent) {
  FakeCudaDriver fake;
  fake.kernels["k"] = {};
  const std::unique_ptr<Device> device = open();
  cache::Launch launch = launchOf("k", {});
  launch.cluster = {16, 1, 1};
  launch.grid[0] = {32, -1, 1};
  ASSERT_TRUE(device->load(planOf({launch}, 0, 0)));
  EXPECT_NE(std::find(fake.functionSettings.begin(), fake.functionSettings.end(),
                      std::pair<int, int>(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)),
            fake.functionSettings.end());
  launch.cluster = {32, 1, 1};
  EXPECT_EQ(device->load(planOf({launch}, 0, 0)).status().code(), StatusCode::kInvalidArgument);
}

TEST(CudaPlan, TensorMaps) {
  FakeCudaDriver fake;
  fake.kernels["k"] = {128, 8};
  const std::unique_ptr<Device> device = open();
  cache::TensorMapParameter map;
  map.tensor = 1;
  map.extents = {cache::Extent{64, -1, 1}, cache::Extent{1, 0, 1}};
  map.stridesBytes = {cache::Extent{128, -1, 1}};
  map.box = {64, 16};
  map.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  map.elementType = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  map.l2Promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  Result<std::unique_ptr<LoadedPlan>> loaded =
      device->load(planOf({launchOf("k", {map, cache::PointerParameter{0}})}, 2, 1));
  ASSERT_TRUE(loaded) << loaded.error().toString();
  void* const tensors[] = {address(0x1000), address(0x2000)};
  const std::vector<int64_t> symbols = {33};
  ASSERT_TRUE((*loaded)->run(tensors, symbols, nullptr).isOk());
  ASSERT_EQ(fake.maps.size(), 1u);
  const test::RecordedMap& made = fake.maps[0];
  EXPECT_EQ(made.type, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
  EXPECT_EQ(made.rank, 2u);
  EXPECT_EQ(made.address, address(0x2000));
  EXPECT_EQ(made.extents, (std::vector<uint64_t>{64, 33}));
  EXPECT_EQ(made.strides, (std::vector<uint64_t>{128}));
  EXPECT_EQ(made.box, (std::vector<uint32_t>{64, 16}));
  EXPECT_EQ(made.steps, (std::vector<uint32_t>{1, 1}));
  EXPECT_EQ(made.interleave, CU_TENSOR_MAP_INTERLEAVE_NONE);
  EXPECT_EQ(made.swizzle, CU_TENSOR_MAP_SWIZZLE_128B);
  EXPECT_EQ(made.l2Promotion, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  EXPECT_EQ(made.fill, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  ASSERT_EQ(fake.launches.size(), 1u);
  EXPECT_EQ(fake.launches[0].arguments[0], std::string(128, '\x01'));  // By value.

  ASSERT_TRUE((*loaded)->run(tensors, symbols, nullptr).isOk());
  EXPECT_EQ(fake.maps.size(), 1u);  // The same address and sizes: kept.
  void* const others[] = {address(0x1000), address(0x4000)};
  ASSERT_TRUE((*loaded)->run(others, symbols, nullptr).isOk());
  const std::vector<int64_t> more = {34};
  ASSERT_TRUE((*loaded)->run(others, more, nullptr).isOk());
  ASSERT_EQ(fake.maps.size(), 3u);
  EXPECT_EQ(fake.maps[1].address, address(0x4000));
  EXPECT_EQ(fake.maps[2].extents[1], 34u);
  EXPECT_EQ(fake.launches.back().arguments[0], std::string(128, '\x03'));

  fake.faults["tensorMapEncodeTiled"] = CUDA_ERROR_INVALID_VALUE;
  const std::vector<int64_t> less = {3};
  EXPECT_EQ((*loaded)->run(others, less, nullptr).code(), StatusCode::kInvalidArgument);
  fake.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 8;
  const std::unique_ptr<Device> ampere = open();
  EXPECT_EQ(ampere->load(planOf({launchOf("k", {map, cache::PointerParameter{0}})}, 2, 1)).status().code(),
            StatusCode::kUnsupported);
}

TEST(CudaPlan, RefusesWhatItCannotRun) {
  FakeCudaDriver fake;
  fake.kernels["k"] = {8};
  const std::unique_ptr<Device> device = open();
  const auto refusal = [&](const cache::Plan& plan) { return device->load(plan).status(); };
  const cache::Launch good = launchOf("k", {cache::PointerParameter{0}});
  ASSERT_TRUE(refusal(planOf({good}, 1, 0)).isOk());

  cache::Plan plan = planOf({good}, 1, 0);
  plan.artefacts[0].bytes += 'x';
  EXPECT_EQ(refusal(plan).code(), StatusCode::kCorrupt);
  plan = planOf({good}, 1, 0);
  plan.artefacts[0].kind = cache::ArtefactKind::kElfSharedObject;
  EXPECT_EQ(refusal(plan).code(), StatusCode::kUnsupported);
  EXPECT_EQ(refusal(planOf({good}, 1, 0, "no cubin at all")).code(), StatusCode::kCorrupt);
  const Status state = refusal(planOf({good}, 1, 0, fakeCubin({{".nv.global", 4, SHF_ALLOC | SHF_WRITE}})));
  EXPECT_EQ(state.code(), StatusCode::kUnsupported);
  EXPECT_NE(state.message().find("keeps state between calls"), std::string::npos) << state.message();
  EXPECT_EQ(refusal(planOf({launchOf("absent", {})}, 0, 0)).code(), StatusCode::kNotFound);

  cache::Launch launch = good;
  launch.attributes = {{"magic", 1}};
  EXPECT_EQ(refusal(planOf({launch}, 1, 0)).code(), StatusCode::kUnsupported);
  EXPECT_NE(refusal(planOf({launch}, 1, 0)).message().find("'magic'"), std::string::npos);
  launch = good;
  launch.block = {2048, 1, 1};
  EXPECT_EQ(refusal(planOf({launch}, 1, 0)).code(), StatusCode::kInvalidArgument);
  launch.block = {32, 32, 2};
  EXPECT_EQ(refusal(planOf({launch}, 1, 0)).code(), StatusCode::kInvalidArgument);
  launch = good;
  launch.dynamicSharedBytes = 232448;  // With the kernel's own 1024 too many.
  EXPECT_EQ(refusal(planOf({launch}, 1, 0)).code(), StatusCode::kInvalidArgument);
  launch.dynamicSharedBytes = 232448 - 1024;
  EXPECT_TRUE(refusal(planOf({launch}, 1, 0)).isOk());
  // Parameters of another number or size than the kernel's.
  EXPECT_EQ(refusal(planOf({launchOf("k", {})}, 1, 0)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(planOf({launchOf("k", {cache::PointerParameter{0}, cache::PointerParameter{0}})}, 1, 0)).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(planOf({launchOf("k", {cache::ScalarParameter{"1234"}})}, 1, 0)).code(),
            StatusCode::kInvalidArgument);
  plan = planOf({good}, 1, 0);
  plan.workspaces = {{cache::WorkspaceKind::kScratch, 8192, cache::Extent{1, -1, 1}}};
  EXPECT_EQ(refusal(plan).code(), StatusCode::kUnsupported);
  // Registers allow fewer threads.
  fake.functionAttributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 64;
  EXPECT_EQ(refusal(planOf({good}, 1, 0)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(fake.liveModules, 0);

  // The grid is known when it runs.
  fake.functionAttributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
  launch = good;
  launch.grid[1] = {1, 0, 1};
  Result<std::unique_ptr<LoadedPlan>> loaded = device->load(planOf({launch}, 1, 1));
  ASSERT_TRUE(loaded);
  void* const tensors[] = {address(0x1000)};
  const std::vector<int64_t> symbols = {65536};
  EXPECT_EQ((*loaded)->run(tensors, symbols, nullptr).code(), StatusCode::kInvalidArgument);
}

TEST(CudaPlan, CubinIsCutShort) {
  const std::string whole = fakeCubin();
  ASSERT_TRUE(cuda::inspectCubin(whole).isOk());
  for (size_t n = 0; n < whole.size(); ++n) EXPECT_FALSE(cuda::inspectCubin(whole.substr(0, n)).isOk()) << n;
  EXPECT_TRUE(cuda::inspectCubin(fakeCubin({{".nv.shared.k", 64, SHF_ALLOC | SHF_WRITE}, {".nv.constant3"}})).isOk());
  EXPECT_FALSE(cuda::inspectCubin(fakeCubin({{".nv.global", 4, SHF_ALLOC | SHF_WRITE}})).isOk());
}

// ------------------------------------------------------------------------------------------------- faults and memory

TEST(CudaFaults, OutOfMemoryLeavesTheDeviceWorking) {
  FakeCudaDriver fake;
  const std::unique_ptr<Device> device = open();
  fake.faults["memAlloc"] = CUDA_ERROR_OUT_OF_MEMORY;
  const Result<std::unique_ptr<DeviceMemory>> memory = device->allocate(12345);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(memory.error().message().find("12345 bytes"), std::string::npos) << memory.error().message();
  fake.faults.clear();
  EXPECT_TRUE(device->allocate(12345));
}

TEST(CudaFaults, IllegalAddressIsRememberedByEverything) {
  FakeCudaDriver fake;
  fake.kernels["k"] = {};
  const std::unique_ptr<Device> device = open();
  Result<std::unique_ptr<LoadedPlan>> plan = device->load(planOf({launchOf("k", {})}, 0, 0));
  ASSERT_TRUE(plan);
  Result<std::unique_ptr<DeviceMemory>> memory = device->allocate(64);
  ASSERT_TRUE(memory);
  ASSERT_TRUE((*plan)->run({}, {}, nullptr).isOk());  // Queued; it goes wrong later.
  fake.faults["streamSynchronize"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  const Status status = device->synchronize();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("illegal address"), std::string::npos) << status.message();
  fake.faults.clear();
  char byte = 0;
  const Status later[] = {device->synchronize(),
                          (*plan)->run({}, {}, nullptr),
                          device->copyToDevice((*memory)->data(), &byte, 1),
                          device->copyFromDevice(&byte, (*memory)->data(), 1),
                          device->copyOnDevice((*memory)->data(), (*memory)->data() + 1, 1),
                          device->allocate(1).status(),
                          device->load(planOf({launchOf("k", {})}, 0, 0)).status(),
                          device->emptyLaunchNanoseconds().status(),
                          device->copyBytesPerSecond((*memory)->data(), (*memory)->data() + 1, 1).status(),
                          device->prepareTimedCalls(**plan, {{}}, {}, nullptr).status()};
  for (const Status& s : later) {
    EXPECT_EQ(s.code(), StatusCode::kUnavailable);
    EXPECT_EQ(s.message(), status.message());
  }
}

TEST(CudaFaults, LaunchFailureAndLostDevice) {
  for (const auto& [result, text] : {std::pair<CUresult, const char*>{CUDA_ERROR_LAUNCH_FAILED, "crashed"},
                                     {CUDA_ERROR_DEVICE_UNAVAILABLE, "lost"},
                                     {CUDA_ERROR_UNKNOWN, "unknown reason"}}) {
    FakeCudaDriver fake;
    fake.kernels["k"] = {};
    const std::unique_ptr<Device> device = open();
    Result<std::unique_ptr<LoadedPlan>> plan = device->load(planOf({launchOf("k", {})}, 0, 0));
    ASSERT_TRUE(plan);
    fake.faults["launchKernelEx"] = result;
    const Status status = (*plan)->run({}, {}, nullptr);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("launching k"), std::string::npos) << status.message();
    fake.faults.clear();
    EXPECT_EQ(device->synchronize().message(), status.message());
  }
  // Too many registers, say: the next candidate may be fine.
  FakeCudaDriver fake;
  fake.kernels["k"] = {};
  const std::unique_ptr<Device> device = open();
  Result<std::unique_ptr<LoadedPlan>> plan = device->load(planOf({launchOf("k", {})}, 0, 0));
  fake.faults["launchKernelEx"] = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  EXPECT_EQ((*plan)->run({}, {}, nullptr).code(), StatusCode::kInvalidArgument);
  fake.faults.clear();
  EXPECT_TRUE((*plan)->run({}, {}, nullptr).isOk());
}

TEST(CudaFaults, EveryFunctionMayFailAndNothingLeaks) {
  // The names of all functions, by asking for them.
  std::vector<std::string> members;
#define KTUNE_CUDA(member, symbol, presence) members.push_back(#member);
#define KTUNE_CUDA_TYPED(member, symbol, type, presence) members.push_back(#member);
#include "runtime/launch/devices/cuda/DriverTable.def"
#undef KTUNE_CUDA
#undef KTUNE_CUDA_TYPED
  for (const std::string& member : members) {
    if (member.starts_with("getError") || member.ends_with("Free") || member.ends_with("FreeHost")) continue;
    FakeCudaDriver fake;
    fake.kernels["k"] = {8};
    fake.faults[member] = CUDA_ERROR_INVALID_VALUE;
    const bool leaks = member.find("estroy") != std::string::npos || member.find("Unload") != std::string::npos;
    {
      Result<std::unique_ptr<Device>> device = openDevice("cuda:0");
      if (device) {
        Result<std::unique_ptr<DeviceMemory>> memory = (*device)->allocate(4 << 20);
        Result<std::unique_ptr<LoadedPlan>> plan =
            (*device)->load(planOf({launchOf("k", {cache::PointerParameter{0}})}, 1, 0));
        if (memory && plan) {
          std::vector<char> host(4 << 20);
          (void)(*device)->copyToDevice((*memory)->data(), host.data(), host.size()).isOk();
          (void)(*device)->copyFromDevice(host.data(), (*memory)->data(), host.size()).isOk();
          if (auto timed = (*device)->prepareTimedCalls(**plan, {{(*memory)->data()}}, {}, nullptr))
            (void)(*timed)->nanosecondsPerCall(1e-3).has_value();
          (void)(*device)->emptyLaunchNanoseconds().has_value();
          (void)(*device)->copyBytesPerSecond((*memory)->data(), (*memory)->data() + 64, 64).has_value();
        }
      }
    }
    if (leaks) {
      // The fake's own graphs and events are on its heap.
      continue;
    }
    EXPECT_EQ(fake.liveAllocations, 0) << member;
    EXPECT_EQ(fake.liveModules, 0) << member;
    EXPECT_EQ(fake.liveContexts, 0) << member;
    EXPECT_EQ(fake.liveGraphs, 0) << member;
    if (member != "ctxPushCurrent") {
      EXPECT_EQ(fake.liveEvents, 0) << member;
      EXPECT_EQ(fake.liveStreams, 0) << member;
    }
    if (member != "ctxPopCurrent") {
      EXPECT_EQ(fake.contextDepth, 0) << member;
    }
  }
}

TEST(CudaMemory, CapAndAlignmentAndCopies) {
  FakeCudaDriver fake;
  DeviceOptions options;
  options.memoryBytes = 100 << 20;
  std::unique_ptr<Device> device = open(options);
  Result<std::unique_ptr<DeviceMemory>> memory = device->allocate(70 << 20);
  ASSERT_TRUE(memory);
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*memory)->data()) % kWorkspaceAlignment, 0u);
  EXPECT_EQ((*memory)->bytes(), size_t{70} << 20);
  const Result<std::unique_ptr<DeviceMemory>> over = device->allocate(40 << 20);
  ASSERT_FALSE(over);
  EXPECT_EQ(over.error().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(over.error().message().find(std::to_string(40 << 20)), std::string::npos) << over.error().message();

  // Through both staging buffers and back, with an odd end.
  std::vector<uint32_t> from((69 << 20) / 4 + 3), to(from.size());
  std::iota(from.begin(), from.end(), 1u);
  const size_t bytes = from.size() * 4 - 1;
  ASSERT_TRUE(device->copyToDevice((*memory)->data(), from.data(), bytes).isOk());
  ASSERT_TRUE(device->copyFromDevice(to.data(), (*memory)->data(), bytes).isOk());
  EXPECT_EQ(std::memcmp(from.data(), to.data(), bytes), 0);
  EXPECT_GT(fake.calls["memcpyHtoDAsync"], 1);
  // Small ones, too, are on the stream and have ended when they return: kernels that follow find them.
  const int64_t waits = fake.calls["streamSynchronize"];
  ASSERT_TRUE(device->copyToDevice((*memory)->data(), "abc", 3).isOk());
  ASSERT_TRUE(device->copyOnDevice((*memory)->data() + 8, (*memory)->data(), 3).isOk());
  char text[4] = {};
  ASSERT_TRUE(device->copyFromDevice(text, (*memory)->data() + 8, 3).isOk());
  EXPECT_STREQ(text, "abc");
  EXPECT_EQ(fake.calls["streamSynchronize"], waits + 3);

  // The device may end first.
  device.reset();
  EXPECT_EQ(fake.liveContexts, 1);
  *memory = nullptr;
  EXPECT_EQ(fake.liveContexts, 0);
  EXPECT_EQ(fake.liveAllocations, 0);
}

TEST(CudaMemory, ParallelForNests) {
  FakeCudaDriver fake;
  const std::unique_ptr<Device> device = open();
  std::atomic<int64_t> sum = 0;
  device->parallelFor(100, [&](int64_t begin, int64_t end) {
    device->parallelFor(end - begin, [&](int64_t b, int64_t e) { sum += e - b; });
  });
  EXPECT_EQ(sum, 100);
}

// ----------------------------------------------------------------------------------------------------------- timing

TEST(CudaTiming, GraphOfRoundsOverTheSets) {
  FakeCudaDriver fake;
  fake.kernels["k"] = {8};
  fake.launchNs = 4000;
  const std::unique_ptr<Device> device = open();
  cache::Launch launch = launchOf("k", {cache::PointerParameter{0}});
  launch.attributes = {{"programmatic_stream_serialization", 1}};
  Result<std::unique_ptr<LoadedPlan>> plan = device->load(planOf({launch}, 1, 0));
  ASSERT_TRUE(plan);
  const std::vector<std::vector<void*>> sets = {{address(0x1000)}, {address(0x2000)}, {address(0x3000)}};
  Result<std::unique_ptr<TimedCalls>> timed = device->prepareTimedCalls(**plan, sets, {}, nullptr);
  ASSERT_TRUE(timed) << timed.error().toString();
  std::vector<uint64_t> order;
  for (const test::RecordedLaunch& l : fake.launches) {
    EXPECT_TRUE(l.attributes.empty());  // Calls do not overlap while they are timed.
    if (l.captured) order.push_back(as<uint64_t>(l.arguments[0]));
  }
  // 12 us a round: 17 rounds make 200 us.
  ASSERT_EQ(order.size(), 51u);
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], 0x1000u * (i % 3 + 1));

  const int before = fake.calls["graphLaunch"];
  const Result<double> ns = (*timed)->nanosecondsPerCall(10e-3);
  ASSERT_TRUE(ns) << ns.error().toString();
  EXPECT_NEAR(*ns, 4000, 1);
  // Two to get to know it, one before the clock, 10 ms / 204 us.
  EXPECT_EQ(fake.calls["graphLaunch"] - before, 2 + 1 + 50);
  EXPECT_GE(fake.calls["ctxResetPersistingL2Cache"], 3);
  EXPECT_GE(fake.calls["ctxSetLimit"], 3);
  // Never less than one replay.
  ASSERT_TRUE((*timed)->nanosecondsPerCall(0));

  fake.faults["eventSynchronize"] = CUDA_ERROR_ILLEGAL_INSTRUCTION;
  EXPECT_EQ((*timed)->nanosecondsPerCall(1e-3).status().code(), StatusCode::kUnavailable);
}

TEST(CudaTiming, WorkThatGoesOnAfterTheLastEventIsFound) {
  FakeCudaDriver fake;
  fake.kernels["k"] = {};
  fake.driver.ctxSynchronize = [] {
    ::usleep(20000);
    return CUDA_SUCCESS;
  };
  const std::unique_ptr<Device> device = open();
  Result<std::unique_ptr<LoadedPlan>> plan = device->load(planOf({launchOf("k", {})}, 0, 0));
  Result<std::unique_ptr<TimedCalls>> timed = device->prepareTimedCalls(**plan, {{}}, {}, nullptr);
  ASSERT_TRUE(timed);
  const Result<double> ns = (*timed)->nanosecondsPerCall(1e-3);
  ASSERT_FALSE(ns);
  EXPECT_EQ(ns.error().code(), StatusCode::kInternal);
}

TEST(CudaTiming, RefusedLaunchEndsTheCapture) {
  FakeCudaDriver fake;
  fake.kernels["k"] = {};
  const std::unique_ptr<Device> device = open();
  Result<std::unique_ptr<LoadedPlan>> plan = device->load(planOf({launchOf("k", {})}, 0, 0));
  fake.onLaunch = [&](const test::RecordedLaunch& launch) {
    if (launch.captured) fake.faults["launchKernelEx"] = CUDA_ERROR_INVALID_VALUE;
  };
  EXPECT_EQ(device->prepareTimedCalls(**plan, {{}}, {}, nullptr).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(fake.calls["streamEndCapture"], 1);
  EXPECT_EQ(fake.liveGraphs, 0);
  EXPECT_EQ(device->prepareTimedCalls(**plan, {}, {}, nullptr).status().code(), StatusCode::kInvalidArgument);
}

TEST(CudaTiming, EmptyLaunchCopiesAndConditions) {
  FakeCudaDriver fake;
  fake.launchNs = 1500;
  const std::unique_ptr<Device> device = open();
  const Result<double> empty = device->emptyLaunchNanoseconds();
  ASSERT_TRUE(empty) << empty.error().toString();
  EXPECT_NEAR(*empty, 1500, 1);
  EXPECT_EQ(fake.liveModules, 0);
  Result<std::unique_ptr<DeviceMemory>> memory = device->allocate(2 << 20);
  ASSERT_TRUE(memory);
  const Result<double> copy = device->copyBytesPerSecond((*memory)->data(), (*memory)->data() + (1 << 20), 1 << 20);
  ASSERT_TRUE(copy);
  EXPECT_NEAR(*copy, 4e12, 4e10);  // 2000 bytes a nanosecond, read and written.
  const DeviceConditions conditions = device->conditions();
  EXPECT_EQ(conditions.clockMhz, 1980);
  EXPECT_NEAR(conditions.powerWatts, 345.6, 1e-9);
  EXPECT_EQ(conditions.temperatureC, 51);
  EXPECT_EQ(conditions.throttle, "power cap, thermal");
  EXPECT_EQ(cuda::throttleText(0x1 | 0x2 | 0x100), "");
  EXPECT_EQ(cuda::throttleText(0x8 | 0x40 | 0x80), "hardware slowdown, hardware thermal, power brake");
  EXPECT_EQ(device->timingMethod(), "CUDA graph of rotating buffers, events, steady");
}

TEST(CudaTiming, EmptyKernelIsCompiledWhereTheDriverCannot) {
  FakeCudaDriver fake;
  DeviceOptions options;
  std::string source, architecture;
  options.compileKernel = [&](const std::string& s, const std::string& a) -> Result<std::string> {
    source = s;
    architecture = a;
    fake.faults.clear();
    return std::string("cubin");
  };
  const std::unique_ptr<Device> device = open(options);
  fake.faults["moduleLoadData"] = CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
  ASSERT_TRUE(device->emptyLaunchNanoseconds());
  EXPECT_NE(source.find("ktune_empty"), std::string::npos);
  EXPECT_EQ(architecture, "sm_90a");
}

// ------------------------------------------------------------------------------------------------------- references

TEST(CudaDot, ChunksCoverEveryOutputOnce) {
  FakeCudaDriver fake;
  fake.kernels["ktune_reference_dots"] = {8, 8, 8, 8, 8, 8, 8};
  // Room for a few tiles of this size only.
  fake.driver.memGetInfo = [](size_t* free, size_t* total) {
    *free = *total = size_t{2} * 8 * ((64 + 64) * 40 + 2 * 64 * 64);
    return CUDA_SUCCESS;
  };
  int launches = 0;
  fake.onLaunch = [&](const test::RecordedLaunch& launch) {
    ++launches;
    const auto pointer = [&](size_t i) { return reinterpret_cast<double*>(as<uint64_t>(launch.arguments[i])); };
    const auto size = [&](size_t i) { return as<int64_t>(launch.arguments[i]); };
    const int64_t rows = size(4), columns = size(5), k = size(6);
    EXPECT_EQ(launch.grid[0], (columns + 31) / 32);
    EXPECT_EQ(launch.grid[1], (rows + 31) / 32);
    EXPECT_EQ(launch.block[0], 512u);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        double sum = 0;
        for (int64_t t = 0; t < k; ++t) sum += pointer(0)[i * k + t] * pointer(1)[j * k + t];
        pointer(2)[i * columns + j] = sum;
        pointer(3)[i * columns + j] = -sum;
      }
    }
  };
  DeviceOptions without;
  EXPECT_EQ(open(without)->dotEngine(), nullptr);
  DeviceOptions options;
  options.compileKernel = [](const std::string& source, const std::string&) -> Result<std::string> {
    EXPECT_NE(source.find("ktune_reference_dots"), std::string::npos);
    return fakeCubin();
  };
  const std::unique_ptr<Device> device = open(options);
  op::DotEngine* const engine = device->dotEngine();
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(device->dotEngine(), engine);
  constexpr int64_t kRows = 150, kColumns = 200, kK = 40;
  std::vector<double> x(kRows * kK), w(kColumns * kK), sums(kRows * kColumns), reaches(kRows * kColumns);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i % 17) - 8;
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<double>(i % 13) - 6;
  const Status status = engine->dots(x.data(), kRows, w.data(), kColumns, kK, sums.data(), reaches.data());
  ASSERT_TRUE(status.isOk()) << status.toString();
  EXPECT_GT(launches, 4);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) {
      double sum = 0;
      for (int64_t t = 0; t < kK; ++t) sum += x[i * kK + t] * w[j * kK + t];
      ASSERT_EQ(sums[i * kColumns + j], sum) << i << " " << j;
      ASSERT_EQ(reaches[i * kColumns + j], -sum) << i << " " << j;
    }
  }
  fake.faults["memcpyDtoHAsync"] = CUDA_ERROR_ECC_UNCORRECTABLE;
  EXPECT_EQ(engine->dots(x.data(), kRows, w.data(), kColumns, kK, sums.data(), reaches.data()).code(),
            StatusCode::kUnavailable);
}

TEST(Nvrtc, NewerCodeThanTheDriverIsRefusedInWords) {
  FakeCudaDriver fake;
  EXPECT_EQ(cuda::cudaDriverVersion(), 13000);
  for (const int driver : {0, 13000, 13020, 14000})
    EXPECT_TRUE(nvrtc::nvrtcFitsDriver("NVRTC 13.0", 13, driver).isOk());
  EXPECT_TRUE(nvrtc::nvrtcFitsDriver("NVRTC 12.9", 12, 12000).isOk());
  const Status status = nvrtc::nvrtcFitsDriver("NVRTC 13.0 (/x/libnvrtc.so.13)", 13, 12080);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  for (const char* words : {"/x/libnvrtc.so.13", "CUDA 12.8", "nvidia-cuda-nvrtc-cu12", "CUDA_HOME"})
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
}

// --------------------------------------------------------------------------------------------------------- inspector

// What the kernels compute is in cuda_conformance_test; here is how they are launched, and what fails.
TEST(CudaInspector, LaunchesItsKernelsOnTheStream) {
  FakeCudaDriver fake;
  for (const char* name : {"fill", "checksum"}) fake.kernels[std::string("ktune_inspect_") + name] = {8, 8, 8};
  fake.kernels["ktune_inspect_other"] = {8, 8, 8, 8};
  fake.kernels["ktune_inspect_runs"] = {8, 8, 8, 8, 8, 8, 8};
  fake.kernels["ktune_inspect_seal"] = {8, 8, 8};
  fake.kernels["ktune_inspect_compare"] = {8, 8, 8, 8, 8, 8};
  EXPECT_EQ(open({})->inspector(), nullptr);
  DeviceOptions options;
  options.compileKernel = [](const std::string&, const std::string&) -> Result<std::string> {
    return invalidArgument("does not compile");
  };
  EXPECT_EQ(open(options)->inspector(), nullptr);
  options.compileKernel = [](const std::string& source, const std::string&) -> Result<std::string> {
    EXPECT_EQ(source, cuda::kInspectorSource);
    return fakeCubin();
  };
  const std::unique_ptr<Device> device = open(options);
  Inspector* const inspector = device->inspector();
  ASSERT_NE(inspector, nullptr);
  EXPECT_EQ(device->inspector(), inspector);

  constexpr size_t kBytes = 100000;
  const std::unique_ptr<DeviceMemory> memory = *device->allocate(kBytes);
  fake.onLaunch = [&](const test::RecordedLaunch& launch) {
    EXPECT_EQ(launch.kernel, "ktune_inspect_other");
    EXPECT_EQ(launch.block[0], 256u);
    EXPECT_EQ(launch.grid[0], 25u);  // 100000 bytes of 16 a thread.
    EXPECT_EQ(as<uint64_t>(launch.arguments[0]), reinterpret_cast<uint64_t>(memory->data()));
    EXPECT_EQ(as<uint64_t>(launch.arguments[1]), kBytes);
    EXPECT_EQ(as<uint64_t>(launch.arguments[2]), 0x7fffu);
    auto* const records = reinterpret_cast<uint64_t*>(as<uint64_t>(launch.arguments[3]));
    for (unsigned b = 0; b < launch.grid[0]; ++b) records[b] = b == 7 ? 4711 : ~uint64_t{0};
  };
  EXPECT_EQ(*inspector->firstOther(memory->data(), kBytes, {0xff, 0x7f}), std::optional<size_t>(4711));
  fake.faults["launchKernelEx"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  EXPECT_EQ(inspector->checksum(memory->data(), kBytes).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(inspector->fill(memory->data(), kBytes, {0, 0}).code(), StatusCode::kUnavailable);
}

// ------------------------------------------------------------------------------------------------------------ lease

class LeaseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::string> made = makeTempDirectory("/tmp", "ktune-lease-test");
    ASSERT_TRUE(made);
    folder = *made;
  }
  void TearDown() override { (void)removeTree(folder).isOk(); }
  [[nodiscard]] LeaseProbes probes() {
    LeaseProbes p;
    p.directory = folder;
    p.processes = [this] { return processes; };
    p.computeMode = [this] { return mode; };
    p.activeMps = [this] { return mps; };
    p.isOurs = [](pid_t pid) { return pid == ::getpid(); };
    p.patienceSeconds = 0;
    return p;
  }
  [[nodiscard]] Result<Lease> take(bool share = false) { return Lease::take("GPU-1", probes(), share); }
  void expectRefused(const std::string& text) {
    const Result<Lease> lease = take();
    ASSERT_FALSE(lease);
    EXPECT_EQ(lease.error().code(), StatusCode::kUnavailable);
    EXPECT_NE(lease.error().message().find(text), std::string::npos) << lease.error().message();
  }

  std::string folder;
  std::optional<std::vector<cuda::GpuProcess>> processes = std::vector<cuda::GpuProcess>{};
  cuda::ComputeMode mode = cuda::ComputeMode::kDefault;
  std::string mps;
};

TEST_F(LeaseTest, OneAtATimeAndGivenBack) {
  {
    Result<Lease> first = take();
    ASSERT_TRUE(first) << first.error().toString();
    EXPECT_TRUE(first->held());
    expectRefused("ktune process " + std::to_string(::getpid()));
    const Result<Lease> sharing = take(/*share=*/true);  // Never two of ktune.
    EXPECT_FALSE(sharing);
    EXPECT_TRUE(Lease::take("GPU-2", probes(), false));
    const Lease moved = std::move(*first);
    EXPECT_TRUE(moved.held());
    expectRefused("in use by");
  }
  EXPECT_TRUE(take());
  struct stat info = {};
  ASSERT_EQ(::stat((folder + "/ktune-gpu-GPU-1.lock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0666u);
}

TEST_F(LeaseTest, EndsWithTheProcess) {
  int ready[2], end[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(end), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const Result<Lease> lease = take();
    char c = lease ? 'y' : 'n';
    (void)!::write(ready[1], &c, 1);
    (void)!::read(end[0], &c, 1);
    ::_exit(0);  // As a process that is killed: no destructor runs.
  }
  char c = 0;
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  EXPECT_EQ(c, 'y');
  expectRefused("ktune process " + std::to_string(child));
  ASSERT_EQ(::write(end[1], "e", 1), 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(take());
}

TEST_F(LeaseTest, ForeignProcessModeAndMps) {
  processes->push_back({::getpid(), 1 << 20});
  EXPECT_TRUE(take());
  processes->push_back({999999, uint64_t{3} << 30});
  expectRefused("process 999999 with 3072 MiB");
  EXPECT_TRUE(take(/*share=*/true));
  processes = std::nullopt;  // Cannot be known.
  EXPECT_TRUE(take());

  mode = cuda::ComputeMode::kExclusiveProcess;
  expectRefused("exclusive-process");
  EXPECT_TRUE(take(/*share=*/true));
  mode = cuda::ComputeMode::kProhibited;
  expectRefused("prohibited");
  mode = cuda::ComputeMode::kDefault;

  mps = "/tmp/somewhere";
  expectRefused("MPS control daemon is active (/tmp/somewhere)");
  EXPECT_TRUE(take(/*share=*/true));
}

TEST_F(LeaseTest, NewcomersAreNoticed) {
  Result<Lease> lease = take();
  ASSERT_TRUE(lease);
  processes->push_back({777, 0});  // This process, as a container's host numbers it.
  lease->noteOwnContext();
  EXPECT_EQ(lease->foreignActivity(), "");
  processes->push_back({999998, 0});
  EXPECT_NE(lease->foreignActivity().find("process 999998"), std::string::npos) << lease->foreignActivity();
  EXPECT_EQ(Lease().foreignActivity(), "");
  // Where this process is listed as itself, even a single newcomer is another.
  lease = internalError("");
  *processes = {};
  lease = take();
  ASSERT_TRUE(lease);
  *processes = {{::getpid(), 0}, {999997, 0}};
  lease->noteOwnContext();
  EXPECT_NE(lease->foreignActivity().find("process 999997"), std::string::npos);
}

TEST_F(LeaseTest, MpsDaemonIsFoundByItsSocketOrNumber) {
  EXPECT_EQ(cuda::findActiveMps(folder), "");
  const std::string path = folder + "/control";
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.c_str(), path.size());
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  EXPECT_EQ(cuda::findActiveMps(folder), "");  // Nobody listens.
  ASSERT_EQ(::listen(fd, 1), 0);
  EXPECT_EQ(cuda::findActiveMps(folder), folder);
  ::close(fd);
  EXPECT_EQ(cuda::findActiveMps(folder), "");  // Left over by a daemon that is gone.
  std::ofstream(folder + "/nvidia-cuda-mps-control.pid") << ::getpid() << "\n";
  EXPECT_EQ(cuda::findActiveMps(folder), folder);
}

TEST_F(LeaseTest, DevicesHoldItWhileTheyLive) {
  FakeCudaDriver fake;
  DeviceOptions leased;
  leased.lease = true;
  std::unique_ptr<Device> first = open(leased);
  ASSERT_NE(first, nullptr);
  EXPECT_NE(open(), nullptr);  // Who only runs plans takes none.
  const cuda::CudaReport report = cuda::reportCuda(false);
  ASSERT_EQ(report.gpus.size(), 1u);
  EXPECT_TRUE(report.driver.isOk());
  EXPECT_EQ(report.driverText, "CUDA driver 580.65.06 (13.0)");
  EXPECT_EQ(report.gpus[0].lease.code(), StatusCode::kUnavailable);
  EXPECT_NE(report.gpus[0].lease.message().find(std::to_string(::getpid())), std::string::npos);
  const Result<std::unique_ptr<Device>> second = openDevice("cuda:0", leased);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), StatusCode::kUnavailable);
  // What the device made keeps its context, and so the device, in use.
  Result<std::unique_ptr<DeviceMemory>> memory = first->allocate(16);
  ASSERT_TRUE(memory);
  first.reset();
  EXPECT_FALSE(cuda::reportCuda(false).gpus[0].lease.isOk());
  *memory = nullptr;
  EXPECT_TRUE(cuda::reportCuda(false).gpus[0].lease.isOk());
  fake.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_MODE] = 3;
  const Result<std::unique_ptr<Device>> exclusive = openDevice("cuda:0", leased);
  ASSERT_FALSE(exclusive);
  EXPECT_NE(exclusive.error().message().find("exclusive-process"), std::string::npos);
  leased.shareDevice = true;
  EXPECT_TRUE(openDevice("cuda:0", leased));
}

// ------------------------------------------------------------------------------------------------------------ NVRTC

TEST(Nvrtc, UsedVariables) {
  EXPECT_TRUE(nvrtc::usedVariables("").empty());
  EXPECT_TRUE(nvrtc::usedVariables(".global .align 4 .u32 kOne = 1;\n st.global.u32 [%rd2], %r1; // kOne\n").empty());
  const std::string text =
      ".global .align 4 .u32 a = 1;\n.visible .global .align 8 .b8 b_1[16];\n.weak .global .u64 c;\n"
      "ld.global.u32 %r1, [a];\nmov.u64 %rd1, b_1;\n";
  EXPECT_EQ(nvrtc::usedVariables(text), (std::vector<std::string>{"a", "b_1"}));
}

TEST(Nvrtc, CompilesToACubinOrSaysWhyNot) {
  const Result<const nvrtc::Nvrtc*> loaded = nvrtc::Nvrtc::load();
  if (!loaded) GTEST_SKIP() << loaded.error().message();
  const nvrtc::Nvrtc& nvrtc = **loaded;
  EXPECT_TRUE(nvrtc.version().starts_with("NVRTC 1")) << nvrtc.version();
  EXPECT_TRUE(nvrtc.path().starts_with("/")) << nvrtc.path();
  EXPECT_NE(std::find(nvrtc.architectures().begin(), nvrtc.architectures().end(), 90), nvrtc.architectures().end());
  nvrtc::Program program{"test.cu",
                         "#include \"one.h\"\nextern \"C\" __global__ void k(int* p) { *p = kOne; }\n",
                         {{"one.h", "constexpr int kOne = 1;\n"}},
                         {"--gpu-architecture=sm_90a"}};
  const Result<nvrtc::Compiled> compiled = nvrtc.compile(program);
  ASSERT_TRUE(compiled) << compiled.error().toString();
  EXPECT_TRUE(cuda::inspectCubin(compiled->cubin).isOk());

  for (const char* variable : {"__device__ int counter;\n", "static __device__ int counter = 1;\n"}) {
    program.source = std::string(variable) + "extern \"C\" __global__ void k(int* p) { *p = counter++; }\n";
    const Result<nvrtc::Compiled> keeps = nvrtc.compile(program);
    ASSERT_FALSE(keeps);
    EXPECT_EQ(keeps.error().code(), StatusCode::kUnsupported);
    EXPECT_NE(keeps.error().message().find("'counter'"), std::string::npos) << keeps.error().message();
  }
  // The device's own kernels.
  for (const char* source : {cuda::kDotSource, cuda::kInspectorSource, cuda::kEmptySource}) {
    program.source = source;
    const Result<nvrtc::Compiled> own = nvrtc.compile(program);
    ASSERT_TRUE(own) << own.error().toString();
    EXPECT_EQ(own->log, "");
    EXPECT_TRUE(cuda::inspectCubin(own->cubin).isOk());
  }

  program.source = "this is no program";
  const Result<nvrtc::Compiled> wrong = nvrtc.compile(program);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(wrong.error().message().find("test.cu(1): error"), std::string::npos) << wrong.error().message();
  program.options = {"--no-such-option"};
  EXPECT_EQ(nvrtc.compile(program).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ktune::runtime
