#include "runtime/launch/devices/cuda/CudaTiming.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/Deadline.h"

namespace ktune::runtime::cuda {

const char* const kEmptyPtx = R"(.version 6.3
.target sm_70
.address_size 64
.visible .entry ktune_empty()
{
  ret;
}
)";
const char* const kEmptySource = "extern \"C\" __global__ void ktune_empty() {}\n";

namespace {

// A graph shorter than this would show the gap of a microsecond or two before each replay, and the host might not keep
// up with the device.
constexpr double kLeastGraphNs = 200e3;
constexpr size_t kMostGraphCalls = 256;
constexpr int64_t kMostReplays = int64_t{1} << 20;
constexpr double kBusyAfterEndSeconds = 5e-3;
constexpr double kBusyAfterEndShare = 0.25;
constexpr int kEmptyLaunches = 64;
constexpr int kRepeats = 7;
constexpr double kCopySeconds = 2e-3;

class CudaTimedCalls final : public TimedCalls {
 public:
  CudaTimedCalls(std::unique_ptr<CallGraph> graph, size_t calls) : graph_(std::move(graph)), calls_(calls) {}

  [[nodiscard]] Result<double> nanosecondsPerCall(double seconds) override {
    if (replayNs_ == 0) {
      KTUNE_TRY(graph_->replay(1).status());  // Its first replay uploads what is left to upload.
      KTUNE_ASSIGN(replayNs_, graph_->replay(1));
    }
    const double wanted = std::ceil(seconds * 1e9 / std::max(replayNs_, 1000.0));
    const auto replays = static_cast<int64_t>(std::clamp(wanted, 1.0, static_cast<double>(kMostReplays)));
    KTUNE_ASSIGN(const double elapsed, graph_->replay(replays));
    replayNs_ = elapsed / static_cast<double>(replays);
    return replayNs_ / static_cast<double>(calls_);
  }

 private:
  std::unique_ptr<CallGraph> graph_;
  const size_t calls_;
  double replayNs_ = 0;  ///< By the last measurement.
};

// Two events on the context's stream.
class Stopwatch {
 public:
  explicit Stopwatch(CudaContext& context) : context_(context) {}
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    for (CUevent event : {start_, end_}) {
      if (event != nullptr) (void)context_.driver().eventDestroy(event);
    }
  }
  Status start() {
    const Driver& driver = context_.driver();
    if (start_ == nullptr) KTUNE_TRY(context_.check(driver.eventCreate(&start_, CU_EVENT_DEFAULT), "cuEventCreate"));
    if (end_ == nullptr) KTUNE_TRY(context_.check(driver.eventCreate(&end_, CU_EVENT_DEFAULT), "cuEventCreate"));
    return context_.check(driver.eventRecord(start_, context_.stream()), "cuEventRecord");
  }
  /// Nanoseconds since start(), when all work queued between them is done.
  Result<double> stop() {
    const Driver& driver = context_.driver();
    KTUNE_TRY(context_.check(driver.eventRecord(end_, context_.stream()), "cuEventRecord"));
    KTUNE_TRY(context_.check(driver.eventSynchronize(end_), "waiting for the device"));
    float ms = 0;
    KTUNE_TRY(context_.check(driver.eventElapsedTime(&ms, start_, end_), "cuEventElapsedTime"));
    return static_cast<double>(ms) * 1e6;
  }

 private:
  CudaContext& context_;
  CUevent start_ = nullptr, end_ = nullptr;
};

// Nothing that an earlier kernel made stay in the second-level cache may help this one.
Status resetPersistingCache(CudaContext& context) {
  const Driver& driver = context.driver();
  for (const CUresult result :
       {driver.ctxResetPersistingL2Cache(), driver.ctxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0)}) {
    // MIG slices and devices before 8.0 have no such thing.
    if (isFatal(result)) return context.check(result, "resetting the persisting L2 cache");
  }
  return Status::ok();
}

}  // namespace

Result<std::unique_ptr<CallGraph>> CallGraph::capture(std::shared_ptr<CudaContext> context,
                                                      const std::function<Status()>& enqueue) {
  CudaContext& c = *context;
  const Driver& driver = c.driver();
  Current current(c);
  KTUNE_TRY(current.status());
  std::unique_ptr<CallGraph> made(new CallGraph(std::move(context)));
  KTUNE_TRY(
      c.check(driver.streamBeginCapture(c.stream(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture"));
  const Status queued = enqueue();
  const CUresult ended = driver.streamEndCapture(c.stream(), &made->graph_);
  KTUNE_TRY(queued);
  KTUNE_TRY(c.check(ended, "cuStreamEndCapture"));
  KTUNE_TRY(c.check(driver.graphInstantiate(&made->executable_, made->graph_, 0), "cuGraphInstantiate"));
  KTUNE_TRY(c.check(driver.graphUpload(made->executable_, c.stream()), "cuGraphUpload"));
  KTUNE_TRY(c.check(driver.eventCreate(&made->start_, CU_EVENT_DEFAULT), "cuEventCreate"));
  KTUNE_TRY(c.check(driver.eventCreate(&made->end_, CU_EVENT_DEFAULT), "cuEventCreate"));
  KTUNE_TRY(c.synchronize());
  return made;
}

CallGraph::~CallGraph() {
  const Driver& driver = context_->driver();
  Current current(*context_);
  if (executable_ != nullptr) (void)driver.graphExecDestroy(executable_);
  if (graph_ != nullptr) (void)driver.graphDestroy(graph_);
  if (start_ != nullptr) (void)driver.eventDestroy(start_);
  if (end_ != nullptr) (void)driver.eventDestroy(end_);
}

Result<double> CallGraph::replay(int64_t replays) {
  CudaContext& c = *context_;
  const Driver& driver = c.driver();
  Current current(c);
  KTUNE_TRY(current.status());
  for (int attempt = 0;; ++attempt) {
    KTUNE_TRY(resetPersistingCache(c));
    // One more before the clock starts: the device is busy while the host queues the rest, and the first of them does
    // not pay for waking it. A single long replay does without.
    if (replays > 1) KTUNE_TRY(c.check(driver.graphLaunch(executable_, c.stream()), "cuGraphLaunch"));
    KTUNE_TRY(c.check(driver.eventRecord(start_, c.stream()), "cuEventRecord"));
    for (int64_t i = 0; i < replays; ++i)
      KTUNE_TRY(c.check(driver.graphLaunch(executable_, c.stream()), "cuGraphLaunch"));
    KTUNE_TRY(c.check(driver.eventRecord(end_, c.stream()), "cuEventRecord"));
    KTUNE_TRY(c.check(driver.eventSynchronize(end_), "waiting for the device"));
    const double endedAt = monotonicSeconds();
    KTUNE_TRY(c.check(driver.ctxSynchronize(), "cuCtxSynchronize"));
    const double busySeconds = monotonicSeconds() - endedAt;
    float ms = 0;
    KTUNE_TRY(c.check(driver.eventElapsedTime(&ms, start_, end_), "cuEventElapsedTime"));
    const double elapsed = static_cast<double>(ms) * 1e6;
    if (busySeconds <= std::max(kBusyAfterEndSeconds, kBusyAfterEndShare * elapsed * 1e-9)) return elapsed;
    // Once may be the host's doing.
    if (attempt > 0)
      return internalError("the device went on working for " + std::to_string(busySeconds * 1e3) +
                           " ms after the event that ends the measurement (" + std::to_string(ms) + " ms)");
  }
}

Result<std::unique_ptr<TimedCalls>> makeTimedCalls(CudaPlan& plan, const std::vector<std::vector<void*>>& sets,
                                                   const std::vector<int64_t>& symbolValues, void* workspace) {
  if (sets.empty()) return invalidArgument("timed calls need at least one set of tensors");
  CudaContext& context = *plan.context();
  Current current(context);
  KTUNE_TRY(current.status());
  const auto round = [&]() -> Status {
    for (const std::vector<void*>& set : sets)
      KTUNE_TRY(plan.launchAll(set, symbolValues, workspace, /*programmatic=*/false));
    return Status::ok();
  };
  // A call outside any graph: whatever a launch may have to load is loaded. A round of few says how many make a graph.
  KTUNE_TRY(plan.launchAll(sets.front(), symbolValues, workspace, /*programmatic=*/false));
  const size_t mostRounds = std::max<size_t>(1, kMostGraphCalls / sets.size());
  size_t rounds = 1;
  if (mostRounds > 1) {
    Stopwatch watch(context);
    KTUNE_TRY(watch.start());
    KTUNE_TRY(round());
    KTUNE_ASSIGN(const double roundNs, watch.stop());
    const double wanted = std::ceil(kLeastGraphNs / std::max(roundNs, 1.0));
    rounds = static_cast<size_t>(std::clamp(wanted, 1.0, static_cast<double>(mostRounds)));
  }
  KTUNE_ASSIGN(std::unique_ptr<CallGraph> graph, CallGraph::capture(plan.context(), [&]() -> Status {
                 for (size_t i = 0; i < rounds; ++i) KTUNE_TRY(round());
                 return Status::ok();
               }));
  return std::unique_ptr<TimedCalls>(std::make_unique<CudaTimedCalls>(std::move(graph), rounds * sets.size()));
}

Result<double> timeCopies(const std::shared_ptr<CudaContext>& context, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return invalidArgument("a copy of 0 bytes has no speed");
  CudaContext& c = *context;
  Current current(c);
  KTUNE_TRY(current.status());
  const auto copies = [&](int64_t count) -> Status {
    for (int64_t i = 0; i < count; ++i)
      KTUNE_TRY(c.check(c.driver().memcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(to),
                                                   reinterpret_cast<CUdeviceptr>(from), bytes, c.stream()),
                        "copying on the device", bytes));
    return Status::ok();
  };
  Stopwatch watch(c);
  KTUNE_TRY(copies(1));
  KTUNE_TRY(watch.start());
  KTUNE_TRY(copies(1));
  KTUNE_ASSIGN(double once, watch.stop());
  const auto count =
      static_cast<int64_t>(std::clamp(std::ceil(kCopySeconds * 1e9 / std::max(once, 1000.0)), 1.0, 1000.0));
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRepeats; ++i) {
    KTUNE_TRY(watch.start());
    KTUNE_TRY(copies(count));
    KTUNE_ASSIGN(const double elapsed, watch.stop());
    least = std::min(least, elapsed / static_cast<double>(count));
  }
  if (!(least > 0)) return internalError("a copy took no time");
  return 2.0 * static_cast<double>(bytes) / least * 1e9;
}

Result<double> timeEmptyLaunch(const std::shared_ptr<CudaContext>& context, const std::string& image) {
  CudaContext& c = *context;
  const Driver& driver = c.driver();
  Current current(c);
  KTUNE_TRY(current.status());
  CUmodule module = nullptr;
  KTUNE_TRY(c.check(driver.moduleLoadData(&module, image.c_str()), "loading an empty kernel"));
  const auto measure = [&]() -> Result<double> {
    CUfunction function = nullptr;
    KTUNE_TRY(c.check(driver.moduleGetFunction(&function, module, "ktune_empty"), "cuModuleGetFunction"));
    CUlaunchConfig config{};
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = config.blockDimY = config.blockDimZ = 1;
    config.hStream = c.stream();
    const auto launch = [&] {
      return c.check(driver.launchKernelEx(&config, function, nullptr, nullptr), "an empty launch");
    };
    KTUNE_TRY(launch());
    KTUNE_TRY(c.synchronize());
    KTUNE_ASSIGN(const std::unique_ptr<CallGraph> graph, CallGraph::capture(context, [&]() -> Status {
                   for (int i = 0; i < kEmptyLaunches; ++i) KTUNE_TRY(launch());
                   return Status::ok();
                 }));
    KTUNE_TRY(graph->replay(1).status());
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kRepeats; ++i) {
      KTUNE_ASSIGN(const double elapsed, graph->replay(1));
      least = std::min(least, elapsed / kEmptyLaunches);
    }
    return least;
  };
  Result<double> measured = measure();
  (void)driver.streamSynchronize(c.stream());
  (void)driver.moduleUnload(module);
  return measured;
}

}  // namespace ktune::runtime::cuda
