// What only a GPU can show: launch forms, memory, the lease, fp64 references, and that faults cost one worker each.
// Kernels are compiled when the test runs. Figures are lines "figure: NAME VALUE UNIT".
#include <cuda.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "base/File.h"
#include "base/Subprocess.h"
#include "cache/store/Store.h"
#include "ir/op/Builder.h"
#include "ir/op/Reference.h"
#include "ir/schedule/Vary.h"
#include "runtime/InspectorChecks.h"
#include "runtime/guard/Guard.h"
#include "runtime/launch/Device.h"
#include "runtime/nvrtc/KernelCompiler.h"
#include "runtime/worker/Workers.h"
#include "search/Tuner.h"

namespace ktune::runtime {
namespace {

constexpr const char* kDeviceName = "cuda:0";
std::string programPath;  // Of ktune; empty when there is none.

void figure(const std::string& name, double value, const char* unit) {
  std::printf("figure: %s %.6g %s\n", name.c_str(), value, unit);
  std::fflush(stdout);
}

std::optional<DeviceInfo> findGpu() {
  for (DeviceInfo& info : listDevices()) {
    if (info.name == kDeviceName) return std::move(info);
  }
  return std::nullopt;
}
const DeviceInfo& gpu() {
  static const DeviceInfo info = findGpu().value_or(DeviceInfo{});
  return info;
}
bool isHopper() {
  return gpu().target.architecture.starts_with("sm_90");
}

// ---------------------------------------------------------------------------------------------------------- kernels

constexpr const char* kScale = R"(
extern "C" __global__ void scale(float* y, float factor, long long n, const float* x, short shift, int* blocks) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = factor * x[i] + shift;
  if (i == 0) blocks[0] = gridDim.x;
}
)";

// The sums of pieces of 128, their sum, and its use: three launches that need their order.
constexpr const char* kSteps = R"(
extern "C" __global__ void sum_pieces(const int* x, long long* pieces, long long n) {
  if (threadIdx.x != 0) return;
  long long sum = 0;
  for (long long i = blockIdx.x * 128ll; i < n && i < (blockIdx.x + 1) * 128ll; ++i) sum += x[i];
  pieces[blockIdx.x] = sum;
}
extern "C" __global__ void sum_sums(const long long* pieces, long long* total, long long n) {
  long long sum = 0;
  for (long long i = 0; i < (n + 127) / 128; ++i) sum += pieces[i];
  total[0] = sum;
}
extern "C" __global__ void add_total(const int* x, const long long* total, long long* y, long long n) {
  const long long i = blockIdx.x * 128ll + threadIdx.x;
  if (i < n) y[i] = x[i] + total[0];
}
)";

// The last block to arrive adds up what all have left, and sets the counter back.
constexpr const char* kCounter = R"(
extern "C" __global__ void last_block(const int* x, long long* sum, long long* pieces, unsigned* counter) {
  if (threadIdx.x != 0) return;
  long long piece = 0;
  for (int i = 0; i < 64; ++i) piece += x[blockIdx.x * 64 + i];
  pieces[blockIdx.x] = piece;
  __threadfence();
  if (atomicAdd(counter, 1u) != gridDim.x - 1) return;
  __threadfence();
  long long all = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) all += ((volatile long long*)pieces)[i];
  sum[0] = all;
  counter[0] = 0;
}
)";

constexpr const char* kShared = R"(
extern __shared__ int words[];
extern "C" __global__ void reverse(const int* x, int* y, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) words[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = words[n - 1 - i];
}
)";

// Each block reads what the other one of its pair has in its shared memory.
constexpr const char* kCluster = R"(
extern "C" __global__ void exchange(int* ranks, int* y) {
  __shared__ int mine[32];
  unsigned rank, local, remote;
  int value;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  mine[threadIdx.x] = blockIdx.x * 1000 + threadIdx.x;
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  local = (unsigned)__cvta_generic_to_shared(&mine[threadIdx.x]);
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank ^ 1u));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(remote) : "memory");
  y[blockIdx.x * 32 + threadIdx.x] = value;
  if (threadIdx.x == 0) ranks[blockIdx.x] = rank;
  // Nobody leaves before all have read.
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
)";

constexpr const char* kTile = R"(
struct __align__(64) TensorMap { unsigned char bytes[128]; };
extern "C" __global__ void copy_tile(const __grid_constant__ TensorMap map, float* tiles) {
  __shared__ __align__(128) float tile[16 * 64];
  __shared__ __align__(8) unsigned long long barrier;
  const unsigned bar = (unsigned)__cvta_generic_to_shared(&barrier);
  const unsigned to = (unsigned)__cvta_generic_to_shared(tile);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(16 * 64 * 4) : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(to), "l"(&map), "r"((int)blockIdx.x * 64), "r"((int)blockIdx.y * 16), "r"(bar) : "memory");
  }
  __syncthreads();
  unsigned done = 0;
  while (done == 0)
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n\tselp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done) : "r"(bar) : "memory");
  float* const out = tiles + (blockIdx.y * gridDim.x + blockIdx.x) * 16 * 64;
  for (int i = threadIdx.x; i < 16 * 64; i += blockDim.x) out[i] = tile[i];
}
)";

// The second kernel may begin while the first one still works, and must not see half of it.
constexpr const char* kDependent = R"(
static __device__ unsigned long long now() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t) :: "memory");
  return t;
}
extern "C" __global__ void first(const int* x, int* middle, unsigned long long* times) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const unsigned long long begin = now();
  while (now() - begin < 30000) {}
  middle[blockIdx.x * blockDim.x + threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x] + 1;
  if (blockIdx.x == 0 && threadIdx.x == 0) times[0] = now();
}
extern "C" __global__ void second(const int* middle, int* y, unsigned long long* times) {
  if (blockIdx.x == 0 && threadIdx.x == 0) times[1] = now();
  asm volatile("griddepcontrol.wait;" ::: "memory");
  y[blockIdx.x * blockDim.x + threadIdx.x] = 2 * middle[blockIdx.x * blockDim.x + threadIdx.x];
}
)";

// A barrier of the whole grid, by hand.
constexpr const char* kCooperative = R"(
extern "C" __global__ void ring(int* y, int* values, unsigned* counters) {
  if (threadIdx.x != 0) return;
  values[blockIdx.x] = blockIdx.x * 3 + 1;
  __threadfence();
  atomicAdd(&counters[0], 1u);
  while (((volatile unsigned*)counters)[0] != gridDim.x) {}
  __threadfence();
  y[blockIdx.x] = ((volatile int*)values)[(blockIdx.x + 1) % gridDim.x];
  if (atomicAdd(&counters[1], 1u) == gridDim.x - 1) counters[0] = counters[1] = 0;
}
)";

constexpr const char* kAdd = R"(
extern "C" __global__ void add(const float* a, const float* b, float* y, long long rows) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < rows * 4096) y[i] = a[i] + b[i];
}
)";

enum class Fault { kIllegalAddress, kTrap, kMisaligned, kEndless };

const char* faultName(Fault fault) {
  constexpr const char* kNames[] = {"illegal_address", "trap", "misaligned", "endless"};
  return kNames[static_cast<size_t>(fault)];
}

// A kernel with these parameters that does wrong. MISALIGNED uses the first pointer, the others no parameter.
std::string faultSource(Fault fault, const std::vector<cache::LaunchParameter>& parameters) {
  std::string list, pointer;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string name = "p" + std::to_string(i);
    std::string type = "void*";
    if (std::holds_alternative<cache::PointerParameter>(parameters[i])) {
      if (pointer.empty()) pointer = name;
    } else if (std::holds_alternative<cache::SymbolParameter>(parameters[i])) {
      type = "long long";
    } else if (const auto* scalar = std::get_if<cache::ScalarParameter>(&parameters[i])) {
      type = "Bytes<" + std::to_string(scalar->bytes.size()) + ">";
    } else if (std::holds_alternative<cache::TensorMapParameter>(parameters[i])) {
      type = "const __grid_constant__ TensorMap";
    }
    list += (i == 0 ? "" : ", ") + type + " " + name;
  }
  std::string body;
  switch (fault) {
    case Fault::kIllegalAddress:
      body = R"(asm volatile("st.global.u32 [%0], %1;" ::"l"(0ull), "r"(1) : "memory");)";
      break;
    case Fault::kTrap:
      body = R"(asm volatile("trap;" ::: "memory");)";
      break;
    case Fault::kMisaligned:
      body = R"(asm volatile("st.global.u32 [%0], %1;" ::"l"((char*))" + pointer + R"( + 1), "r"(1) : "memory");)";
      break;
    case Fault::kEndless:
      body = R"(for (;;) asm volatile("nanosleep.u32 1000;" ::: "memory");)";
      break;
  }
  return "template <int N> struct Bytes { unsigned char bytes[N]; };\n"
         "struct __align__(64) TensorMap { unsigned char bytes[128]; };\n"
         "extern \"C\" __global__ void " +
         std::string(faultName(fault)) + "(" + list + ") {\n  " + body + "\n}\n";
}

// Parameters of every kind, for compiling.
std::vector<cache::LaunchParameter> allParameters() {
  return {cache::ScalarParameter{std::string(2, '\0')}, cache::PointerParameter{0}, cache::SymbolParameter{0},
          cache::WorkspaceParameter{0}, cache::TensorMapParameter{}};
}

Result<std::string> compile(const std::string& name, const std::string& source, const std::string& architecture) {
  static std::map<std::string, std::string> done;  // Sources tell architectures' tests apart well enough.
  const std::string key = architecture + source;
  if (const auto found = done.find(key); found != done.end()) return found->second;
  KTUNE_ASSIGN(const nvrtc::Nvrtc* nvrtc, nvrtc::Nvrtc::load());
  KTUNE_ASSIGN(std::string cubin, nvrtc::compileKernels(*nvrtc, {name, source, architecture, {}}));
  return done[key] = std::move(cubin);
}

cache::Artefact artefactOf(std::string cubin) {
  cache::Artefact artefact;
  artefact.kind = cache::ArtefactKind::kCubin;
  artefact.digest = digestOf(cubin);
  artefact.bytes = std::move(cubin);
  return artefact;
}

// Without artefact.
cache::Plan planOf(std::vector<cache::Launch> launches, int tensors, int symbols) {
  cache::Plan plan;
  plan.launches = std::move(launches);
  plan.tensorCount = tensors;
  plan.symbolCount = symbols;
  return plan;
}

cache::Launch launchOf(const std::string& symbol, std::vector<cache::LaunchParameter> parameters, cache::Extent grid,
                       int32_t block) {
  cache::Launch launch;
  launch.symbol = symbol;
  launch.parameters = std::move(parameters);
  launch.grid = {grid, cache::Extent{}, cache::Extent{}};
  launch.block = {block, 1, 1};
  return launch;
}

template <typename T>
cache::ScalarParameter scalarOf(T value) {
  return {std::string(reinterpret_cast<const char*>(&value), sizeof value)};
}

// BASE with one launch of a kernel that does wrong in the place of its own; VARIANT tells such plans apart.
Result<cache::Plan> faultyPlan(const cache::Plan& base, Fault fault, int64_t variant) {
  cache::Plan plan = base;
  const std::vector<cache::LaunchParameter> parameters = base.launches.at(0).parameters;
  KTUNE_ASSIGN(std::string cubin, compile(faultName(fault), faultSource(fault, parameters), gpu().target.architecture));
  plan.artefacts = {artefactOf(std::move(cubin))};
  plan.launches = {launchOf(faultName(fault), parameters, cache::Extent{}, static_cast<int32_t>(1 + variant % 32))};
  return plan;
}

// BASE with a workspace that no device has.
cache::Plan hugePlan(const cache::Plan& base, int64_t variant) {
  cache::Plan plan = base;
  plan.workspaces.push_back(
      {cache::WorkspaceKind::kScratch, 256, cache::Extent{400'000'000'000 + variant * 4096, -1, 1}});
  return plan;
}

// The only test of a machine without a GPU.
TEST(Kernels, CompileForHopper) {
  if (const auto nvrtc = nvrtc::Nvrtc::load(); !nvrtc) GTEST_SKIP() << nvrtc.error().toString();
  const std::pair<const char*, const char*> sources[] = {
      {"scale", kScale},     {"steps", kSteps}, {"counter", kCounter},     {"shared", kShared},
      {"cluster", kCluster}, {"tile", kTile},   {"dependent", kDependent}, {"cooperative", kCooperative},
      {"add", kAdd}};
  for (const auto& [name, source] : sources) {
    const Result<std::string> cubin = compile(name, source, "sm_90a");
    EXPECT_TRUE(cubin) << name << ": " << cubin.status().toString();
  }
  for (const Fault fault : {Fault::kIllegalAddress, Fault::kTrap, Fault::kMisaligned, Fault::kEndless}) {
    const Result<std::string> cubin = compile(faultName(fault), faultSource(fault, allParameters()), "sm_90a");
    EXPECT_TRUE(cubin) << faultName(fault) << ": " << cubin.status().toString();
  }
}

// ------------------------------------------------------------------------------------- faults that a process dies of

// What the device says of FAULT; exits with 0 when everything afterwards says the same and objects end peacefully.
[[noreturn]] void faultAndExit(Fault fault, const std::string& says) {
  bool right = false;
  {
    Result<std::unique_ptr<Device>> device = openDevice(kDeviceName);
    const cache::Plan base =
        planOf({launchOf(faultName(fault), {cache::PointerParameter{0}}, cache::Extent{}, 1)}, 1, 0);
    const Result<cache::Plan> plan = faultyPlan(base, fault, 0);
    if (!device || !plan) {
      std::cerr << device.status().toString() << " " << plan.status().toString() << "\n";
      std::exit(2);
    }
    Result<std::unique_ptr<DeviceMemory>> memory = (*device)->allocate(4096);
    Result<std::unique_ptr<LoadedPlan>> loaded = (*device)->load(*plan);
    if (!memory || !loaded) {
      std::cerr << memory.status().toString() << " " << loaded.status().toString() << "\n";
      std::exit(3);
    }
    void* const tensors[] = {(*memory)->data()};
    const Status ran = (*loaded)->run(tensors, {}, nullptr);
    const Status ended = (*device)->synchronize();
    char byte = 0;
    const Status later[] = {(*device)->copyFromDevice(&byte, (*memory)->data(), 1), (*device)->allocate(1).status(),
                            (*device)->load(*plan).status(), (*loaded)->run(tensors, {}, nullptr)};
    right = ran.isOk() && ended.code() == StatusCode::kUnavailable && ended.message().find(says) != std::string::npos &&
            std::all_of(std::begin(later), std::end(later), [&](const Status& s) {
              return s.code() == StatusCode::kUnavailable && s.message() == ended.message();
            });
    std::printf("the device said of %s: %s\n", faultName(fault), ended.toString().c_str());
    std::fflush(stdout);
    std::cerr << "run: " << ran.toString() << "\nsynchronize: " << ended.toString() << "\n";
    for (const Status& s : later) std::cerr << "later: " << s.toString() << "\n";
  }
  std::cerr << "all ended\n";
  std::exit(right ? 0 : 1);
}

// gtest runs suites of this name first, so that the children are alone on the device.
TEST(CudaFaultsDeathTest, TheDeviceIsLostAndSaysWhy) {
  EXPECT_EXIT(faultAndExit(Fault::kIllegalAddress, "illegal address"), ::testing::ExitedWithCode(0), "all ended");
  EXPECT_EXIT(faultAndExit(Fault::kMisaligned, "misaligned"), ::testing::ExitedWithCode(0), "all ended");
  // "A kernel crashed" or "an illegal instruction", as the driver likes.
  EXPECT_EXIT(faultAndExit(Fault::kTrap, "a kernel"), ::testing::ExitedWithCode(0), "all ended");
}

// ------------------------------------------------------------- faults in the measure worker, and in a whole tuning run
//
// These come before the tests that open the device in this process: a worker's lease wants to be alone.

class CudaWorkers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (programPath.empty())
      GTEST_SKIP() << "no ktune beside this program, in $KTUNE_PROGRAM or in --ktune=PATH; it runs the workers";
    folder_ = *makeTempDirectory("/tmp", "ktune-gpu-test");
    options_.program = programPath;
    options_.device = kDeviceName;
    options_.tempDirectory = folder_;
    options_.measureTimeoutSeconds = 2;
  }
  void TearDown() override {
    if (!folder_.empty()) (void)removeTree(folder_);
  }
  std::string folder_;
  WorkerOptions options_;
};

TEST_F(CudaWorkers, EachFaultCostsOneWorkerAndOneCandidate) {
  const op::Graph graph = *op::makeAdd({"M", 1, 64, {64}}, 4096, op::DType::kF32);
  const schedule::Problem problem = *schedule::Problem::create(graph, op::bucketsOf(graph).front());
  Result<std::string> cubin = compile("add", kAdd, gpu().target.architecture);
  ASSERT_TRUE(cubin) << cubin.error().toString();
  cache::Plan good = planOf({launchOf("add",
                                      {cache::PointerParameter{0}, cache::PointerParameter{1},
                                       cache::PointerParameter{2}, cache::SymbolParameter{0}},
                                      cache::Extent{16, 0, 1}, 256)},
                            3, 1);
  good.artefacts = {artefactOf(*cubin)};

  double before = monotonicSeconds();
  Result<std::unique_ptr<search::Measurer>> client = makeMeasureClient(options_, gpu().target);
  ASSERT_TRUE(client) << client.error().toString();
  const Result<search::MeasureFacts> facts = (*client)->open(problem, {}, {});
  ASSERT_TRUE(facts) << facts.error().toString();
  figure("worker_open", monotonicSeconds() - before, "s");
  figure("worker_copy", facts->copyBytesPerSecond * 1e-9, "GB/s");
  figure("worker_empty_launch", facts->emptyLaunchNs, "ns");
  int64_t id = 1;
  const auto expectGood = [&] {
    Result<search::CheckOutcome> outcome = (*client)->check(1, search::CheckLevel::kFull, {});
    ASSERT_TRUE(outcome) << outcome.error().toString();
    ASSERT_FALSE(outcome->rejection) << outcome->rejection->reason << ": " << outcome->rejection->detail;
    const int64_t ids[] = {1};
    Result<std::vector<search::Sample>> samples = (*client)->sample(ids, 0, 1e-3, {});
    ASSERT_TRUE(samples) << samples.error().toString();
    ASSERT_FALSE(samples->at(0).rejection) << samples->at(0).rejection->detail;
    EXPECT_GT(samples->at(0).ns, 100);
    EXPECT_LT(samples->at(0).ns, 5e6);
  };
  Result<std::optional<search::Rejection>> loaded = (*client)->load(id, good, {});
  ASSERT_TRUE(loaded) << loaded.error().toString();
  ASSERT_FALSE(*loaded) << (*loaded)->detail;
  ASSERT_NO_FATAL_FAILURE(expectGood());

  const struct {
    std::string name;
    Result<cache::Plan> plan;
    const char* reason;
    const char* says;
  } cases[] = {
      {"illegal_address", faultyPlan(good, Fault::kIllegalAddress, 0), "run-crash", "illegal address"},
      {"trap", faultyPlan(good, Fault::kTrap, 0), "run-crash", "lost its device"},
      {"misaligned", faultyPlan(good, Fault::kMisaligned, 0), "run-crash", "misaligned"},
      {"endless", faultyPlan(good, Fault::kEndless, 0), "run-timeout", "killed after 2"},
      {"huge_workspace", hugePlan(good, 0), "load-failed", "workspace: cuMemAlloc of 400000"},
  };
  // In a check, and while it is timed: each way has its own code.
  for (const bool timed : {false, true}) {
    for (const auto& c : cases) {
      SCOPED_TRACE(c.name + (timed ? ", timed" : ", checked"));
      ASSERT_TRUE(c.plan) << c.plan.status().toString();
      ++id;
      before = monotonicSeconds();
      loaded = (*client)->load(id, *c.plan, {});
      ASSERT_TRUE(loaded) << loaded.error().toString();
      ASSERT_FALSE(*loaded) << (*loaded)->reason << ": " << (*loaded)->detail;
      std::optional<search::Rejection> rejection;
      if (timed) {
        const int64_t ids[] = {id};
        Result<std::vector<search::Sample>> samples = (*client)->sample(ids, 0, 1e-3, {});
        // Not ASSERT: the other cases have something to tell, too.
        EXPECT_TRUE(samples) << samples.status().toString();
        if (samples) rejection = samples->at(0).rejection;
      } else {
        Result<search::CheckOutcome> outcome = (*client)->check(id, search::CheckLevel::kScreen, {});
        EXPECT_TRUE(outcome) << outcome.status().toString();
        if (outcome) rejection = outcome->rejection;
      }
      EXPECT_TRUE(rejection);
      if (rejection) {
        std::printf("%s%s: %s: %s\n", c.name.c_str(), timed ? " (timed)" : "", rejection->reason.c_str(),
                    rejection->detail.c_str());
        EXPECT_EQ(rejection->reason, c.reason);
        EXPECT_NE(rejection->detail.find(c.says), std::string::npos) << rejection->detail;
      }
      (*client)->drop(id);
      ASSERT_NO_FATAL_FAILURE(expectGood());  // With a new worker where the old one is gone.
      figure("fault_" + c.name + (timed ? "_timed" : "_checked") + "_and_recovery", monotonicSeconds() - before, "s");
    }
  }
}

// Of five outcomes one crashes, one hangs and one is too large; two stay, the first, which is the default, included.
class SabotagingCompiler final : public search::Compiler {
 public:
  explicit SabotagingCompiler(search::Compiler& inner) : inner_(inner) {}
  [[nodiscard]] int parallelism() const override { return inner_.parallelism(); }
  [[nodiscard]] Result<std::vector<search::CompileOutcome>> compile(const schedule::Problem& problem,
                                                                    std::span<const search::CompileRequest> requests,
                                                                    Deadline deadline) override {
    KTUNE_ASSIGN(std::vector<search::CompileOutcome> outcomes, inner_.compile(problem, requests, deadline));
    for (search::CompileOutcome& outcome : outcomes) {
      const int64_t number = seen_++;
      if (!base_ && !outcome.rejection) base_ = outcome.plan;
      if (!base_) continue;
      if (number % 5 == 1) {
        KTUNE_ASSIGN(outcome.plan, faultyPlan(*base_, Fault::kIllegalAddress, number));
      } else if (number % 5 == 2) {
        KTUNE_ASSIGN(outcome.plan, faultyPlan(*base_, Fault::kEndless, number));
      } else if (number % 5 == 3) {
        outcome.plan = hugePlan(*base_, number);
      } else {
        continue;
      }
      outcome.rejection.reset();
      ++planted;
    }
    return outcomes;
  }
  int64_t planted = 0;

 private:
  search::Compiler& inner_;
  std::optional<cache::Plan> base_;
  int64_t seen_ = 0;
};

op::Graph rmsNorm() {
  return *op::makeRmsNorm({"M", 1, 64, {64}}, 1, 4096, 1e-6, op::DType::kBF16);
}
std::optional<cache::Plan> tunedPlan;  // For LoadTime.

TEST_F(CudaWorkers, ATuningRunSurvivesFaultyCandidates) {
  const double started = monotonicSeconds();
  Result<std::unique_ptr<search::Compiler>> pool = makeCompilePool(options_, gpu().target);
  ASSERT_TRUE(pool) << pool.error().toString();
  SabotagingCompiler compiler(**pool);
  Result<std::unique_ptr<search::Measurer>> client = makeMeasureClient(options_, gpu().target);
  ASSERT_TRUE(client) << client.error().toString();
  const std::unique_ptr<cache::Store> store = cache::makeMemoryStore();
  search::Unit unit;
  unit.graph = rmsNorm();
  search::TunerOptions options;
  options.budget = {45, 12};
  options.target = gpu().target;
  options.stamp = {"test", (*nvrtc::Nvrtc::load())->version(), gpu().driver, kGuardVersion};
  search::Counters counters;
  const Result<std::vector<search::UnitReport>> reports =
      search::tuneUnits({unit}, options, compiler, **client, *store, counters);
  const double seconds = monotonicSeconds() - started;
  ASSERT_TRUE(reports) << reports.error().toString();
  ASSERT_EQ(reports->size(), 1u);
  const search::UnitReport& report = reports->front();
  ASSERT_EQ(report.outcome, search::UnitOutcome::kTuned) << report.status.toString();
  const cache::Record& record = report.record;
  for (const auto& [reason, count] : record.evidence.rejections)
    figure("tuning_rejected_" + reason, static_cast<double>(count), "candidates");
  figure("tuning_candidates", static_cast<double>(record.evidence.candidates), "candidates");
  figure("tuning_planted_faults", static_cast<double>(compiler.planted), "candidates");
  figure("tuning_with_faults", seconds, "s");
  figure("tuning_ratio", record.evidence.ratio, "of the default's time");
  for (const cache::PointEvidence& point : record.evidence.points)
    figure("tuning_rms_norm_M" + std::to_string(point.symbolValues.at(0)), point.medianNs * 1e-3, "us");
  for (const char* reason : {"run-crash", "run-timeout", "load-failed"}) {
    const auto found = record.evidence.rejections.find(reason);
    EXPECT_TRUE(found != record.evidence.rejections.end() && found->second >= 1) << reason;
  }
  EXPECT_NE(record.decision, cache::Decision::kUseFallback);
  EXPECT_LT(seconds, 60);
  const Result<std::optional<cache::Record>> published =
      store->get(op::keyOf(unit.graph, gpu().target.hardware), unit.bucketIndex);
  ASSERT_TRUE(published && *published);
  EXPECT_EQ((*published)->plan, record.plan);

  // The winner in a worker that has seen none of this.
  client = makeMeasureClient(options_, gpu().target);
  ASSERT_TRUE(client);
  const schedule::Problem problem = *schedule::Problem::create(unit.graph, record.bucket);
  const Result<search::MeasureFacts> facts = (*client)->open(problem, {.seed = 99}, {});
  ASSERT_TRUE(facts) << facts.error().toString();
  const Result<std::optional<search::Rejection>> loaded = (*client)->load(1, record.plan, {});
  ASSERT_TRUE(loaded) << loaded.error().toString();
  ASSERT_FALSE(*loaded) << (*loaded)->detail;
  const Result<search::CheckOutcome> checked = (*client)->check(1, search::CheckLevel::kFull, {});
  ASSERT_TRUE(checked) << checked.error().toString();
  EXPECT_FALSE(checked->rejection) << checked->rejection->reason << ": " << checked->rejection->detail;
  figure("tuning_winner_error_share", checked->worstErrorShare, "of the bound");
  tunedPlan = record.plan;
}

// ------------------------------------------------------------------------------------------------------- launch forms

class CudaGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    DeviceOptions options;
    options.compileKernel = [](const std::string& source, const std::string& architecture) {
      return compile("device_kernel", source, architecture);
    };
    Result<std::unique_ptr<Device>> device = openDevice(kDeviceName, options);
    ASSERT_TRUE(device) << device.error().toString();
    device_ = std::move(*device);
  }

  // Memory that lives as long as the test.
  template <typename T>
  T* upload(const std::vector<T>& values) {
    Result<std::unique_ptr<DeviceMemory>> memory = device_->allocate(values.size() * sizeof(T));
    if (!memory) {
      ADD_FAILURE() << memory.error().toString();
      return nullptr;
    }
    memory_.push_back(std::move(*memory));
    T* const address = reinterpret_cast<T*>(memory_.back()->data());
    write(address, values);
    return address;
  }
  template <typename T>
  void write(T* to, const std::vector<T>& values) {
    const Status status = device_->copyToDevice(to, values.data(), values.size() * sizeof(T));
    EXPECT_TRUE(status.isOk()) << status.toString();
  }
  template <typename T>
  std::vector<T> read(const T* from, size_t count) {
    std::vector<T> values(count);
    const Status status = device_->copyFromDevice(values.data(), from, count * sizeof(T));
    EXPECT_TRUE(status.isOk()) << status.toString();
    return values;
  }
  // Zeroed, as the plan's first run wants it.
  char* workspaceFor(const LoadedPlan& plan, const std::vector<int64_t>& symbols) {
    return upload(std::vector<char>(std::max<size_t>(1, plan.workspaceBytes(symbols)), '\0'));
  }
  std::unique_ptr<LoadedPlan> load(cache::Plan plan, const char* source) {
    Result<std::string> cubin = compile(plan.launches.at(0).symbol, source, device_->target().architecture);
    if (!cubin) {
      ADD_FAILURE() << cubin.error().toString();
      return nullptr;
    }
    plan.artefacts = {artefactOf(std::move(*cubin))};
    Result<std::unique_ptr<LoadedPlan>> loaded = device_->load(plan);
    if (!loaded) {
      ADD_FAILURE() << loaded.error().toString();
      return nullptr;
    }
    return std::move(*loaded);
  }
  void run(LoadedPlan& plan, const std::vector<void*>& tensors, const std::vector<int64_t>& symbols,
           void* workspace = nullptr) {
    Status status = plan.run(tensors, symbols, workspace);
    EXPECT_TRUE(status.isOk()) << status.toString();
    status = device_->synchronize();
    EXPECT_TRUE(status.isOk()) << status.toString();
  }
  // As a CUDA graph.
  void time(const std::string& name, LoadedPlan& plan, const std::vector<void*>& tensors,
            const std::vector<int64_t>& symbols, void* workspace = nullptr) {
    Result<std::unique_ptr<TimedCalls>> calls = device_->prepareTimedCalls(plan, {tensors}, symbols, workspace);
    ASSERT_TRUE(calls) << calls.error().toString();
    const Result<double> ns = (*calls)->nanosecondsPerCall(2e-3);
    ASSERT_TRUE(ns) << ns.error().toString();
    EXPECT_GT(*ns, 100);
    EXPECT_LT(*ns, 5e6);
    figure(name, *ns * 1e-3, "us");
  }

  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
};

TEST_F(CudaGpu, ParametersInOrderAndGridsOfSymbols) {
  cache::Launch launch =
      launchOf("scale",
               {cache::PointerParameter{2}, scalarOf(2.5f), cache::SymbolParameter{1}, cache::PointerParameter{0},
                scalarOf(static_cast<int16_t>(-7)), cache::PointerParameter{1}},
               cache::Extent{1, 1, 128}, 128);
  launch.attributes = {{"priority", -1}};
  const std::unique_ptr<LoadedPlan> plan = load(planOf({launch}, 3, 2), kScale);
  ASSERT_NE(plan, nullptr);
  constexpr size_t kMost = 100000;
  std::vector<float> x(kMost);
  for (size_t i = 0; i < kMost; ++i) x[i] = static_cast<float>(i % 1000);
  const std::vector<float> poison(kMost, -1e9f);
  const std::vector<void*> tensors = {upload(x), upload(std::vector<int>{-1}), upload(poison)};
  for (const int64_t n : {int64_t{1000}, int64_t{99999}, int64_t{1}}) {
    for (const bool timed : {false, true}) {
      write(static_cast<float*>(tensors[2]), poison);
      if (timed) {
        time("scale_" + std::to_string(n), *plan, tensors, {5, n});
      } else {
        run(*plan, tensors, {5, n});
      }
      EXPECT_EQ(read(static_cast<int*>(tensors[1]), 1)[0], (n + 127) / 128);
      const std::vector<float> y = read(static_cast<float*>(tensors[2]), kMost);
      size_t wrong = 0;
      for (size_t i = 0; i < kMost; ++i)
        wrong += y[i] != (static_cast<int64_t>(i) < n ? 2.5f * x[i] - 7.0f : poison[i]) ? 1 : 0;
      EXPECT_EQ(wrong, 0u) << n;
    }
  }
  // No blocks, no launch.
  write(static_cast<float*>(tensors[2]), poison);
  run(*plan, tensors, {5, 0});
  EXPECT_EQ(read(static_cast<float*>(tensors[2]), kMost), poison);
}

TEST_F(CudaGpu, PlansThatTheDeviceCanNotDoAreRefused) {
  const cache::Launch launch =
      launchOf("reverse", {cache::PointerParameter{0}, cache::PointerParameter{1}, scalarOf(1)}, cache::Extent{}, 32);
  const auto refusal = [&](const cache::Launch& one) {
    cache::Plan plan = planOf({one}, 2, 1);
    Result<std::string> cubin = compile("reverse", kShared, device_->target().architecture);
    EXPECT_TRUE(cubin) << cubin.status().toString();
    plan.artefacts = {artefactOf(cubin ? *cubin : std::string())};
    const Status status = device_->load(plan).status();
    std::printf("refused: %s\n", status.toString().c_str());
    return status.code();
  };
  EXPECT_EQ(refusal(launch), StatusCode::kOk);
  cache::Launch wrong = launch;
  wrong.parameters.pop_back();
  EXPECT_EQ(refusal(wrong), StatusCode::kInvalidArgument);
  wrong = launch;
  wrong.parameters.emplace_back(scalarOf(1));
  EXPECT_EQ(refusal(wrong), StatusCode::kInvalidArgument);
  wrong = launch;
  wrong.parameters[2] = cache::SymbolParameter{0};
  EXPECT_EQ(refusal(wrong), StatusCode::kInvalidArgument);
  wrong = launch;
  wrong.symbol = "missing";
  EXPECT_EQ(refusal(wrong), StatusCode::kNotFound);
  wrong = launch;
  wrong.block = {2048, 1, 1};
  EXPECT_EQ(refusal(wrong), StatusCode::kInvalidArgument);
  wrong = launch;
  wrong.dynamicSharedBytes = 1 << 20;
  EXPECT_EQ(refusal(wrong), StatusCode::kInvalidArgument);
  EXPECT_TRUE(device_->synchronize().isOk());
}

TEST_F(CudaGpu, LaunchesRunInOrderWithAWorkspaceBetweenThem) {
  using cache::Extent;
  using cache::PointerParameter;
  using cache::SymbolParameter;
  using cache::WorkspaceParameter;
  cache::Plan plan = planOf(
      {launchOf("sum_pieces", {PointerParameter{0}, WorkspaceParameter{0}, SymbolParameter{0}}, Extent{1, 0, 128}, 32),
       launchOf("sum_sums", {WorkspaceParameter{0}, WorkspaceParameter{1}, SymbolParameter{0}}, Extent{}, 1),
       launchOf("add_total", {PointerParameter{0}, WorkspaceParameter{1}, PointerParameter{1}, SymbolParameter{0}},
                Extent{1, 0, 128}, 128)},
      2, 1);
  plan.workspaces = {{cache::WorkspaceKind::kScratch, 64, Extent{8, 0, 1}},
                     {cache::WorkspaceKind::kScratch, 4096, Extent{8, -1, 1}}};
  const std::unique_ptr<LoadedPlan> loaded = load(plan, kSteps);
  ASSERT_NE(loaded, nullptr);
  constexpr size_t kMost = 5000;
  std::vector<int> x(kMost);
  std::iota(x.begin(), x.end(), 17);
  const std::vector<int64_t> poison(kMost, -1);
  const std::vector<void*> tensors = {upload(x), upload(poison)};
  void* const workspace = workspaceFor(*loaded, {kMost});
  for (const int64_t n : {int64_t{5000}, int64_t{1}, int64_t{1111}}) {
    const int64_t sum = std::accumulate(x.begin(), x.begin() + n, int64_t{0});
    for (const bool timed : {false, true}) {
      write(static_cast<int64_t*>(tensors[1]), poison);
      if (timed) {
        time("three_launches_" + std::to_string(n), *loaded, tensors, {n}, workspace);
      } else {
        run(*loaded, tensors, {n}, workspace);
      }
      const std::vector<int64_t> y = read(static_cast<int64_t*>(tensors[1]), kMost);
      size_t wrong = 0;
      for (size_t i = 0; i < kMost; ++i) wrong += y[i] != (static_cast<int64_t>(i) < n ? x[i] + sum : -1) ? 1 : 0;
      EXPECT_EQ(wrong, 0u) << n;
    }
  }
}

TEST_F(CudaGpu, AZeroedWorkspaceIsLeftZero) {
  constexpr int64_t kBlocks = 500;
  cache::Plan plan = planOf({launchOf("last_block",
                                      {cache::PointerParameter{0}, cache::PointerParameter{1},
                                       cache::WorkspaceParameter{0}, cache::WorkspaceParameter{1}},
                                      cache::Extent{kBlocks, -1, 1}, 32)},
                            2, 0);
  plan.workspaces = {{cache::WorkspaceKind::kScratch, 64, cache::Extent{8 * kBlocks, -1, 1}},
                     {cache::WorkspaceKind::kZeroed, 64, cache::Extent{4, -1, 1}}};
  const std::unique_ptr<LoadedPlan> loaded = load(plan, kCounter);
  ASSERT_NE(loaded, nullptr);
  std::vector<int> x(64 * kBlocks);
  std::iota(x.begin(), x.end(), -300);
  const int64_t sum = std::accumulate(x.begin(), x.end(), int64_t{0});
  const std::vector<void*> tensors = {upload(x), upload(std::vector<int64_t>{0})};
  char* const workspace = workspaceFor(*loaded, {});
  const std::vector<WorkspaceSlot> slots = loaded->workspaceSlots({});
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_EQ(slots[1].kind, cache::WorkspaceKind::kZeroed);
  for (int i = 0; i < 4; ++i) {
    write(static_cast<int64_t*>(tensors[1]), {0});
    if (i == 3) {
      time("last_block", *loaded, tensors, {}, workspace);
    } else {
      run(*loaded, tensors, {}, workspace);
    }
    EXPECT_EQ(read(static_cast<int64_t*>(tensors[1]), 1)[0], sum);
    EXPECT_EQ(read(reinterpret_cast<uint32_t*>(workspace + slots[1].offset), 1)[0], 0u);
  }
}

TEST_F(CudaGpu, DynamicSharedMemoryBeyond48K) {
  const auto bytes = static_cast<int32_t>(std::min<uint64_t>(device_->target().l1Bytes, 200 << 10) / 4 * 4);
  if (bytes <= (48 << 10)) GTEST_SKIP() << "this device has " << bytes << " bytes of shared memory a block";
  const int n = bytes / 4;
  cache::Launch launch =
      launchOf("reverse", {cache::PointerParameter{0}, cache::PointerParameter{1}, scalarOf(n)}, cache::Extent{}, 1024);
  launch.dynamicSharedBytes = bytes;
  const std::unique_ptr<LoadedPlan> loaded = load(planOf({launch}, 2, 0), kShared);
  ASSERT_NE(loaded, nullptr);
  std::vector<int> x(static_cast<size_t>(n));
  std::iota(x.begin(), x.end(), 1);
  const std::vector<int> expected(x.rbegin(), x.rend());
  const std::vector<void*> tensors = {upload(x), upload(std::vector<int>(x.size()))};
  run(*loaded, tensors, {});
  EXPECT_EQ(read(static_cast<int*>(tensors[1]), x.size()), expected);
  write(static_cast<int*>(tensors[1]), std::vector<int>(x.size()));
  time("shared_" + std::to_string(bytes >> 10) + "K", *loaded, tensors, {});
  EXPECT_EQ(read(static_cast<int*>(tensors[1]), x.size()), expected);
}

TEST_F(CudaGpu, ClustersShareTheirMemory) {
  if (!isHopper()) GTEST_SKIP() << "clusters: the test's kernels are for sm_90, this is " << gpu().target.architecture;
  cache::Launch launch =
      launchOf("exchange", {cache::PointerParameter{0}, cache::PointerParameter{1}}, cache::Extent{1, 0, 1}, 32);
  launch.cluster = {2, 1, 1};
  const std::unique_ptr<LoadedPlan> loaded = load(planOf({launch}, 2, 1), kCluster);
  ASSERT_NE(loaded, nullptr);
  constexpr int kBlocks = 400;
  const std::vector<int> ranksPoison(kBlocks, -1), poison(kBlocks * 32, -1);
  const std::vector<void*> tensors = {upload(ranksPoison), upload(poison)};
  for (const bool timed : {false, true}) {
    write(static_cast<int*>(tensors[0]), ranksPoison);
    write(static_cast<int*>(tensors[1]), poison);
    if (timed) {
      time("cluster_of_2", *loaded, tensors, {kBlocks});
    } else {
      run(*loaded, tensors, {kBlocks});
    }
    const std::vector<int> ranks = read(static_cast<int*>(tensors[0]), kBlocks);
    const std::vector<int> y = read(static_cast<int*>(tensors[1]), kBlocks * 32);
    size_t wrong = 0;
    for (int b = 0; b < kBlocks; ++b) {
      wrong += ranks[static_cast<size_t>(b)] != b % 2 ? 1 : 0;
      for (int t = 0; t < 32; ++t) wrong += y[static_cast<size_t>(b * 32 + t)] != (b ^ 1) * 1000 + t ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0u);
  }
  const std::vector<int64_t> odd = {3};
  EXPECT_EQ(loaded->run(tensors, odd, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(device_->synchronize().isOk());
}

TEST_F(CudaGpu, TensorMapsFillWithZerosBeyondTheEdge) {
  if (!isHopper())
    GTEST_SKIP() << "bulk copies: the test's kernels are for sm_90, this is " << gpu().target.architecture;
  constexpr int64_t kColumns = 96, kBoxColumns = 64, kBoxRows = 16, kMostRows = 40;
  cache::TensorMapParameter map;
  map.tensor = 0;
  map.extents = {cache::Extent{kColumns, -1, 1}, cache::Extent{1, 0, 1}};
  map.stridesBytes = {cache::Extent{kColumns * 4, -1, 1}};
  map.box = {kBoxColumns, kBoxRows};
  map.elementType = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  map.l2Promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  cache::Launch launch = launchOf("copy_tile", {map, cache::PointerParameter{1}}, cache::Extent{2, -1, 1}, 128);
  launch.grid[1] = cache::Extent{1, 0, kBoxRows};
  const std::unique_ptr<LoadedPlan> loaded = load(planOf({launch}, 2, 1), kTile);
  ASSERT_NE(loaded, nullptr);
  constexpr int64_t kMostTiles = 2 * ((kMostRows + kBoxRows - 1) / kBoxRows);
  std::vector<float> x(kColumns * kMostRows);
  std::iota(x.begin(), x.end(), 1.0f);
  std::vector<float> shifted = x;
  for (float& v : shifted) v += 10000;
  const std::vector<float> poison(kMostTiles * kBoxRows * kBoxColumns, -1);
  const std::vector<void*> one = {upload(x), upload(poison)};
  const std::vector<void*> other = {upload(shifted), one[1]};
  // Other sizes, then another address: the map is made again.
  const struct {
    const std::vector<void*>& tensors;
    const std::vector<float>& values;
    int64_t rows;
    bool timed;
  } calls[] = {{one, x, 40, false}, {one, x, 16, false},        {one, x, 3, false},
               {one, x, 40, true},  {other, shifted, 40, true}, {other, shifted, 17, false}};
  for (const auto& call : calls) {
    write(static_cast<float*>(one[1]), poison);
    if (call.timed) {
      time("tensor_map", *loaded, call.tensors, {call.rows});
    } else {
      run(*loaded, call.tensors, {call.rows});
    }
    const std::vector<float> tiles = read(static_cast<float*>(one[1]), poison.size());
    std::vector<float> expected = poison;
    const int64_t tileRows = (call.rows + kBoxRows - 1) / kBoxRows;
    for (int64_t row = 0; row < tileRows * kBoxRows; ++row) {
      for (int64_t column = 0; column < 2 * kBoxColumns; ++column) {
        const int64_t tile = row / kBoxRows * 2 + column / kBoxColumns;
        const int64_t at = (tile * kBoxRows + row % kBoxRows) * kBoxColumns + column % kBoxColumns;
        expected[static_cast<size_t>(at)] =
            row < call.rows && column < kColumns ? call.values[static_cast<size_t>(row * kColumns + column)] : 0.0f;
      }
    }
    EXPECT_EQ(tiles, expected) << call.rows;
  }
}

TEST_F(CudaGpu, ADependentLaunchWaitsForWhatItReads) {
  if (!isHopper())
    GTEST_SKIP() << "dependent launch: the test's kernels are for sm_90, this is " << gpu().target.architecture;
  constexpr int64_t kBlocks = 16, kThreads = 128;
  cache::Launch first =
      launchOf("first", {cache::PointerParameter{0}, cache::WorkspaceParameter{0}, cache::PointerParameter{2}},
               cache::Extent{kBlocks, -1, 1}, kThreads);
  cache::Launch second =
      launchOf("second", {cache::WorkspaceParameter{0}, cache::PointerParameter{1}, cache::PointerParameter{2}},
               cache::Extent{kBlocks, -1, 1}, kThreads);
  second.attributes = {{"programmatic_stream_serialization", 1}};
  cache::Plan plan = planOf({first, second}, 3, 0);
  plan.workspaces = {{cache::WorkspaceKind::kScratch, 256, cache::Extent{kBlocks * kThreads * 4, -1, 1}}};
  const std::unique_ptr<LoadedPlan> loaded = load(plan, kDependent);
  ASSERT_NE(loaded, nullptr);
  std::vector<int> x(kBlocks * kThreads), expected(x.size());
  void* const workspace = workspaceFor(*loaded, {});
  const std::vector<void*> tensors = {upload(x), upload(x), upload(std::vector<uint64_t>{0, 0})};
  for (int round = 0; round < 6; ++round) {
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<int>(i) + 1000 * round;
      expected[i] = 2 * (x[i] + 1);
    }
    write(static_cast<int*>(tensors[0]), x);
    if (round == 5) {
      time("dependent_launch_off", *loaded, tensors, {}, workspace);
    } else {
      run(*loaded, tensors, {}, workspace);
    }
    EXPECT_EQ(read(static_cast<int*>(tensors[1]), x.size()), expected) << round;
    const std::vector<uint64_t> times = read(static_cast<uint64_t*>(tensors[2]), 2);
    const double overlapUs = (static_cast<double>(times[0]) - static_cast<double>(times[1])) * 1e-3;
    // While calls are timed they do not overlap. (That they do otherwise is the driver's choice.)
    if (round == 5) {
      EXPECT_LE(overlapUs, 1.1);
    }
    figure(round == 5 ? "dependent_launch_overlap_timed" : "dependent_launch_overlap", overlapUs, "us");
  }
}

TEST_F(CudaGpu, CooperativeLaunchesRunAllBlocksAtOnce) {
  const int64_t blocks = 2 * int64_t{device_->target().cores};
  cache::Launch launch =
      launchOf("ring", {cache::PointerParameter{0}, cache::WorkspaceParameter{0}, cache::WorkspaceParameter{1}},
               cache::Extent{1, 0, 1}, 32);
  launch.attributes = {{"cooperative", 1}};
  cache::Plan plan = planOf({launch}, 1, 1);
  plan.workspaces = {{cache::WorkspaceKind::kScratch, 64, cache::Extent{4, 0, 1}},
                     {cache::WorkspaceKind::kZeroed, 64, cache::Extent{8, -1, 1}}};
  const std::unique_ptr<LoadedPlan> loaded = load(plan, kCooperative);
  ASSERT_NE(loaded, nullptr);
  std::vector<int> expected(static_cast<size_t>(blocks));
  for (int64_t b = 0; b < blocks; ++b) expected[static_cast<size_t>(b)] = static_cast<int>((b + 1) % blocks * 3 + 1);
  const std::vector<int> poison(expected.size(), -1);
  const std::vector<void*> tensors = {upload(poison)};
  void* const workspace = workspaceFor(*loaded, {blocks});
  for (const bool timed : {false, true}) {
    write(static_cast<int*>(tensors[0]), poison);
    if (timed) {
      time("cooperative", *loaded, tensors, {blocks}, workspace);
    } else {
      run(*loaded, tensors, {blocks}, workspace);
    }
    EXPECT_EQ(read(static_cast<int*>(tensors[0]), expected.size()), expected);
  }
  // More blocks than fit at once: refused, and nothing is the worse for it.
  const std::vector<int64_t> tooMany = {1000000};
  const Status refused = loaded->run(tensors, tooMany, workspace);
  std::printf("refused: %s\n", refused.toString().c_str());
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  run(*loaded, tensors, {blocks}, workspace);
  EXPECT_EQ(read(static_cast<int*>(tensors[0]), expected.size()), expected);
}

TEST_F(CudaGpu, Facts) {
  const Result<double> empty = device_->emptyLaunchNanoseconds();
  ASSERT_TRUE(empty) << empty.error().toString();
  EXPECT_GT(*empty, 100);
  EXPECT_LT(*empty, 1e5);
  figure("empty_launch", *empty, "ns");
  constexpr size_t kBytes = size_t{512} << 20;
  Result<std::unique_ptr<DeviceMemory>> from = device_->allocate(kBytes), to = device_->allocate(kBytes);
  ASSERT_TRUE(from && to);
  const Result<double> rate = device_->copyBytesPerSecond((*to)->data(), (*from)->data(), kBytes);
  ASSERT_TRUE(rate) << rate.error().toString();
  EXPECT_GT(*rate, 1e10);
  figure("copy_512M", *rate * 1e-9, "GB/s");
  const DeviceConditions conditions = device_->conditions();
  figure("clock", conditions.clockMhz, "MHz");
  figure("power", conditions.powerWatts, "W");
  figure("temperature", conditions.temperatureC, "C");
  std::printf("device: %s; %s; %s\n", device_->description().c_str(), device_->target().hardware.c_str(),
              device_->driver().c_str());
}

// ------------------------------------------------------------------------------------------------------------- memory

TEST_F(CudaGpu, CopiesOf300MegabytesArriveWhole) {
  constexpr size_t kWords = 300'000'000 / 4 + 3;
  std::vector<uint32_t> from(kWords), to(kWords);
  uint32_t state = 1;
  for (uint32_t& word : from) word = state = state * 1664525u + 1013904223u;
  const size_t bytes = kWords * 4 - 1;
  Result<std::unique_ptr<DeviceMemory>> memory = device_->allocate(kWords * 4), second = device_->allocate(kWords * 4);
  ASSERT_TRUE(memory && second);
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*memory)->data()) % kWorkspaceAlignment, 0u);
  for (const char* round : {"first", "second"}) {
    std::fill(to.begin(), to.end(), 0u);
    const double start = monotonicSeconds();
    ASSERT_TRUE(device_->copyToDevice((*memory)->data(), from.data(), bytes).isOk());
    const double copied = monotonicSeconds();
    ASSERT_TRUE(device_->copyOnDevice((*second)->data(), (*memory)->data(), bytes).isOk());
    const double moved = monotonicSeconds();
    ASSERT_TRUE(device_->copyFromDevice(to.data(), (*second)->data(), bytes).isOk());
    const double end = monotonicSeconds();
    EXPECT_EQ(std::memcmp(from.data(), to.data(), bytes), 0);
    EXPECT_EQ(to.back() >> 24, 0u);  // The byte past the end.
    const double gigabytes = static_cast<double>(bytes) * 1e-9;
    figure(std::string("to_device_") + round, gigabytes / (copied - start), "GB/s");
    figure(std::string("on_device_") + round, gigabytes / (moved - copied), "GB/s");
    figure(std::string("from_device_") + round, gigabytes / (end - moved), "GB/s");
  }
}

TEST_F(CudaGpu, MemoryThatIsNotThereIsNamed) {
  const uint64_t beyond = device_->target().memoryBytes * 4;
  const Result<std::unique_ptr<DeviceMemory>> card = device_->allocate(beyond);
  ASSERT_FALSE(card);
  EXPECT_EQ(card.error().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(card.error().message().find(std::to_string(beyond) + " bytes"), std::string::npos)
      << card.error().toString();
  std::printf("beyond the card: %s\n", card.error().toString().c_str());
  EXPECT_TRUE(device_->allocate(1 << 20));

  DeviceOptions options;
  options.memoryBytes = 64 << 20;
  Result<std::unique_ptr<Device>> capped = openDevice(kDeviceName, options);
  ASSERT_TRUE(capped) << capped.error().toString();
  Result<std::unique_ptr<DeviceMemory>> held = (*capped)->allocate(40 << 20);
  ASSERT_TRUE(held) << held.error().toString();
  const Result<std::unique_ptr<DeviceMemory>> over = (*capped)->allocate(30 << 20);
  ASSERT_FALSE(over);
  EXPECT_EQ(over.error().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(over.error().message().find(std::to_string(30 << 20) + " bytes"), std::string::npos)
      << over.error().toString();
  std::printf("beyond the cap: %s\n", over.error().toString().c_str());
  held->reset();
  EXPECT_TRUE((*capped)->allocate(30 << 20));
}

TEST(CudaLease, OneHolderAtATime) {
  DeviceOptions options;
  options.lease = true;
  double before = monotonicSeconds();
  Result<std::unique_ptr<Device>> first = openDevice(kDeviceName, options);
  ASSERT_TRUE(first) << first.error().toString();
  figure("lease_and_open", monotonicSeconds() - before, "s");
  EXPECT_EQ((*first)->foreignActivity(), "");
  const std::string self = "ktune process " + std::to_string(::getpid());
  for (const bool share : {false, true}) {
    options.shareDevice = share;
    const Result<std::unique_ptr<Device>> second = openDevice(kDeviceName, options);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code(), StatusCode::kUnavailable);
    EXPECT_NE(second.error().message().find(self), std::string::npos) << second.error().toString();
    std::printf("second holder: %s\n", second.error().toString().c_str());
  }
  first->reset();
  options.shareDevice = false;
  before = monotonicSeconds();
  const Result<std::unique_ptr<Device>> again = openDevice(kDeviceName, options);
  ASSERT_TRUE(again) << again.error().toString();
  figure("lease_again", monotonicSeconds() - before, "s");
  EXPECT_TRUE((*again)->allocate(1 << 20));
}

// ------------------------------------------------------------------------------------------------------- references

std::vector<double> randomValues(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<double> values(count);
  for (double& v : values) v = uniform(random);  // A float's, as inputs are.
  return values;
}

// As op::DotEngine says it, one output after the other.
void hostDots(const std::vector<double>& x, int64_t rows, const std::vector<double>& w, int64_t columns, int64_t k,
              std::vector<double>& sums, std::vector<double>& reaches) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      double lanes[8] = {}, reach[8] = {};
      for (int64_t t = 0; t < k; ++t) {
        double& lane = lanes[t % 8];
        lane = std::fma(x[static_cast<size_t>(i * k + t)], w[static_cast<size_t>(j * k + t)], lane);
        if ((t + 1) % 128 == 0 || t + 1 == k) {
          for (int l = 0; l < 8; ++l) reach[l] = std::max(reach[l], std::fabs(lanes[l]));
        }
      }
      const auto at = static_cast<size_t>(i * columns + j);
      sums[at] = std::accumulate(std::begin(lanes), std::end(lanes), 0.0);
      reaches[at] = std::accumulate(std::begin(reach), std::end(reach), 0.0);
    }
  }
}

TEST_F(CudaGpu, TheInspectorSaysWhatTheHostSays) {
  ASSERT_NE(device_->inspector(), nullptr);
  testing::InspectorChecks(*device_, *device_->inspector()).run();
}

TEST_F(CudaGpu, DotsAreThoseOfTheHost) {
  op::DotEngine* const engine = device_->dotEngine();
  ASSERT_NE(engine, nullptr);
  const int64_t shapes[][3] = {{1, 1, 1},    {33, 31, 7},   {5, 65, 129},   {64, 1, 1000},
                               {32, 32, 32}, {31, 97, 128}, {96, 200, 1500}};
  for (const auto& [rows, columns, k] : shapes) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns) + " x " + std::to_string(k));
    const std::vector<double> x = randomValues(static_cast<size_t>(rows * k), 1);
    const std::vector<double> w = randomValues(static_cast<size_t>(columns * k), 2);
    const auto count = static_cast<size_t>(rows * columns);
    std::vector<double> sums(count, 1e300), reaches(count, 1e300), hostSums(count), hostReaches(count);
    const Status status = engine->dots(x.data(), rows, w.data(), columns, k, sums.data(), reaches.data());
    ASSERT_TRUE(status.isOk()) << status.toString();
    hostDots(x, rows, w, columns, k, hostSums, hostReaches);
    double worst = 0;
    for (size_t i = 0; i < count; ++i) {
      // A sum may be near nothing; how far it went on the way is what its roundings go by.
      worst = std::max(worst, std::fabs(sums[i] - hostSums[i]) / std::max(1e-30, hostReaches[i]));
      worst = std::max(worst, std::fabs(reaches[i] - hostReaches[i]) / std::max(1e-30, hostReaches[i]));
    }
    EXPECT_LE(worst, 1e-12);
  }
}

TEST_F(CudaGpu, LargeReferencesComeFromTheDevice) {
  struct Counting final : op::DotEngine {
    explicit Counting(op::DotEngine& engine) : inner(engine) {}
    Status dots(const double* x, int64_t rows, const double* w, int64_t columns, int64_t k, double* sums,
                double* reaches) override {
      Status status = inner.dots(x, rows, w, columns, k, sums, reaches);
      succeeded += status.isOk() ? 1 : 0;
      return status;
    }
    op::DotEngine& inner;
    int succeeded = 0;
  };
  ASSERT_NE(device_->dotEngine(), nullptr);
  constexpr int64_t kRows = 97, kColumns = 1201, kTerms = 1501;
  static_assert(static_cast<double>(kRows * kColumns * kTerms) > op::kLeastEngineProducts);
  const op::Graph graph = *op::makeLinear({"M", 1, kRows, {kRows}}, kColumns, kTerms, op::DType::kF32);
  std::vector<op::RefTensor> inputs(2);
  inputs[0].shape = {kRows, kTerms};
  inputs[0].values = randomValues(kRows * kTerms, 3);
  inputs[1].shape = {kColumns, kTerms};
  inputs[1].values = randomValues(kColumns * kTerms, 4);
  Counting engine(*device_->dotEngine());
  const op::ParallelFor parallelFor = [&](int64_t count, const std::function<void(int64_t, int64_t)>& body) {
    device_->parallelFor(count, body);
  };
  const double start = monotonicSeconds();
  const Result<std::vector<op::RefTensor>> byDevice =
      op::evaluateReference(graph, {kRows}, inputs, parallelFor, &engine);
  const double middle = monotonicSeconds();
  const Result<std::vector<op::RefTensor>> byHost = op::evaluateReference(graph, {kRows}, inputs, parallelFor);
  const double end = monotonicSeconds();
  ASSERT_TRUE(byDevice) << byDevice.error().toString();
  ASSERT_TRUE(byHost) << byHost.error().toString();
  EXPECT_EQ(engine.succeeded, 1);
  figure("reference_device", (middle - start) * 1e3, "ms");
  figure("reference_host", (end - middle) * 1e3, "ms");
  const op::RefTensor& a = byDevice->at(0);
  const op::RefTensor& b = byHost->at(0);
  ASSERT_EQ(a.values.size(), b.values.size());
  ASSERT_EQ(a.bounds.size(), b.bounds.size());
  double worstValue = 0, worstBound = 0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    worstValue = std::max(worstValue, std::fabs(a.values[i] - b.values[i]) / std::max(1.0, std::fabs(b.values[i])));
    worstBound = std::max(worstBound, std::fabs(a.bounds[i] - b.bounds[i]) / b.bounds[i]);
  }
  EXPECT_LE(worstValue, 1e-12);
  EXPECT_LE(worstBound, 1e-12);
  figure("reference_worst_value_difference", worstValue, "relative");
  figure("reference_worst_bound_difference", worstBound, "relative");
}

// ---------------------------------------------------------------------------------------------------------- load time

TEST_F(CudaGpu, LoadTime) {
  cache::Plan plan;
  if (tunedPlan) {
    plan = *tunedPlan;
  } else {
    // The tuning run was left out: its default will do.
    if (programPath.empty()) GTEST_SKIP() << "no ktune to compile a plan with";
    const std::string folder = *makeTempDirectory("/tmp", "ktune-gpu-test");
    WorkerOptions options;
    options.program = programPath;
    options.device = kDeviceName;
    options.tempDirectory = folder;
    options.compileJobs = 1;
    Result<std::unique_ptr<search::Compiler>> pool = makeCompilePool(options, gpu().target);
    ASSERT_TRUE(pool) << pool.error().toString();
    const op::Graph graph = rmsNorm();
    const schedule::Problem problem = *schedule::Problem::create(graph, op::bucketsOf(graph).front());
    const search::CompileRequest request{1, schedule::defaultGenome(problem, gpu().target)};
    const Result<std::vector<search::CompileOutcome>> outcomes = (*pool)->compile(problem, {&request, 1}, {});
    pool->reset();
    (void)removeTree(folder);
    ASSERT_TRUE(outcomes) << outcomes.error().toString();
    ASSERT_FALSE(outcomes->at(0).rejection) << outcomes->at(0).rejection->detail;
    plan = outcomes->at(0).plan;
  }
  std::vector<double> ms;
  for (int i = 0; i < 20; ++i) {
    const double start = monotonicSeconds();
    const Result<std::unique_ptr<LoadedPlan>> loaded = device_->load(plan);
    ms.push_back((monotonicSeconds() - start) * 1e3);
    ASSERT_TRUE(loaded) << loaded.error().toString();
  }
  figure("load_bytes", static_cast<double>(plan.bytes().size()), "bytes");
  figure("load_first", ms.front(), "ms");
  std::sort(ms.begin(), ms.end());
  figure("load_median", (ms[9] + ms[10]) / 2, "ms");
}

// The ktune program: named by the command line or the environment, beside this one, or the build's.
std::string findProgram(const std::string& named) {
  std::vector<std::string> places;
  if (!named.empty()) return named;
  if (const char* variable = std::getenv("KTUNE_PROGRAM"); variable != nullptr) return variable;
  if (const Result<std::string> self = currentProgramPath())
    places.push_back((std::filesystem::path(*self).parent_path() / "ktune").string());
  places.emplace_back(KTUNE_BINARY_DIR "/tools/ktune");
  for (const std::string& place : places) {
    if (::access(place.c_str(), X_OK) == 0) return place;
  }
  return {};
}

}  // namespace
}  // namespace ktune::runtime

// [--ktune=PATH] and GoogleTest's arguments.
int main(int argc, char** argv) {
  using namespace ktune::runtime;
  ::testing::InitGoogleTest(&argc, argv);
  std::string named;
  for (int i = 1; i < argc; ++i) {
    constexpr std::string_view kOption = "--ktune=";
    if (std::string_view(argv[i]).starts_with(kOption)) named = argv[i] + kOption.size();
  }
  // Forking a process that has called the driver is not allowed: children start anew.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  programPath = findProgram(named);
  if (!findGpu()) {
    std::printf("skipped: there is no %s (`ktune doctor` says why); only the kernels are compiled\n", kDeviceName);
    GTEST_FLAG_SET(filter, "Kernels.*");
  }
  return RUN_ALL_TESTS();
}
