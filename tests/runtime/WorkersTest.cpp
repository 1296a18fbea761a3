// The worker processes with the fake compiler and device: each fault, restarts, and that nothing is left behind.
#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>
#include <thread>

#include "base/File.h"
#include "base/System.h"
#include "ir/op/Builder.h"
#include "ir/op/Reference.h"
#include "ir/schedule/Vary.h"
#include "runtime/Kernels.h"
#include "runtime/RemoteDevice.h"
#include "runtime/launch/devices/fake/FakeDevice.h"
#include "runtime/worker/Protocol.h"
#include "runtime/worker/TimingBuffers.h"
#include "runtime/worker/WorkerFolders.h"
#include "runtime/worker/Workers.h"

namespace ktune::runtime {
namespace {

using search::CheckLevel;
using search::CompileOutcome;
using search::CompileRequest;

std::vector<std::string> entriesOf(const std::string& folder) {
  std::vector<std::string> names;
  if (DIR* directory = ::opendir(folder.c_str())) {
    while (const dirent* entry = ::readdir(directory)) {
      if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    }
    ::closedir(directory);
  }
  return names;
}

// Our children that live or wait to be reaped.
std::vector<pid_t> children() {
  std::vector<pid_t> found;
  for (const std::string& name : entriesOf("/proc")) {
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file("/proc/" + name + "/stat");
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const size_t close = text.rfind(')');
    if (close == std::string::npos) continue;
    pid_t parent = 0;
    if (std::sscanf(text.c_str() + close, ") %*c %d", &parent) == 1 && parent == ::getpid())
      found.push_back(std::stoi(name));
  }
  return found;
}
int childCount() {
  return static_cast<int>(children().size());
}

class Workers : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = *makeTempDirectory("/tmp", "ktune-workers-test");
    options_.program = KTUNE_TEST_WORKER;
    options_.device = "fake";
    options_.tempDirectory = folder_ + "/tmp";
    options_.compileTimeoutSeconds = kSlow;
    options_.measureTimeoutSeconds = kSlow;
    problem_ = *schedule::Problem::create(graph_, op::bucketsOf(graph_)[1]);
    default_ = schedule::defaultGenome(problem_, target_);
    schedule::Random random(3);
    for (int i = 0; i < 6; ++i)
      others_.push_back(schedule::mutate(i == 0 ? default_ : others_.back(), problem_, target_, 1, random));
    others_.erase(std::remove(others_.begin(), others_.end(), default_), others_.end());
  }
  void TearDown() override {
    ::unsetenv("KTUNE_FAULT");
    EXPECT_EQ(childCount(), 0);
    EXPECT_TRUE(entriesOf(options_.tempDirectory).empty()) << entriesOf(options_.tempDirectory).front();
    (void)removeTree(folder_);
  }
  void inject(const std::string& faults) { ::setenv("KTUNE_FAULT", faults.c_str(), 1); }
  cache::Plan planOf(const schedule::PlanGenome& genome) { return *compileFake(problem_, genome, target_, {}); }

#if KTUNE_SANITIZED
  static constexpr double kSlow = 120, kQuick = 5;
#else
  static constexpr double kSlow = 60, kQuick = 1;
#endif
  std::string folder_;
  WorkerOptions options_;
  const schedule::Target target_ = schedule::fakeTarget();
  const op::Graph graph_ = *op::makeRmsNorm({"M", 1, 8, {1, 8}}, 1, 96, 1e-6, op::DType::kF32);
  schedule::Problem problem_;
  schedule::PlanGenome default_;
  std::vector<schedule::PlanGenome> others_;
};

// ------------------------------------------------------------------------------------------------------- compiling

TEST_F(Workers, CompilesInOrderAndKeepsWorkers) {
  Result<std::unique_ptr<search::Compiler>> pool = makeCompilePool(options_, target_);
  ASSERT_TRUE(pool) << pool.error().toString();
  EXPECT_GE((*pool)->parallelism(), 1);
  EXPECT_LE((*pool)->parallelism(), usableCores());
  std::vector<CompileRequest> requests;
  for (int64_t i = 0; i < 20; ++i)
    requests.push_back({100 + i, i % 2 == 0 ? default_ : others_[static_cast<size_t>(i) % others_.size()]});
  for (int round = 0; round < 3; ++round) {
    Result<std::vector<CompileOutcome>> outcomes = (*pool)->compile(problem_, requests, {});
    ASSERT_TRUE(outcomes) << outcomes.error().toString();
    ASSERT_EQ(outcomes->size(), requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const CompileOutcome& outcome = (*outcomes)[i];
      EXPECT_EQ(outcome.id, requests[i].id);
      ASSERT_FALSE(outcome.rejection.has_value()) << outcome.rejection->detail;
      EXPECT_EQ(outcome.plan, planOf(requests[i].genome));
    }
    EXPECT_LE(childCount(), (*pool)->parallelism());
  }
  // Another problem in the same workers.
  const schedule::Problem other = *schedule::Problem::create(graph_, op::bucketsOf(graph_)[0]);
  const CompileRequest request{1, schedule::defaultGenome(other, target_)};
  Result<std::vector<CompileOutcome>> outcomes = (*pool)->compile(other, {&request, 1}, {});
  ASSERT_TRUE(outcomes);
  ASSERT_FALSE((*outcomes)[0].rejection) << (*outcomes)[0].rejection->detail;
  EXPECT_EQ((*outcomes)[0].plan, *compileFake(other, request.genome, target_, {}));
  EXPECT_TRUE((*pool)->compile(other, {}, {})->empty());
}

TEST_F(Workers, EachCompileFaultIsOneRejection) {
  const struct {
    const char* faults;
    const char* reason;
    const char* says;
  } table[] = {{"compile-error=1", "compile-error", "injected"},
               {"compile-crash=1", "compile-crash", "signal 11"},
               {"compile-hang=1", "compile-timeout", "killed after"},
               {"compile-memory=1", "compile-memory", ""}};
  for (const auto& row : table) {
    SCOPED_TRACE(row.faults);
    inject(row.faults);
    options_.compileTimeoutSeconds = std::string(row.reason) == "compile-timeout" ? kQuick : kSlow;
    Result<std::unique_ptr<search::Compiler>> pool = makeCompilePool(options_, target_);
    ASSERT_TRUE(pool);
    const std::vector<CompileRequest> requests = {
        {1, default_}, {2, others_[0]}, {3, default_}, {4, others_[1]}, {5, default_}};
    Result<std::vector<CompileOutcome>> outcomes = (*pool)->compile(problem_, requests, {});
    ASSERT_TRUE(outcomes) << outcomes.error().toString();
    ASSERT_EQ(outcomes->size(), requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const CompileOutcome& outcome = (*outcomes)[i];
      ASSERT_EQ(outcome.rejection.has_value(), i % 2 == 1) << i << (outcome.rejection ? outcome.rejection->detail : "");
      if (i % 2 == 0) continue;
      EXPECT_EQ(outcome.rejection->reason, row.reason) << outcome.rejection->detail;
      EXPECT_NE(outcome.rejection->detail.find(row.says), std::string::npos) << outcome.rejection->detail;
    }
    EXPECT_LE(childCount(), (*pool)->parallelism());
  }
}

TEST_F(Workers, IllegalGenomesAreRejectedByName) {
  Result<std::unique_ptr<search::Compiler>> pool = makeCompilePool(options_, target_);
  ASSERT_TRUE(pool);
  CompileRequest request{9, default_};
  request.genome.kernels[0].vector = 5;
  Result<std::vector<CompileOutcome>> outcomes = (*pool)->compile(problem_, {&request, 1}, {});
  ASSERT_TRUE(outcomes);
  ASSERT_TRUE((*outcomes)[0].rejection);
  EXPECT_EQ((*outcomes)[0].rejection->reason, "illegal");
}

TEST_F(Workers, AfterTheDeadlineRequestsAreMissingFromTheEnd) {
  Result<std::unique_ptr<search::Compiler>> pool = makeCompilePool(options_, target_);
  ASSERT_TRUE(pool);
  const std::vector<CompileRequest> requests(200000, CompileRequest{1, default_});
  EXPECT_TRUE((*pool)->compile(problem_, requests, Deadline::after(-1))->empty());
  ASSERT_EQ((*pool)->compile(problem_, std::span(requests).first(2), {})->size(), 2u);
  Result<std::vector<CompileOutcome>> some = (*pool)->compile(problem_, requests, Deadline::after(0.02));
  ASSERT_TRUE(some);
  EXPECT_LT(some->size(), requests.size());
}

TEST_F(Workers, ACompilerThatNeverStartsIsAnError) {
  inject("start=1");
  Result<std::unique_ptr<search::Compiler>> pool = makeCompilePool(options_, target_);
  ASSERT_TRUE(pool);
  const CompileRequest request{1, default_};
  Result<std::vector<CompileOutcome>> outcomes = (*pool)->compile(problem_, {&request, 1}, {});
  ASSERT_FALSE(outcomes);
  EXPECT_EQ(outcomes.error().code(), StatusCode::kUnavailable);
  EXPECT_NE(outcomes.error().message().find("refusing to start"), std::string::npos) << outcomes.error().message();
  options_.program = "/nowhere/ktune";
  pool = makeCompilePool(options_, target_);
  ASSERT_TRUE(pool);
  EXPECT_EQ((*pool)->compile(problem_, {&request, 1}, {}).error().code(), StatusCode::kUnavailable);
}

TEST_F(Workers, FoldersOfDeadTunersAreSwept) {
  const std::string parent = options_.tempDirectory;
  ASSERT_TRUE(makeDirectories(parent).isOk());
  // A process that is certainly dead, and reaped.
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ::waitpid(dead, nullptr, 0);
  const std::string stale = parent + "/ktune-" + std::to_string(dead) + "-abcdef";
  const std::string alive = parent + "/ktune-" + std::to_string(::getpid()) + "-abcdef";
  const std::string foreign = parent + "/ktune-settings";
  for (const std::string& path : {stale, alive, foreign}) ASSERT_TRUE(makeDirectories(path + "/inside").isOk());
  {
    Result<std::unique_ptr<WorkerFolders>> folders = WorkerFolders::create(parent);
    ASSERT_TRUE(folders);
    const std::vector<std::string> names = entriesOf(parent);
    EXPECT_EQ(names.size(), 3u);
    EXPECT_EQ(std::count(names.begin(), names.end(), stale.substr(parent.size() + 1)), 0);
  }
  EXPECT_EQ(entriesOf(parent).size(), 2u);
  for (const std::string& path : {alive, foreign}) ASSERT_TRUE(removeTree(path).isOk());
}

// ------------------------------------------------------------------------------------------------------- measuring

TEST_F(Workers, MeasuresHonestPlans) {
  for (int round = 0; round < 3; ++round) {
    const uint64_t seed = round == 1 ? 2 : 1;
    options_.device = round == 2 ? "remote" : "fake";
    Result<std::unique_ptr<search::Measurer>> client = makeMeasureClient(options_, target_);
    ASSERT_TRUE(client);
    search::Measurer& measurer = **client;
    EXPECT_FALSE(measurer.load(1, planOf(default_), {}));  // Nothing is open.
    search::MeasureOptions options;
    options.seed = seed;
    Result<search::MeasureFacts> facts = measurer.open(problem_, options, {});
    ASSERT_TRUE(facts) << facts.error().toString();
    EXPECT_GT(facts->copyBytesPerSecond, 0);
    EXPECT_GT(facts->emptyLaunchNs, 0);
    EXPECT_FALSE(facts->regime.empty());
    EXPECT_EQ(childCount(), 1);
    EXPECT_FALSE(measurer.check(1, CheckLevel::kScreen, {}));  // Plans are forgotten.
    ASSERT_FALSE(*measurer.load(1, planOf(default_), {}));
    ASSERT_FALSE(*measurer.load(2, planOf(others_[0]), {}));
    for (CheckLevel level : {CheckLevel::kScreen, CheckLevel::kFull}) {
      Result<search::CheckOutcome> outcome = measurer.check(1, level, {});
      ASSERT_TRUE(outcome) << outcome.error().toString();
      EXPECT_FALSE(outcome->rejection) << outcome->rejection->detail;
      EXPECT_FALSE(outcome->checks.empty());
      EXPECT_GE(outcome->worstErrorShare, 0);
      EXPECT_LE(outcome->worstErrorShare, 1);
    }
    const std::vector<int64_t> ids{2, 1, 2};
    for (int point = 0; point < static_cast<int>(op::scoringPoints(problem_.bucket).size()); ++point) {
      Result<std::vector<search::Sample>> samples = measurer.sample(ids, point, 1e-3, {});
      ASSERT_TRUE(samples) << samples.error().toString();
      ASSERT_EQ(samples->size(), 3u);
      const std::vector<int64_t> symbols = op::scoringPoints(problem_.bucket)[static_cast<size_t>(point)];
      EXPECT_NEAR((*samples)[1].ns / fakeCostNs(problem_, default_, symbols), 1, 0.04);
      EXPECT_NEAR((*samples)[0].ns / fakeCostNs(problem_, others_[0], symbols), 1, 0.04);
    }
    measurer.drop(2);
    EXPECT_FALSE(measurer.sample(ids, 0, 1e-3, {}));
    EXPECT_FALSE(measurer.sample(std::vector<int64_t>{1}, 99, 1e-3, {}));
  }
}

TEST_F(Workers, EachRunFaultRejectsTheGuiltyAndOnlyIt) {
  const struct {
    const char* faults;
    const char* reason;
    const char* says;
    const char* device = "fake";
  } table[] = {{"run-crash=1", "run-crash", "signal 11"},
               {"run-hang=1", "run-timeout", "killed after"},
               {"wrong=1", "wrong-result", "error bound"},
               {"unwritten=1", "unwritten-output", "not written"},
               {"overrun=1", "guard-band", "past the end"},
               {"input=1", "input-overwritten", "changed"},
               {"flaky=1", "nondeterministic", "differs"},
               {"flood=1", "", ""},
               {"refused=1", "load-failed", "refused"},
               {"device=1", "run-crash", "lost its device: the fake device failed: an illegal access"},
               {"overrun=1", "guard-band", "past the end", "remote"},
               {"refused=1", "load-failed", "refused", "remote"},
               {"device=1", "run-crash", "lost its device: the fake device failed: an illegal access", "remote"}};
  for (const auto& row : table) {
    SCOPED_TRACE(std::string(row.faults) + " on " + row.device);
    inject(row.faults);
    options_.device = row.device;
    options_.measureTimeoutSeconds = std::string(row.reason) == "run-timeout" ? kQuick : kSlow;
    Result<std::unique_ptr<search::Measurer>> client = makeMeasureClient(options_, target_);
    ASSERT_TRUE(client);
    search::Measurer& measurer = **client;
    ASSERT_TRUE(measurer.open(problem_, {}, {}));
    ASSERT_FALSE(*measurer.load(1, planOf(default_), {}));
    ASSERT_FALSE(*measurer.load(2, planOf(others_[0]), {}));
    for (int round = 0; round < 2; ++round) {
      Result<search::CheckOutcome> guilty = measurer.check(2, CheckLevel::kScreen, {});
      ASSERT_TRUE(guilty) << guilty.error().toString();
      ASSERT_EQ(guilty->rejection.has_value(), row.reason[0] != 0);
      if (guilty->rejection) {
        EXPECT_EQ(guilty->rejection->reason, row.reason) << guilty->rejection->detail;
        EXPECT_NE(guilty->rejection->detail.find(row.says), std::string::npos) << guilty->rejection->detail;
      }
      Result<search::CheckOutcome> innocent = measurer.check(1, CheckLevel::kFull, {});
      ASSERT_TRUE(innocent) << innocent.error().toString();
      EXPECT_FALSE(innocent->rejection) << innocent->rejection->detail;
      // At most the one worker.
      EXPECT_EQ(childCount(), 1);
    }
    const std::vector<int64_t> ids{1, 2, 1};
    Result<std::vector<search::Sample>> samples = measurer.sample(ids, 0, 1e-3, {});
    ASSERT_TRUE(samples) << samples.error().toString();
    EXPECT_FALSE((*samples)[0].rejection);
    EXPECT_EQ((*samples)[1].rejection.has_value(), row.reason[0] != 0);
    EXPECT_FALSE((*samples)[2].rejection);
  }
}

TEST_F(Workers, ACrashWhileTimingIsFoundToo) {
  const struct {
    const char* device;
    const char* faults;
    const char* reason;
  } table[] = {
      {"fake", "run-crash=1", "run-crash"}, {"fake", "refused=1", "load-failed"}, {"remote", "device=1", "run-crash"}};
  for (const auto& row : table) {
    SCOPED_TRACE(row.faults);
    inject(row.faults);
    options_.device = row.device;
    Result<std::unique_ptr<search::Measurer>> client = makeMeasureClient(options_, target_);
    ASSERT_TRUE(client);
    ASSERT_TRUE((*client)->open(problem_, {}, {}));
    for (int64_t id : {1, 2, 3, 4})
      ASSERT_FALSE(*(*client)->load(id, planOf(id == 1 ? default_ : others_[static_cast<size_t>(id) - 2]), {}));
    const std::vector<int64_t> ids{2, 1, 3, 4, 1};
    Result<std::vector<search::Sample>> samples = (*client)->sample(ids, 0, 1e-3, {});
    ASSERT_TRUE(samples) << samples.error().toString();
    for (size_t i = 0; i < ids.size(); ++i) {
      ASSERT_EQ((*samples)[i].rejection.has_value(), ids[i] != 1) << i;
      if (ids[i] != 1) {
        EXPECT_EQ((*samples)[i].rejection->reason, row.reason);
      }
    }
  }
}

TEST_F(Workers, SamplesOfAHotDeviceAreTakenAgain) {
  // The remote device's watts are the samples that it has taken.
  const struct {
    const char* device;
    double samples;
  } table[] = {{"remote", 1}, {"hot:2", 2}, {"hot:1000", 4}};
  for (const auto& row : table) {
    SCOPED_TRACE(row.device);
    options_.device = row.device;
    Result<std::unique_ptr<search::Measurer>> client = makeMeasureClient(options_, target_);
    ASSERT_TRUE(client);
    ASSERT_TRUE((*client)->open(problem_, {}, {}));
    ASSERT_FALSE(*(*client)->load(1, planOf(default_), {}));
    Result<search::Conditions> conditions = (*client)->conditions({});
    ASSERT_TRUE(conditions) << conditions.error().toString();
    EXPECT_EQ(conditions->powerWatts, 0);
    const std::vector<int64_t> ids{1};
    ASSERT_TRUE((*client)->sample(ids, 0, 1e-3, {}));
    conditions = (*client)->conditions({});
    ASSERT_TRUE(conditions) << conditions.error().toString();
    EXPECT_EQ(conditions->powerWatts, row.samples);
    EXPECT_EQ(conditions->clockMhz, 1500);
    EXPECT_EQ(conditions->temperatureC, 50);
    EXPECT_EQ(conditions->throttle, row.samples < 4 ? "power cap" : "power cap, thermal");
  }
  options_.device = "fake";
  Result<std::unique_ptr<search::Measurer>> client = makeMeasureClient(options_, target_);
  ASSERT_TRUE(client);
  ASSERT_TRUE((*client)->open(problem_, {}, {}));
  const Result<search::Conditions> nothing = (*client)->conditions({});
  ASSERT_TRUE(nothing);
  EXPECT_EQ(nothing->clockMhz, 0);
  EXPECT_EQ(nothing->throttle, "");
}

TEST_F(Workers, TheCallersDeadlineBlamesNobody) {
  inject("run-hang=1");
  Result<std::unique_ptr<search::Measurer>> client = makeMeasureClient(options_, target_);
  ASSERT_TRUE(client);
  ASSERT_TRUE((*client)->open(problem_, {}, {}));
  ASSERT_FALSE(*(*client)->load(1, planOf(default_), {}));
  ASSERT_FALSE(*(*client)->load(2, planOf(others_[0]), {}));
  Result<search::CheckOutcome> outcome = (*client)->check(2, CheckLevel::kScreen, Deadline::after(0.1));
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE((*client)->check(1, CheckLevel::kScreen, {}));
}

TEST_F(Workers, AMeasureWorkerThatNeverStartsIsAnError) {
  inject("start=1");
  Result<std::unique_ptr<search::Measurer>> client = makeMeasureClient(options_, target_);
  ASSERT_TRUE(client);
  Result<search::MeasureFacts> facts = (*client)->open(problem_, {}, {});
  ASSERT_FALSE(facts);
  EXPECT_EQ(facts.error().code(), StatusCode::kUnavailable);
}

TEST_F(Workers, AWorkerThatIsKilledFromOutsideIsReplaced) {
  Result<std::unique_ptr<search::Measurer>> client = makeMeasureClient(options_, target_);
  ASSERT_TRUE(client);
  ASSERT_TRUE((*client)->open(problem_, {}, {}));
  ASSERT_FALSE(*(*client)->load(1, planOf(default_), {}));
  ASSERT_FALSE(*(*client)->load(2, planOf(others_[0]), {}));
  for (int round = 0; round < 2; ++round) {
    for (pid_t child : children()) ::kill(child, SIGKILL);
    // No kernel can do that, so nobody is blamed.
    Result<search::CheckOutcome> outcome = (*client)->check(1, CheckLevel::kScreen, {});
    ASSERT_TRUE(outcome) << outcome.error().toString();
    EXPECT_FALSE(outcome->rejection);
    const std::vector<int64_t> ids{1, 2};
    Result<std::vector<search::Sample>> samples = (*client)->sample(ids, 0, 1e-3, {});
    ASSERT_TRUE(samples) << samples.error().toString();
    for (const search::Sample& sample : *samples) EXPECT_FALSE(sample.rejection);
  }
}

// ------------------------------------------------------------------------------------------------- real time, real cpu

TEST_F(Workers, TheCpuDeviceIsTimedCold) {
  KTUNE_NEEDS_HOST_COMPILER();
  options_.device = "cpu";
  options_.measureMemoryBytes = uint64_t{256} << 20;
  const op::Graph graph = *op::makeAdd({"M", 1, 64, {64}}, 4096, op::DType::kF32);
  const schedule::Problem problem = *schedule::Problem::create(graph, op::bucketsOf(graph).front());
  const auto kernel = [&](int repeats) {
    return testing::planOfC(problem,
                            "KERNEL { const f32* a = args[0]; const f32* b = args[1]; f32* y = args[2];\n"
                            "  for (int n = 0; n < " +
                                std::to_string(repeats) +
                                "; ++n) {\n"
                                "    for (i64 i = first * 4096; i < last * 4096; ++i) y[i] = a[i] + b[i];\n"
                                "    __asm__ volatile(\"\" ::: \"memory\"); } }");
  };
  Result<std::unique_ptr<search::Measurer>> client = makeMeasureClient(options_, target_);
  ASSERT_TRUE(client);
  Result<search::MeasureFacts> facts = (*client)->open(problem, {}, {});
  ASSERT_TRUE(facts) << facts.error().toString();
  EXPECT_GT(facts->copyBytesPerSecond, 1e8);
  EXPECT_LT(facts->copyBytesPerSecond, 1e13);
  EXPECT_GT(facts->emptyLaunchNs, 0);
  EXPECT_NE(facts->regime.find("cold"), std::string::npos);
  ASSERT_FALSE(*(*client)->load(1, kernel(1), {}));
  ASSERT_FALSE(*(*client)->load(2, kernel(20), {}));
  for (int64_t id : {1, 2}) {
    Result<search::CheckOutcome> outcome = (*client)->check(id, CheckLevel::kFull, {});
    ASSERT_TRUE(outcome) << outcome.error().toString();
    EXPECT_FALSE(outcome->rejection) << outcome->rejection->detail;
  }
  const std::vector<int64_t> ids{1, 2, 1, 2};
  Result<std::vector<search::Sample>> samples = (*client)->sample(ids, 2, 5e-3, {});
  ASSERT_TRUE(samples) << samples.error().toString();
  EXPECT_GT((*samples)[1].ns, 2 * (*samples)[0].ns);
  for (const search::Sample& sample : *samples) EXPECT_GT(sample.ns, 1000);

  // A plan that is not right on the whole bucket is not even loaded.
  cache::Plan narrow = kernel(1);
  narrow.preconditions.push_back({cache::Precondition::Kind::kSymbolRange, 0, 2, 64});
  std::optional<search::Rejection> rejection = *(*client)->load(3, narrow, {});
  ASSERT_TRUE(rejection);
  EXPECT_EQ(rejection->reason, "load-failed");
  // Over the cap: an error that says how much.
  options_.measureMemoryBytes = uint64_t{64} << 20;
  client = makeMeasureClient(options_, target_);
  const op::Graph large = *op::makeAdd({"M", 1, 4096, {4096}}, 4096, op::DType::kF32);
  facts = (*client)->open(*schedule::Problem::create(large, op::bucketsOf(large).front()), {}, {});
  ASSERT_FALSE(facts);
  EXPECT_EQ(facts.error().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(facts.error().message().find("bytes"), std::string::npos);
}

TEST(TimingBuffers, SetsAreColdDistinctAndWithinTheCap) {
  op::GraphBuilder b;
  const int32_t m = b.symbol("M", 1, 4096, {4096});
  const int32_t x = b.input("x", op::DType::kF32, {op::Dim::symbolic(m), op::Dim::fixed(256)});
  const int32_t y = b.input("y", op::DType::kF32, {op::Dim::symbolic(m), op::Dim::fixed(256)});
  b.output(b.node("add", {x, y}));
  b.output(b.node("mul", {x, y}), y);
  const op::Graph graph = *b.finish();
  const std::vector<op::ValueType> types = *op::inferTypes(graph);
  constexpr uint64_t kCap = uint64_t{32} << 20;
  std::unique_ptr<Device> device = makeFakeDevice({});
  TimingBuffers buffers(*device, uint64_t{4} << 20, kCap, 1);
  EXPECT_EQ(buffers.coldBytes(), uint64_t{8} << 20);
  for (int64_t rows : {1, 100, 4096}) {
    SCOPED_TRACE(rows);
    const std::vector<TensorView> views = tensorViews(graph, types, {rows});
    const uint64_t bytes = buffers.bytesFor(graph, views);
    Result<BufferRing> ring = buffers.ring(graph, views);
    ASSERT_TRUE(ring) << ring.error().toString();
    const uint64_t setBytes = static_cast<uint64_t>(rows) * 256 * 4 * 3;
    EXPECT_GE(ring->count(), 2u);
    EXPECT_GE(setBytes * ring->count(), rows == 1 ? 1 : buffers.coldBytes());
    EXPECT_LE(bytes, kCap);
    std::set<void*> seen;
    for (size_t s = 0; s < ring->count(); ++s) {
      const std::span<void* const> set = ring->set(s);
      ASSERT_EQ(set.size(), 4u);
      EXPECT_EQ(set[3], set[1]);
      for (void* address : {set[0], set[1], set[2]}) {
        EXPECT_TRUE(seen.insert(address).second);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(address) % 256, 0u);
      }
      EXPECT_EQ((static_cast<char*>(set[0]) - static_cast<char*>(ring->set(0)[0])) % 4096, 0);
      const auto* values = static_cast<const float*>(set[0]);
      EXPECT_FALSE(values[0] == 0 && values[1] == 0 && values[2] == 0);
    }
    void* input = ring->set(1)[1];
    *static_cast<float*>(input) = 1e30f;
    ASSERT_TRUE(buffers.renew(op::DType::kF32, input, 1024).isOk());
    EXPECT_LT(std::fabs(*static_cast<float*>(input)), 10);
  }
  Result<BufferRing> large = buffers.ring(graph, tensorViews(graph, types, {40000}));
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code(), StatusCode::kResourceExhausted);
  const Result<double> rate = buffers.copyBytesPerSecond(uint64_t{4} << 20);
  ASSERT_TRUE(rate);
  EXPECT_GT(*rate, 1e6);
}

TEST(TimingBuffers, ADevicesOwnMemoryIsTakenExactly) {
  op::GraphBuilder b;
  const int32_t m = b.symbol("M", 1, 4096, {4096});
  const int32_t x = b.input("x", op::DType::kBF16, {op::Dim::symbolic(m), op::Dim::fixed(1024)});
  const int32_t y = b.input("y", op::DType::kBF16, {op::Dim::symbolic(m), op::Dim::fixed(1024)});
  b.output(b.node("add", {x, y}), y);
  const op::Graph graph = *b.finish();
  const std::vector<op::ValueType> types = *op::inferTypes(graph);
  std::vector<std::vector<TensorView>> points;
  for (int64_t rows : {1, 300, 4096}) points.push_back(tensorViews(graph, types, {rows}));
  constexpr uint64_t kCap = uint64_t{64} << 20;
  testing::RemoteDevice device({});
  TimingBuffers buffers(device, uint64_t{6} << 20, kCap, 1);
  ASSERT_TRUE(buffers.expect(graph, points).isOk());
  EXPECT_EQ(device.allocated, 0u);
  uint64_t allocated = 0;
  for (const std::vector<TensorView>& views : points) {
    Result<BufferRing> ring = buffers.ring(graph, views);
    ASSERT_TRUE(ring) << ring.error().toString();
    if (allocated == 0) allocated = device.allocated;
    EXPECT_EQ(device.allocated, allocated);  // The first has taken it for all.
    const auto setBytes = static_cast<uint64_t>(views[0].spanBytes() + views[1].spanBytes());
    EXPECT_GE(ring->count() * setBytes, std::min(buffers.coldBytes(), 2 * setBytes));
    for (size_t s = 0; s < ring->count(); ++s) {
      uint16_t values[3] = {};
      ASSERT_TRUE(device.copyFromDevice(values, ring->set(s)[0], sizeof values).isOk());
      EXPECT_TRUE(values[0] != 0 && (values[0] != values[1] || values[1] != values[2])) << s;
      EXPECT_EQ(ring->set(s)[2], ring->set(s)[1]);
    }
    const uint16_t huge = 0x7f00;
    void* input = ring->set(ring->count() - 1)[1];
    ASSERT_TRUE(device.copyToDevice(input, &huge, 2).isOk());
    ASSERT_TRUE(buffers.renew(op::DType::kBF16, input, 2048).isOk());
    allocated = device.allocated;
    uint16_t again = 0;
    ASSERT_TRUE(device.copyFromDevice(&again, input, 2).isOk());
    EXPECT_NE(again, huge);
  }
  EXPECT_LE(device.allocated, kCap);
  const uint64_t before = device.allocated;
  const Result<double> rate = buffers.copyBytesPerSecond(uint64_t{2} << 20);
  ASSERT_TRUE(rate) << rate.error().toString();
  EXPECT_GT(*rate, 1e6);
  EXPECT_EQ(device.allocated, before);

  // What does not fit is refused before anything is taken, or by the device.
  TimingBuffers capped(device, uint64_t{6} << 20, uint64_t{8} << 20, 1);
  EXPECT_EQ(capped.expect(graph, points).code(), StatusCode::kResourceExhausted);
  testing::RemoteDevice small({}, uint64_t{4} << 20);
  TimingBuffers without(small, uint64_t{6} << 20, kCap, 1);
  ASSERT_TRUE(without.expect(graph, points).isOk());
  EXPECT_EQ(without.ring(graph, points.front()).error().code(), StatusCode::kResourceExhausted);
}

TEST(TimingBuffers, ARaceTakesFewSetsOfTinyTensors) {
  const op::Graph graph = *op::makeAdd({"M", 1, 1, {1}}, 1024, op::DType::kBF16);
  const std::vector<TensorView> views = tensorViews(graph, *op::inferTypes(graph), {1});
  testing::RemoteDevice device({});
  constexpr uint64_t kCap = uint64_t{64} << 20;
  TimingBuffers race(device, uint64_t{6} << 20, kCap, 1, /*manySets=*/false);
  TimingBuffers final(device, uint64_t{6} << 20, kCap, 1);
  for (TimingBuffers* buffers : {&race, &final}) ASSERT_TRUE(buffers->expect(graph, {views}).isOk());
  const Result<BufferRing> few = race.ring(graph, views);
  ASSERT_TRUE(few) << few.error().toString();
  EXPECT_EQ(few->count(), 512u);
  const Result<BufferRing> many = final.ring(graph, views);
  ASSERT_TRUE(many) << many.error().toString();
  EXPECT_GE(many->count() * 3 * 2048, final.coldBytes());
}

TEST(TimingBuffers, LargeWeightsMayBeBorrowed) {
  op::GraphBuilder b;
  const int32_t x = b.input("x", op::DType::kF32, {op::Dim::fixed(16), op::Dim::fixed(1024)});
  const int32_t w = b.input("w", op::DType::kF32, {op::Dim::fixed(2048), op::Dim::fixed(1024)}, true);
  b.output(b.node("linear", {x, w}));
  op::Graph graph = *b.finish();
  const std::vector<TensorView> views = tensorViews(graph, *op::inferTypes(graph), {});
  std::unique_ptr<Device> device = makeFakeDevice({});
  TimingBuffers buffers(*device, uint64_t{1} << 20, uint64_t{32} << 20, 1);
  EXPECT_FALSE(buffers.mayBorrow(graph.inputs[0], views[0]));  // Changes from call to call.
  EXPECT_TRUE(buffers.mayBorrow(graph.inputs[1], views[1]));   // 8 MiB; 2 MiB are cold.
  graph.inputs[1].alignmentBytes = 4;
  EXPECT_FALSE(buffers.mayBorrow(graph.inputs[1], views[1]));
  TimingBuffers larger(*device, uint64_t{8} << 20, uint64_t{64} << 20, 1);
  EXPECT_FALSE(larger.mayBorrow(b.finish()->inputs[1], views[1]));  // It would stay in the cache.

  EXPECT_LT(buffers.bytesFor(graph, views, {false, true}), buffers.bytesFor(graph, views) - (uint64_t{8} << 20) + 1);
  std::vector<float> weights(1);
  Result<BufferRing> ring = buffers.ring(graph, views, {nullptr, weights.data()});
  ASSERT_TRUE(ring) << ring.error().toString();
  for (size_t s = 0; s < ring->count(); ++s) {
    EXPECT_EQ(ring->set(s)[1], weights.data());
    EXPECT_NE(ring->set(s)[0], weights.data());
  }
  EXPECT_NE(ring->set(0)[0], ring->set(1)[0]);
}

TEST(Protocol, DeathIsToldInOneLine) {
  ExitInfo exit;
  exit.signal = 11;
  EXPECT_EQ(deathText(exit, ""), "killed by signal 11 (Segmentation fault)");
  EXPECT_EQ(deathText(exit, "first\nlast words\t!\n\n"),
            "killed by signal 11 (Segmentation fault); it last said: last words !");
  EXPECT_LT(deathText(exit, std::string(100000, 'x')).size(), 500u);
  exit = {true, kExitDeviceFault, 0};
  EXPECT_EQ(deathText(exit, "noise\nan illegal access\n"), "lost its device: an illegal access");
}

TEST(Protocol, NonsenseIsRefused) {
  const op::Graph graph = *op::makeAdd({"M", 1, 8, {1, 8}}, 4, op::DType::kF32);
  const schedule::Problem problem = *schedule::Problem::create(graph, op::bucketsOf(graph)[1]);
  ByteWriter writer;
  encodeProblem(writer, problem);
  const std::string bytes = writer.take();
  ByteReader whole(bytes);
  Result<schedule::Problem> back = decodeProblem(whole);
  ASSERT_TRUE(back) << back.error().toString();
  EXPECT_EQ(back->bucket, problem.bucket);
  EXPECT_EQ(back->source, problem.source);
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    ByteReader reader(std::string_view(bytes).substr(0, cut));
    EXPECT_FALSE(decodeProblem(reader));
  }
}

}  // namespace
}  // namespace ktune::runtime
