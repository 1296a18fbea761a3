// An in-memory compiler and measurer with a known cost surface: what the search is tested against.
#pragma once

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <numbers>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "search/Services.h"
#include "search/Statistics.h"

namespace ktune::search::testing {

/// A flag of two threads, in a struct that tests copy.
class SharedFlag {
 public:
  SharedFlag() = default;
  SharedFlag(const SharedFlag& o) : value_(o.value_.load()) {}
  SharedFlag& operator=(const SharedFlag& o) {
    value_ = o.value_.load();
    return *this;
  }
  /// Sets it; returns what it was.
  bool exchange(bool value) { return value_.exchange(value); }
  operator bool() const { return value_; }  // NOLINT(google-explicit-constructor)

 private:
  std::atomic<bool> value_{false};
};

/// What the fakes know of the world they stand for. Shared by one compiler and one measurer; tests set it up and read
/// what happened.
struct FakeWorld {
  using Judge = std::function<std::optional<Rejection>(const schedule::PlanGenome&)>;

  /// True time of one call.
  std::function<double(const schedule::PlanGenome&, const std::vector<int64_t>&)> costNs;
  /// The code that a genome compiles to; equal genomes' texts by default.
  std::function<schedule::PlanGenome(const schedule::PlanGenome&)> codeOf;
  Judge compile, load, screen, full, run;  ///< Empty = never rejected.
  Status compileFailure, openFailure, sampleFailure;
  std::function<void()> beforeOpen;  ///< May be empty.

  double noise = 0;             ///< Sigma of the log of one sample.
  double drift = 0;             ///< Amplitude of a slow swing common to all kernels.
  double driftPeriod = 400;     ///< In samples.
  double spikeRate = 0;         ///< Share of samples that take twice as long.
  double compileSeconds = 0;    ///< Really slept, per candidate and worker.
  double checkSeconds = 0;      ///< Really slept, per full check; a tenth per screening.
  double openSeconds = 0;       ///< Really slept.
  bool sleepInSamples = false;  ///< Each sample really sleeps its length.
  int parallelism = 2;
  Conditions conditions;
  MeasureFacts facts{.copyBytesPerSecond = 1e10, .emptyLaunchNs = 100, .regime = "fake"};
  uint64_t seed = 1;

  // What happened.
  int64_t compileCalls = 0, compiled = 0, opens = 0, loads = 0, screens = 0, fulls = 0, samples = 0;
  std::vector<uint64_t> openSeeds;
  std::multiset<std::string> compiledGenomes;
  std::map<std::string, int64_t> sampledCodes;
  std::vector<schedule::PlanGenome> order;  ///< As compiled.
  SharedFlag busy, overlapped;              ///< A service was called while the other one worked.
};

inline void fakeSleep(double seconds) {
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

class Busy {
 public:
  explicit Busy(FakeWorld& world) : world_(world) {
    if (world_.busy.exchange(true)) world_.overlapped.exchange(true);
  }
  ~Busy() { world_.busy.exchange(false); }

 private:
  FakeWorld& world_;
};

class FakeCompiler : public Compiler {
 public:
  explicit FakeCompiler(FakeWorld& world) : world_(world) {}
  [[nodiscard]] int parallelism() const override { return world_.parallelism; }
  [[nodiscard]] Result<std::vector<CompileOutcome>> compile(const schedule::Problem& problem,
                                                            std::span<const CompileRequest> requests,
                                                            Deadline deadline) override {
    Busy busy(world_);
    ++world_.compileCalls;
    if (!world_.compileFailure.isOk()) return world_.compileFailure;
    std::vector<CompileOutcome> outcomes;
    for (const CompileRequest& request : requests) {
      if (deadline.passed()) break;
      ++world_.compiled;
      world_.compiledGenomes.insert(request.genome.text());
      world_.order.push_back(request.genome);
      fakeSleep(world_.compileSeconds / world_.parallelism);
      CompileOutcome outcome;
      outcome.id = request.id;
      outcome.seconds = world_.compileSeconds;
      if (world_.compile) outcome.rejection = world_.compile(request.genome);
      if (!outcome.rejection) outcome.plan = planOf(problem, request.genome);
      outcomes.push_back(std::move(outcome));
    }
    return outcomes;
  }

  [[nodiscard]] cache::Plan planOf(const schedule::Problem& problem, const schedule::PlanGenome& genome) const {
    cache::Plan plan;
    cache::Artefact artefact;
    artefact.kind = cache::ArtefactKind::kFake;
    artefact.bytes = (world_.codeOf ? world_.codeOf(genome) : genome).text();
    artefact.digest = digestOf(artefact.bytes);
    plan.artefacts.push_back(std::move(artefact));
    cache::Launch launch;
    launch.symbol = "fake";
    plan.launches.push_back(std::move(launch));
    plan.tensorCount = static_cast<int32_t>(problem.source.inputs.size() + problem.source.outputs.size());
    plan.symbolCount = static_cast<int32_t>(problem.source.symbols.size());
    return plan;
  }

 private:
  FakeWorld& world_;
};

class FakeMeasurer : public Measurer {
 public:
  explicit FakeMeasurer(FakeWorld& world) : world_(world), random_(world.seed) {}

  [[nodiscard]] Result<MeasureFacts> open(const schedule::Problem& problem, const MeasureOptions& options,
                                          Deadline deadline) override {
    Busy busy(world_);
    if (world_.beforeOpen) world_.beforeOpen();
    if (!world_.openFailure.isOk()) return world_.openFailure;
    fakeSleep(std::min(world_.openSeconds, deadline.remainingSeconds()));
    if (deadline.passed()) return deadlineExceeded("open");
    ++world_.opens;
    world_.openSeeds.push_back(options.seed);
    points_ = op::scoringPoints(problem.bucket);
    loaded_.clear();
    return world_.facts;
  }
  [[nodiscard]] Result<std::optional<Rejection>> load(int64_t id, const cache::Plan& plan, Deadline) override {
    Busy busy(world_);
    ++world_.loads;
    Result<schedule::PlanGenome> genome = schedule::PlanGenome::parse(plan.artefacts.at(0).bytes);
    if (!genome) return genome.error();
    if (world_.load) {
      if (std::optional<Rejection> rejection = world_.load(*genome)) return rejection;
    }
    loaded_[id] = *std::move(genome);
    return std::optional<Rejection>();
  }
  void drop(int64_t id) override { loaded_.erase(id); }
  [[nodiscard]] Result<CheckOutcome> check(int64_t id, CheckLevel level, Deadline deadline) override {
    Busy busy(world_);
    auto it = loaded_.find(id);
    if (it == loaded_.end()) return internalError("check of an id that is not loaded");
    bool full = level == CheckLevel::kFull;
    ++(full ? world_.fulls : world_.screens);
    fakeSleep(std::min(full ? world_.checkSeconds : world_.checkSeconds / 10, deadline.remainingSeconds()));
    if (deadline.passed()) return deadlineExceeded("check");
    CheckOutcome outcome;
    if (world_.screen) outcome.rejection = world_.screen(it->second);
    if (full && !outcome.rejection && world_.full) outcome.rejection = world_.full(it->second);
    outcome.checks = {"normal"};
    if (full) outcome.checks.push_back("special");
    outcome.worstErrorShare = 0.25;
    return outcome;
  }
  [[nodiscard]] Result<std::vector<Sample>> sample(std::span<const int64_t> ids, int point, double sampleSeconds,
                                                   Deadline deadline) override {
    Busy busy(world_);
    if (!world_.sampleFailure.isOk()) return world_.sampleFailure;
    if (point < 0 || static_cast<size_t>(point) >= points_.size()) return internalError("no such point");
    std::vector<Sample> samples;
    for (int64_t id : ids) {
      auto it = loaded_.find(id);
      if (it == loaded_.end()) return internalError("sample of an id that is not loaded");
      if (deadline.passed()) return deadlineExceeded("sample");
      Sample sample;
      if (world_.run) sample.rejection = world_.run(it->second);
      if (!sample.rejection) sample.ns = world_.costNs(it->second, points_[static_cast<size_t>(point)]) * disturbance();
      if (world_.sleepInSamples) fakeSleep(std::max(sampleSeconds, sample.ns * 1e-9));
      ++world_.samples;
      ++world_.sampledCodes[it->second.text()];
      samples.push_back(std::move(sample));
    }
    return samples;
  }
  [[nodiscard]] Result<Conditions> conditions(Deadline) override { return world_.conditions; }
  [[nodiscard]] size_t loadedCount() const { return loaded_.size(); }

 private:
  double disturbance() {
    double phase = 2 * std::numbers::pi * static_cast<double>(world_.samples) / world_.driftPeriod;
    double gauss =
        std::sqrt(-2 * std::log(1 - unitRandom(random_))) * std::cos(2 * std::numbers::pi * unitRandom(random_));
    double spike = unitRandom(random_) < world_.spikeRate ? 2 : 1;
    return std::exp(world_.noise * gauss) * (1 + world_.drift * std::sin(phase)) * spike;
  }

  FakeWorld& world_;
  Random random_;
  std::vector<std::vector<int64_t>> points_;
  std::map<int64_t, schedule::PlanGenome> loaded_;
};

}  // namespace ktune::search::testing
