#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/op/Builder.h"
#include "runtime/Kernels.h"
#include "runtime/launch/Elements.h"
#include "runtime/launch/devices/cpu/CpuDevice.h"

namespace ktune::runtime {
namespace {

using testing::compileC;
using testing::kPrologue;
using testing::planOf;

schedule::Problem addProblem() {
  const op::Graph graph = *op::makeAdd({"M", 1, 7, {7}}, 33, op::DType::kF32);
  return *schedule::Problem::create(graph, op::bucketsOf(graph).front());
}

TEST(CpuTarget, FollowsTheFeatures) {
  CpuIdentity cpu;
  cpu.vendor = "GenuineIntel";
  cpu.model = "Some CPU";
  cpu.family = 6;
  cpu.modelNumber = 143;
  cpu.stepping = 8;
  cpu.logicalCores = 4;
  cpu.features = {"avx2", "bmi2", "f16c", "fma", "popcnt", "sse4_2"};
  schedule::Target target = cpuTarget(cpu);
  EXPECT_EQ(target.hardware, "cpu;GenuineIntel;6.143.8;Some CPU;features=avx2,bmi2,f16c,fma,popcnt,sse4_2;cores=4");
  EXPECT_EQ(target.cores, 4);
#if defined(__x86_64__)
  EXPECT_EQ(target.vectorBytes, 32);
  EXPECT_EQ(target.vectorRegisters, 16);
  EXPECT_EQ(target.architecture, "x86-64-v3");
  cpu.features = {"avx2", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl",
                  "bmi2", "f16c",     "fma",      "popcnt",   "sse4_2"};
  target = cpuTarget(cpu);
  EXPECT_EQ(target.vectorBytes, 64);
  EXPECT_EQ(target.vectorRegisters, 32);
  EXPECT_EQ(target.architecture, "x86-64-v4");
  cpu.features = {"popcnt", "sse4_2"};
  EXPECT_EQ(cpuTarget(cpu).architecture, "x86-64-v2");
  EXPECT_EQ(cpuTarget(cpu).vectorBytes, 16);
#endif
}

TEST(Devices, ListAndOpen) {
  const std::vector<DeviceInfo> devices = listDevices();
  // The cpu always; GPUs, where there are any, before it.
  EXPECT_EQ(std::count_if(devices.begin(), devices.end(), [](const DeviceInfo& d) { return d.name == "cpu"; }), 1);
  for (const DeviceInfo& info : devices) {
    Result<std::unique_ptr<Device>> device = openDevice(info.name);
    ASSERT_TRUE(device) << device.error().toString();
    EXPECT_EQ((*device)->name(), info.name);
    EXPECT_EQ((*device)->driver(), info.driver);
    EXPECT_EQ((*device)->target().hardware, info.target.hardware);
    EXPECT_FALSE((*device)->description().empty());
  }
  EXPECT_EQ(openDevice("toaster").error().code(), StatusCode::kNotFound);
  EXPECT_EQ(openDevice("cpu:1").error().code(), StatusCode::kNotFound);
  EXPECT_NE(openDevice("toaster").error().message().find("cpu"), std::string::npos);
}

TEST(CpuDevice, RunsLaunchesInOrderWithEveryKindOfArgument) {
  KTUNE_NEEDS_HOST_COMPILER();
  // Launch 1 writes a + s into the workspace, launch 2 adds b to it: y = a + b + s.
  const std::string source =
      std::string(kPrologue) +
      "#define PUBLIC __attribute__((visibility(\"default\")))\n"
      "PUBLIC void one(void* const* args, i64 first, i64 last) {\n"
      "  const f32* a = args[0]; f32* w = args[1]; union { void* p; f32 f; } s; s.p = args[2];\n"
      "  for (i64 i = first * 33; i < last * 33; ++i) w[i] = a[i] + s.f;\n"
      "}\n"
      "PUBLIC void two(void* const* args, i64 first, i64 last) {\n"
      "  const f32* w = args[0]; const f32* b = args[1]; f32* y = args[2]; i64 m = (i64)args[3];\n"
      "  for (i64 r = first; r < last && r < m; ++r)\n"
      "    for (i64 c = 0; c < 33; ++c) y[r * 33 + c] = w[r * 33 + c] + b[r * 33 + c];\n"
      "}\n";
  cache::Plan plan = planOf(addProblem(), compileC(source));
  const float scalar = 0.5f;
  plan.workspaces.push_back({cache::WorkspaceKind::kScratch, 64, {64, -1, 1}});
  plan.workspaces.push_back({cache::WorkspaceKind::kScratch, 256, {33 * 4, 0, 1}});
  plan.launches[0].symbol = "one";
  plan.launches[0].parameters = {cache::PointerParameter{0}, cache::WorkspaceParameter{1},
                                 cache::ScalarParameter{std::string(reinterpret_cast<const char*>(&scalar), 4)}};
  cache::Launch second = plan.launches[0];
  second.symbol = "two";
  second.parameters = {cache::WorkspaceParameter{1}, cache::PointerParameter{1}, cache::PointerParameter{2},
                       cache::SymbolParameter{0}};
  plan.launches.push_back(second);

  std::unique_ptr<Device> device = makeCpuDevice(3);
  Result<std::unique_ptr<LoadedPlan>> loaded = device->load(plan);
  ASSERT_TRUE(loaded) << loaded.error().toString();
  EXPECT_EQ((*loaded)->workspaceBytes({5}), 256u + 5 * 33 * 4);
  alignas(kWorkspaceAlignment) static char workspace[4096];
  for (int64_t m : {1, 5, 7}) {
    std::vector<float> a(static_cast<size_t>(m) * 33), b(a.size()), y(a.size(), -1);
    for (size_t i = 0; i < a.size(); ++i) {
      a[i] = static_cast<float>(i);
      b[i] = 1000 - 3 * static_cast<float>(i);
    }
    void* tensors[] = {a.data(), b.data(), y.data()};
    ASSERT_TRUE((*loaded)->run(tensors, std::vector<int64_t>{m}, workspace).isOk());
    for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(y[i], a[i] + b[i] + 0.5f) << i;
  }
}

TEST(CpuDevice, ObjectsAreNeverConfused) {
  KTUNE_NEEDS_HOST_COMPILER();
  // The loader knows libraries by path, and the path of an in-memory file is its descriptor, which is used again.
  const schedule::Problem problem = addProblem();
  std::unique_ptr<Device> device = makeCpuDevice(1);
  std::vector<cache::Plan> plans;
  for (int i = 0; i < 3; ++i)
    plans.push_back(testing::planOfC(problem, "KERNEL { ((f32*)args[2])[0] = " + std::to_string(i) + "; }"));
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 3; ++i) {
      std::unique_ptr<LoadedPlan> loaded = *device->load(plans[static_cast<size_t>(i)]);
      float y = -1;
      void* tensors[] = {&y, &y, &y};
      ASSERT_TRUE(loaded->run(tensors, std::vector<int64_t>{1}, nullptr).isOk());
      EXPECT_EQ(y, static_cast<float>(i));
    }
  }
}

TEST(CpuDevice, HasTheHostsMemoryAndItsClock) {
  KTUNE_NEEDS_HOST_COMPILER();
  std::unique_ptr<Device> device = makeCpuDevice(2);
  EXPECT_TRUE(device->sharesHostMemory());
  EXPECT_EQ(device->dotEngine(), nullptr);
  EXPECT_FALSE(isHeldBack(device->throttle()));
  EXPECT_TRUE(device->synchronize().isOk());
  EXPECT_NE(device->timingMethod().find("threads"), std::string::npos);
  constexpr size_t kBytes = (size_t{3} << 20) + 100;
  Result<std::unique_ptr<DeviceMemory>> one = device->allocate(kBytes), two = device->allocate(kBytes);
  ASSERT_TRUE(one && two);
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*one)->data()) % kWorkspaceAlignment, 0u);
  EXPECT_GE((*one)->bytes(), kBytes);
  const std::string text = "kept";
  std::string back(4, ' ');
  ASSERT_TRUE(device->copyToDevice((*one)->data() + kBytes - 4, text.data(), 4).isOk());
  const Result<double> rate = device->copyBytesPerSecond((*two)->data(), (*one)->data(), kBytes);
  ASSERT_TRUE(rate);
  EXPECT_GT(*rate, 1e6);
  ASSERT_TRUE(device->copyFromDevice(back.data(), (*two)->data() + kBytes - 4, 4).isOk());
  EXPECT_EQ(back, text);
  ASSERT_TRUE(device->copyOnDevice((*two)->data(), (*two)->data() + kBytes - 4, 4).isOk());
  EXPECT_EQ(std::string((*two)->data(), 4), text);
  const Result<double> empty = device->emptyLaunchNanoseconds();
  ASSERT_TRUE(empty);
  EXPECT_GT(*empty, 0);

  // Every set has its turn, and the time is one call's.
  std::unique_ptr<LoadedPlan> plan =
      *device->load(testing::planOfC(addProblem(), "KERNEL { ((f32*)args[2])[0] += 1; (void)first; (void)last; }"));
  std::vector<float> counts(3);
  std::vector<std::vector<void*>> sets;
  for (float& count : counts) sets.push_back({&count, &count, &count});
  EXPECT_FALSE(device->prepareTimedCalls(*plan, {}, {1}, nullptr));
  Result<std::unique_ptr<TimedCalls>> calls = device->prepareTimedCalls(*plan, sets, {1}, nullptr);
  ASSERT_TRUE(calls);
  for (int i = 0; i < 3; ++i) {
    const Result<double> ns = (*calls)->nanosecondsPerCall(1e-4);
    ASSERT_TRUE(ns);
    EXPECT_GT(*ns, 0);
    EXPECT_LT(*ns, 1e8);
  }
  EXPECT_GE(counts[2], 1);
  EXPECT_LE(counts[0] - counts[2], 1);
}

TEST(DeviceConditions, HeatAndHardwareHoldBack) {
  EXPECT_FALSE(isHeldBack(""));
  EXPECT_FALSE(isHeldBack("power cap"));
  EXPECT_TRUE(isHeldBack("power cap, thermal"));
  EXPECT_TRUE(isHeldBack("power brake"));
}

TEST(CpuDevice, RefusesWhatIsNotAPlainKernel) {
  KTUNE_NEEDS_HOST_COMPILER();
  const schedule::Problem problem = addProblem();
  std::unique_ptr<Device> device = makeCpuDevice(1);
  const struct {
    const char* body;
    const char* flags;
    const char* says;
  } table[] = {
      {"KERNEL { static int n; n += first; ((f32*)args[2])[0] = n; }", "", "writable variables"},
      {"static int n = 3; KERNEL { n += first; ((f32*)args[2])[0] = n; }", "", "writable variables"},
      {"static __thread int n; KERNEL { n += first; ((f32*)args[2])[0] = n; }", "", "thread-local"},
      {"extern void puts(const char*); KERNEL { puts(\"x\"); }", "", "refers to 'puts'"},
      {"extern int errno_like __attribute__((weak)); KERNEL { if (&errno_like) ((f32*)args[2])[0] = 1; }", "",
       "refers to 'errno_like'"},
      {"KERNEL { ((f32*)args[2])[0] = 1; }", "-Wl,--no-as-needed -lc", "needs another library"},
      {"__attribute__((constructor)) static void go(void) { __asm__ volatile(\"\"); } KERNEL { }", "", "runs code"},
      {"KERNEL { }", "-Wl,-z,nodelete", "refuses to be unloaded"},
  };
  for (const auto& row : table) {
    const std::string bytes = compileC(std::string(kPrologue) + row.body, row.flags);
    const Status status = inspectSharedObject(bytes);
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << row.body;
    EXPECT_NE(status.message().find(row.says), std::string::npos) << row.body << ": " << status.message();
    EXPECT_FALSE(device->load(planOf(problem, bytes)));
  }
  const std::string good = compileC(std::string(kPrologue) +
                                    "static const f32 t[4] = {1, 2, 3, 4};\n"
                                    "KERNEL { ((f32*)args[2])[0] = t[first & 3]; }");
  EXPECT_TRUE(inspectSharedObject(good).isOk()) << inspectSharedObject(good).toString();

  cache::Plan plan = planOf(problem, good);
  plan.launches[0].symbol = "absent";
  EXPECT_EQ(device->load(plan).error().code(), StatusCode::kNotFound);
  plan = planOf(problem, good);
  plan.artefacts[0].bytes[plan.artefacts[0].bytes.size() / 2] ^= 1;
  EXPECT_EQ(device->load(plan).error().code(), StatusCode::kCorrupt);
  plan = planOf(problem, good);
  plan.artefacts[0].kind = cache::ArtefactKind::kFake;
  EXPECT_EQ(device->load(plan).error().code(), StatusCode::kUnsupported);
  plan = planOf(problem, good);
  plan.launches[0].parameters.emplace_back(cache::TensorMapParameter{});
  EXPECT_FALSE(device->load(plan));
}

TEST(CpuDevice, InspectionSurvivesDamage) {
  KTUNE_NEEDS_HOST_COMPILER();
  const std::string good = compileC(std::string(kPrologue) + "KERNEL { ((f32*)args[2])[0] = 1; }");
  for (size_t cut = 0; cut < good.size(); cut += 61) (void)inspectSharedObject(std::string_view(good).substr(0, cut));
  for (size_t i = 0; i < std::min<size_t>(good.size(), 4096); ++i) {
    std::string damaged = good;
    damaged[i] = static_cast<char>(damaged[i] ^ 0xff);
    (void)inspectSharedObject(damaged);  // No crash, no sanitizer report.
  }
}

TEST(Preconditions, AreChecked) {
  cache::Plan plan;
  plan.preconditions = {{cache::Precondition::Kind::kAlignment, 0, 64, 0},
                        {cache::Precondition::Kind::kSymbolRange, 0, 2, 9}};
  alignas(64) char block[128];
  void* aligned[] = {block};
  void* odd[] = {block + 16};
  EXPECT_TRUE(checkPreconditions(plan, aligned, std::vector<int64_t>{5}).isOk());
  EXPECT_EQ(checkPreconditions(plan, odd, std::vector<int64_t>{5}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(checkPreconditions(plan, aligned, std::vector<int64_t>{1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(checkPreconditions(plan, aligned, std::vector<int64_t>{10}).code(), StatusCode::kInvalidArgument);
}

TEST(Elements, EveryNarrowFloatSurvivesARoundTrip) {
  for (const auto& [type, bytes] : {std::pair(op::DType::kF8E4M3, 1), std::pair(op::DType::kF8E5M2, 1),
                                    std::pair(op::DType::kF16, 2), std::pair(op::DType::kBF16, 2)}) {
    for (uint32_t bits = 0; bits < (bytes == 1 ? 256u : 65536u); ++bits) {
      double value = 0;
      loadElements(type, &bits, 1, 1, &value);
      uint32_t back = 0;
      storeElements(type, &value, 1, &back, 1);
      if (std::isnan(value)) {
        double again = 0;
        loadElements(type, &back, 1, 1, &again);
        EXPECT_TRUE(std::isnan(again));
      } else {
        ASSERT_EQ(back, bits) << op::dtypeName(type) << " " << value;
        ASSERT_EQ(op::roundTo(type, value), value) << op::dtypeName(type) << " " << bits;
      }
    }
  }
}

}  // namespace
}  // namespace ktune::runtime
