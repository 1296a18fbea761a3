#include "runtime/launch/devices/fake/FakeDevice.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "base/Settings.h"
#include "ir/op/Canonical.h"
#include "ir/op/Reference.h"
#include "ir/schedule/Legality.h"
#include "ir/schedule/Vary.h"
#include "runtime/launch/Devices.h"
#include "runtime/launch/Elements.h"

namespace ktune::runtime {

namespace {

constexpr const char* kFaultNames[] = {"compile-error", "compile-crash", "compile-hang", "compile-memory", "run-crash",
                                       "run-hang",      "flood",         "wrong",        "unwritten",      "overrun",
                                       "input",         "flaky",         "refused",      "device",         "start"};

// A real SIGSEGV that no sanitizer turns into an exit.
void crash() {
  ::signal(SIGSEGV, SIG_DFL);
  void* page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page != MAP_FAILED) *static_cast<volatile char*>(page) = 1;
  ::raise(SIGSEGV);
}

[[noreturn]] void hang() {
  for (volatile uint64_t i = 0;;) i = i + 1;
}

// Allocates until the address space limit ends it; without a limit (sanitizers) after 256 MiB.
void exhaustMemory() {
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  const size_t most = limit.rlim_cur == RLIM_INFINITY ? size_t{256} << 20 : static_cast<size_t>(limit.rlim_cur);
  constexpr size_t kStep = size_t{16} << 20;
  std::vector<std::unique_ptr<char[]>> kept;
  for (size_t taken = 0; taken <= most; taken += kStep) kept.push_back(std::make_unique_for_overwrite<char[]>(kStep));
  // As a compiler that could get no more.
  if (const std::new_handler handler = std::get_new_handler()) handler();
  throw std::bad_alloc();
}

void flood() {
  const std::string line(1023, 'x');
  for (int i = 0; i < 50 * 1024; ++i) {
    [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, (line + "\n").data(), 1024);
  }
}

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

struct FakeArtefact {
  schedule::Problem problem;
  schedule::PlanGenome genome;
};

Result<FakeArtefact> decodeArtefact(const cache::Artefact& artefact) {
  if (artefact.kind != cache::ArtefactKind::kFake) return unsupported("the fake device runs fake artefacts");
  if (digestOf(artefact.bytes) != artefact.digest) return corrupt("the artefact does not have its digest");
  ByteReader reader(artefact.bytes);
  const std::string canonical = reader.blob();
  op::Bucket bucket;
  const uint32_t symbols = reader.count(16);
  for (uint32_t i = 0; i < symbols; ++i) {
    bucket.low.push_back(reader.i64());
    bucket.high.push_back(reader.i64());
  }
  const std::string text = reader.blob();
  KTUNE_TRY(reader.finish());
  KTUNE_ASSIGN(op::Graph graph, op::fromCanonicalBytes(canonical));
  KTUNE_ASSIGN(schedule::Problem problem, schedule::Problem::create(graph, bucket));
  KTUNE_ASSIGN(schedule::PlanGenome genome, schedule::PlanGenome::parse(text));
  return FakeArtefact{std::move(problem), std::move(genome)};
}

class FakePlan final : public LoadedPlan {
 public:
  FakePlan(FakeArtefact artefact, std::vector<op::ValueType> types, const FakeFaults& faults,
           const schedule::Target& target, std::shared_ptr<uint64_t> clock)
      : problem_(std::move(artefact.problem)),
        genome_(std::move(artefact.genome)),
        types_(std::move(types)),
        digest_(genome_.digest()),
        clock_(std::move(clock)) {
    for (const char* fault : kFaultNames) {
      if (faults.hits(fault, problem_, genome_, target)) faults_.emplace_back(fault);
    }
  }

  [[nodiscard]] size_t workspaceBytes(const std::vector<int64_t>&) const override { return 0; }

  Status run(std::span<void* const> tensors, std::span<const int64_t> symbolValues, void*) override {
    const std::vector<int64_t> symbols(symbolValues.begin(), symbolValues.end());
    ++runs_;
    if (has("refused")) return invalidArgument("a launch of the fake device was refused");
    if (has("device")) return unavailable("the fake device failed: an illegal access");
    if (has("run-crash")) crash();
    if (has("run-hang")) hang();
    if (has("flood")) flood();
    std::vector<TensorView> views = tensorViews(problem_.source, types_, symbols);
    for (size_t i = 0; i < views.size(); ++i) views[i].data = tensors[i];

    const size_t inputCount = problem_.source.inputs.size();
    std::vector<op::RefTensor> inputs;
    for (size_t i = 0; i < inputCount; ++i) {
      op::RefTensor tensor{views[i].extents, {}, {}};
      tensor.values.resize(static_cast<size_t>(views[i].rows() * views[i].columns()));
      for (int64_t row = 0; row < views[i].rows(); ++row)
        loadElements(views[i].dtype, views[i].at(views[i].rowOffset(row)), views[i].columnStride(), views[i].columns(),
                     tensor.values.data() + row * views[i].columns());
      inputs.push_back(std::move(tensor));
    }
    Result<std::vector<op::RefTensor>> outputs =
        op::evaluateReference(problem_.source, symbols, inputs, op::serialFor());
    if (!outputs) {
      const std::string text = "fake device: " + outputs.error().toString() + "\n";
      [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
      ::_exit(70);  // The tests' own mistake, not a candidate's.
    }
    for (size_t o = 0; o < outputs->size(); ++o) {
      op::RefTensor& result = (*outputs)[o];
      TensorView& view = views[inputCount + o];
      if (has("wrong")) breakBound(result);
      if (has("flaky") && runs_ % 2 == 0) flipBit(view.dtype, result.values.front());
      const int64_t rows = view.rows();
      for (int64_t row = 0; row < rows; ++row) {
        int64_t columns = view.columns();
        if (has("unwritten") && row + 1 == rows) --columns;
        storeElements(view.dtype, result.values.data() + row * view.columns(), columns, view.at(view.rowOffset(row)),
                      view.columnStride());
      }
      if (has("overrun")) {
        const double zero = 0;
        storeElements(view.dtype, &zero, 1, static_cast<char*>(view.data) + view.spanBytes(), 1);
      }
    }
    if (has("input") && inputCount > 0) {
      const double value = 42;
      storeElements(views[0].dtype, &value, 1, views[0].data, 1);
    }
    return Status::ok();
  }

  // What a run takes in the fake device's own time.
  [[nodiscard]] double virtualNs(const std::vector<int64_t>& symbolValues) const {
    const uint64_t tick = (*clock_)++;
    const double cost = fakeCostNs(problem_, genome_, symbolValues);
    const double noise = static_cast<double>(mix(digest_.low + tick * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53 - 0.5;
    const bool slowStretch = tick / 50 % 7 == 5;
    return cost * (1 + 0.01 * noise) * (slowStretch ? 1.03 : 1.0);
  }

 private:
  schedule::Problem problem_;
  schedule::PlanGenome genome_;
  std::vector<op::ValueType> types_;
  Digest digest_;
  std::vector<std::string> faults_;
  std::shared_ptr<uint64_t> clock_;  ///< Timed runs on this device so far.
  int64_t runs_ = 0;

  [[nodiscard]] bool has(const char* fault) const {
    return std::find(faults_.begin(), faults_.end(), fault) != faults_.end();
  }

  // The least wrong of results: one element, one and a half bounds away.
  static void breakBound(op::RefTensor& result) {
    for (size_t i = result.values.size(); i-- > 0;) {
      if (!std::isfinite(result.values[i]) || !std::isfinite(result.bounds[i])) continue;
      const double away = std::fmax(1.5 * result.bounds[i], 1e-30);
      result.values[i] += std::signbit(result.values[i]) ? -away : away;
      return;
    }
  }

  // One unit in the last place, which no tolerance sees.
  static void flipBit(op::DType dtype, double& value) {
    value = value == 0 ? 1e-30 : value * (1 + 2 * op::unitRoundoff(dtype));
  }
};

// One real run, so that a plan that crashes crashes; the times are made up.
class FakeTimedCalls final : public TimedCalls {
 public:
  FakeTimedCalls(FakePlan& plan, std::vector<void*> tensors, std::vector<int64_t> symbolValues)
      : plan_(plan), tensors_(std::move(tensors)), symbolValues_(std::move(symbolValues)) {}
  [[nodiscard]] Result<double> nanosecondsPerCall(double) override {
    if (!ran_) KTUNE_TRY(plan_.run(tensors_, symbolValues_, nullptr));
    ran_ = true;
    return plan_.virtualNs(symbolValues_);
  }

 private:
  FakePlan& plan_;
  const std::vector<void*> tensors_;
  const std::vector<int64_t> symbolValues_;
  bool ran_ = false;
};

class FakeDevice final : public Device {
 public:
  explicit FakeDevice(FakeFaults faults) : faults_(std::move(faults)) {}

  [[nodiscard]] const schedule::Target& target() const override { return target_; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::string description() const override { return "fake device, 2 cores"; }
  [[nodiscard]] std::string driver() const override { return "fake 1"; }
  [[nodiscard]] Result<std::unique_ptr<LoadedPlan>> load(const cache::Plan& plan) override {
    KTUNE_TRY(plan.validate());
    if (plan.artefacts.size() != 1) return unsupported("a fake plan has one artefact");
    KTUNE_ASSIGN(FakeArtefact artefact, decodeArtefact(plan.artefacts.front()));
    KTUNE_ASSIGN(std::vector<op::ValueType> types, op::inferTypes(artefact.problem.source));
    return std::unique_ptr<LoadedPlan>(new FakePlan(std::move(artefact), std::move(types), faults_, target_, clock_));
  }
  void parallelFor(int64_t count, const std::function<void(int64_t, int64_t)>& body) override {
    if (count > 0) body(0, count);
  }

  [[nodiscard]] Result<std::unique_ptr<TimedCalls>> prepareTimedCalls(LoadedPlan& plan,
                                                                      std::vector<std::vector<void*>> sets,
                                                                      std::vector<int64_t> symbolValues,
                                                                      void*) override {
    if (sets.empty()) return invalidArgument("timed calls need at least one set of tensors");
    return std::unique_ptr<TimedCalls>(
        new FakeTimedCalls(static_cast<FakePlan&>(plan), std::move(sets.front()), std::move(symbolValues)));
  }
  [[nodiscard]] Result<double> copyBytesPerSecond(void*, const void*, size_t) override { return kFakeBytesPerSecond; }
  [[nodiscard]] Result<double> emptyLaunchNanoseconds() override { return kFakeEmptyLaunchNs; }
  [[nodiscard]] std::string timingMethod() const override { return "virtual time of the fake device"; }

 private:
  std::string name_ = "fake";
  schedule::Target target_ = schedule::fakeTarget();
  FakeFaults faults_;
  std::shared_ptr<uint64_t> clock_ = std::make_shared<uint64_t>(0);
};

}  // namespace

Result<FakeFaults> FakeFaults::parse(const std::string& text) {
  FakeFaults faults;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at);
    const size_t equals = item.find('=');
    const std::string name = item.substr(0, equals);
    const uint64_t modulus = equals == std::string::npos ? 0 : std::strtoull(item.c_str() + equals + 1, nullptr, 10);
    if (modulus == 0 || std::find(std::begin(kFaultNames), std::end(kFaultNames), name) == std::end(kFaultNames))
      return invalidArgument("KTUNE_FAULT: '" + item + "' is not FAULT=N");
    faults.moduli_[name] = modulus;
    at = end + 1;
  }
  return faults;
}

bool FakeFaults::hits(const std::string& fault, const schedule::Problem& problem, const schedule::PlanGenome& genome,
                      const schedule::Target& target) const {
  const auto found = moduli_.find(fault);
  if (found == moduli_.end() || genome.digest().low % found->second != 0) return false;
  return !(genome == schedule::defaultGenome(problem, target));
}

Result<cache::Plan> compileFake(const schedule::Problem& problem, const schedule::PlanGenome& genome,
                                const schedule::Target& target, const FakeFaults& faults) {
  KTUNE_TRY(schedule::check(genome, problem, target));
  const auto hit = [&](const char* fault) { return faults.hits(fault, problem, genome, target); };
  if (hit("compile-error")) return internalError("an injected error");
  if (hit("compile-crash")) crash();
  if (hit("compile-hang")) hang();
  if (hit("compile-memory")) exhaustMemory();

  const op::Graph& graph = problem.source;
  ByteWriter writer;
  writer.blob(op::canonicalBytes(graph));
  writer.u32(static_cast<uint32_t>(problem.bucket.low.size()));
  for (size_t i = 0; i < problem.bucket.low.size(); ++i) {
    writer.i64(problem.bucket.low[i]);
    writer.i64(problem.bucket.high[i]);
  }
  writer.blob(genome.text());

  cache::Plan plan;
  cache::Artefact artefact;
  artefact.kind = cache::ArtefactKind::kFake;
  artefact.bytes = writer.take();
  artefact.digest = digestOf(artefact.bytes);
  plan.artefacts.push_back(std::move(artefact));
  plan.tensorCount = static_cast<int32_t>(graph.inputs.size() + graph.outputs.size());
  plan.symbolCount = static_cast<int32_t>(graph.symbols.size());
  cache::Launch launch;
  launch.symbol = "fake";
  for (int32_t i = 0; i < plan.tensorCount; ++i) launch.parameters.emplace_back(cache::PointerParameter{i});
  for (int32_t i = 0; i < plan.symbolCount; ++i) launch.parameters.emplace_back(cache::SymbolParameter{i});
  plan.launches.push_back(std::move(launch));
  return plan;
}

double fakeCostNs(const schedule::Problem& problem, const schedule::PlanGenome& genome,
                  const std::vector<int64_t>& symbolValues) {
  const op::Work work = op::workOf(problem.source, symbolValues);
  const double base = 2000 + work.bytes / kFakeBytesPerSecond * 1e9 + work.operations / 50e9 * 1e9;
  double factor = 0;
  for (const schedule::KernelSchedule& kernel : genome.kernels) {
    double kernelFactor = 1;
    for (const schedule::ParameterDef& parameter : schedule::parameterTable()) {
      if (!parameter.activeFor(kernel)) continue;
      const auto& values = parameter.values;
      const auto place = std::lower_bound(values.begin(), values.end(), kernel.get(parameter.id)) - values.begin();
      const double span = std::max<double>(1, static_cast<double>(values.size()) - 1);
      const double distance =
          (static_cast<double>(place) - static_cast<double>(fakeOptimumIndex(values.size()))) / span;
      kernelFactor += 0.5 * distance * distance;
    }
    factor += kernelFactor;
  }
  const auto kernels = static_cast<double>(std::max<size_t>(1, genome.kernels.size()));
  return base * std::max(1.0, factor / kernels) * (1 + 0.25 * (kernels - 1));
}

std::unique_ptr<Device> makeFakeDevice(FakeFaults faults) {
  return std::make_unique<FakeDevice>(std::move(faults));
}

std::vector<DeviceInfo> listFakeDevices() {
  return {{"fake", "fake device, 2 cores", schedule::fakeTarget(), "fake 1"}};
}

Result<std::unique_ptr<Device>> openFakeDevice(const std::string& name, const DeviceOptions&) {
  if (name != "fake") return notFound("there is one fake device, named 'fake'; there is no '" + name + "'");
  KTUNE_ASSIGN(const Settings settings, readSettings());
  KTUNE_ASSIGN(FakeFaults faults, FakeFaults::parse(settings.fault));
  return makeFakeDevice(std::move(faults));
}

}  // namespace ktune::runtime
