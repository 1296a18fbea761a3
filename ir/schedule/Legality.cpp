#include "ir/schedule/Legality.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ir/op/Operator.h"
#include "ir/schedule/Architecture.h"
#include "ir/schedule/IterationSpace.h"
#include "ir/schedule/KernelFacts.h"

namespace ktune::schedule {

namespace {

using op::OperatorKind;

/// FIRST, then the rest in the table's order.
template <size_t N>
constexpr std::array<Parameter, kParameterCount> makeOrder(const Parameter (&first)[N]) {
  std::array<Parameter, kParameterCount> order{};
  size_t count = 0;
  for (Parameter p : first) order[count++] = p;
  for (size_t i = 0; i < kParameterCount; ++i) {
    auto p = static_cast<Parameter>(i);
    if (std::find(order.begin(), order.begin() + count, p) == order.begin() + count) order[count++] = p;
  }
  return order;
}
constexpr std::array<Parameter, kParameterCount> kSettleOrder[kDeviceFamilyCount] = {
    makeOrder({Parameter::vector, Parameter::unroll, Parameter::registerRows, Parameter::registerColumns}),
    makeOrder({Parameter::threads, Parameter::columnThreads, Parameter::instruction, Parameter::lanes, Parameter::steps,
               Parameter::blockRows, Parameter::blockColumns, Parameter::warpRows, Parameter::warpColumns,
               Parameter::warpDepth, Parameter::threadRows, Parameter::threadColumns}),
};

const ParameterDef& defOf(Parameter p) {
  return parameterTable()[static_cast<size_t>(p)];
}

std::string number(int64_t n) {
  return std::to_string(n);
}

/// Machine registers that one vector value takes.
int64_t registersPerVector(int32_t lanes, const KernelFacts& facts, const Target& target) {
  int64_t bytes = int64_t{lanes} * facts.elementBytes;
  return (bytes + target.vectorBytes - 1) / target.vectorBytes;
}

/// The listed value after which larger ones only add idle work: the smallest multiple of STEP that covers EXTENT (the
/// largest multiple at most CAP when none does).
int32_t coveringValue(Parameter p, int64_t extent, int32_t step, int32_t cap) {
  int32_t best = step;
  for (int32_t v : defOf(p).values) {
    if (v % step != 0 || v > cap) continue;
    best = v;
    if (v >= extent) break;
  }
  return best;
}
constexpr int32_t kNoCap = INT32_MAX;

/// Under batch_invariant a row's bits must not depend on the bucket, so what fixes the order of its sums is no choice.
bool fixesSumOrder(Parameter p, Generator g) {
  if (g == Generator::kMap) return false;
  return p == Parameter::vector || p == Parameter::unroll || p == Parameter::blockK;
}

// The rules, one function each: the reason why the value that S has for the parameter is illegal, or nothing.

std::string vectorRule(const KernelSchedule& s, const KernelFacts& f, const Target& t) {
  int32_t least = defOf(Parameter::vector).values.front();
  if (s.vector == least) return {};
  if (registersPerVector(s.vector, f, t) > 1) {
    return "needs " + number(int64_t{s.vector} * f.elementBytes) + "-byte registers; the target has " +
           number(t.vectorBytes) + "-byte ones";
  }
  int64_t extent = f.generator == Generator::kContraction ? f.depth : f.columns;
  int32_t most = coveringValue(Parameter::vector, extent, 1, kNoCap);
  if (f.generator == Generator::kContraction ? s.vector > extent : s.vector > most) {
    return "is wider than the " + number(extent) + " elements of a row";
  }
  return {};
}

std::string unrollRule(const KernelSchedule& s, const KernelFacts& f, const Target& t) {
  if (s.unroll == defOf(Parameter::unroll).values.front()) return {};
  int64_t lanes = int64_t{s.vector} * s.unroll;
  if (f.generator == Generator::kContraction) {
    return lanes > f.depth ? "times vector = " + number(lanes) + " exceeds the reduced extent " + number(f.depth) : "";
  }
  if (lanes / 2 >= f.columns) {
    return "times vector = " + number(lanes) + " exceeds the " + number(f.columns) + " columns";
  }
  int64_t wide = registersPerVector(s.vector, f, t);
  // A map streams, so that its operands may share registers; a row's accumulators live through the whole row.
  int64_t needed =
      wide * (f.generator == Generator::kMap ? s.unroll * (f.inputs + 1) : s.unroll * std::max(1, f.reductions) + 2);
  int64_t available = t.vectorRegisters * (f.generator == Generator::kMap ? 2 : 1);
  if (needed > available) {
    return "needs " + number(needed) + " vector registers; the limit is " + number(available);
  }
  return {};
}

std::string registerRowsRule(const KernelSchedule& s, const KernelFacts& f, const Target& t) {
  if (s.registerRows == 1) return {};
  if (s.registerRows > coveringValue(Parameter::registerRows, f.rows, 1, kNoCap)) {
    return "exceeds the " + number(f.rows) + " rows";
  }
  int64_t accumulators = f.generator == Generator::kContraction
                             ? s.registerRows
                             : int64_t{s.registerRows} * s.unroll * std::max(1, f.reductions);
  int64_t needed = (accumulators + 2) * registersPerVector(s.vector, f, t);
  if (needed > t.vectorRegisters) {
    return "needs " + number(needed) + " vector registers; the target has " + number(t.vectorRegisters);
  }
  return {};
}

std::string registerColumnsRule(const KernelSchedule& s, const KernelFacts& f, const Target& t) {
  if (s.registerColumns == 1) return {};
  if (s.registerColumns > coveringValue(Parameter::registerColumns, f.columns, 1, kNoCap)) {
    return "exceeds the " + number(f.columns) + " columns";
  }
  int64_t needed = (int64_t{s.registerRows} * s.registerColumns + std::min(s.registerRows, s.registerColumns) + 1) *
                   registersPerVector(s.vector, f, t);
  if (needed > t.vectorRegisters) {
    return "with registerRows = " + number(s.registerRows) + " needs " + number(needed) +
           " vector registers; the target has " + number(t.vectorRegisters);
  }
  return {};
}

std::string tileRowsRule(const KernelSchedule& s, const KernelFacts& f, const Target&) {
  int32_t step = f.generator == Generator::kMap ? 1 : s.registerRows;
  if (step < 1 || s.tileRows % step != 0) return "is no multiple of registerRows = " + number(step);
  int32_t most = coveringValue(Parameter::tileRows, f.rows, step, kNoCap);
  return s.tileRows > most ? "exceeds the " + number(f.rows) + " rows, which " + number(most) + " cover" : "";
}

std::string tileColumnsRule(const KernelSchedule& s, const KernelFacts& f, const Target&) {
  constexpr int32_t kMostContractionColumns = 4096;
  bool contraction = f.generator == Generator::kContraction;
  int32_t step = contraction ? s.registerColumns : 1;
  if (step < 1 || s.tileColumns % step != 0) return "is no multiple of registerColumns = " + number(step);
  if (contraction && s.tileColumns > kMostContractionColumns) {
    return "exceeds " + number(kMostContractionColumns) + ", the most of a contraction";
  }
  int32_t most = coveringValue(Parameter::tileColumns, f.columns, step, contraction ? kMostContractionColumns : kNoCap);
  if (s.tileColumns > most) return "exceeds the " + number(f.columns) + " columns, which " + number(most) + " cover";
  if (contraction) return {};
  int64_t lanes = int64_t{s.vector} * s.unroll;
  if (s.tileColumns < std::min<int64_t>(lanes, most)) return "is less than vector * unroll = " + number(lanes);
  return {};
}

std::string blockKRule(const KernelSchedule& s, const KernelFacts& f, const Target& t) {
  if (s.blockK == 0) return {};
  if (s.blockK >= f.depth) return "is not less than the reduced extent " + number(f.depth) + "; 0 means the whole";
  int64_t step = int64_t{s.vector} * s.unroll;
  if (step < 1 || s.blockK % step != 0) return "is no multiple of vector * unroll = " + number(step);
  constexpr int64_t kAccumulatorBytes = 4;
  int64_t buffer = int64_t{s.tileRows} * s.tileColumns * std::max<int64_t>(kAccumulatorBytes, f.elementBytes);
  if (buffer > static_cast<int64_t>(t.l2Bytes / 2)) {
    return "keeps " + number(buffer) + " bytes of partial sums per tile; the limit is " + number(t.l2Bytes / 2) +
           ", half of the L2";
  }
  return {};
}

std::string streamStoresRule(const KernelSchedule& s, const KernelFacts& f, const Target& t) {
  if (s.streamStores == 0) return {};
  if (int64_t{s.vector} * f.elementBytes != t.vectorBytes) return "needs stores of a full register";
  // Non-temporal stores fault or fall back to plain ones where they are not aligned.
  bool tileAligned = f.generator != Generator::kMap || int64_t{s.tileColumns} * f.elementBytes % t.vectorBytes == 0;
  if (f.outputAlignment % t.vectorBytes != 0 || !tileAligned) {
    return "needs rows and tiles aligned to " + number(t.vectorBytes) + " bytes";
  }
  return {};
}

/// A vector's lanes, or its unrolling, that a careful programmer picks: the most that is legal, up to a limit.
int32_t preferred(Parameter p, const KernelSchedule& settled, const KernelFacts& facts, const Target& target) {
  if (p == Parameter::blockK) return 0;
  int32_t limit = p != Parameter::unroll ? kNoCap : facts.generator == Generator::kContraction ? 2 : 4;
  KernelFacts free = facts;
  free.batchInvariant = false;
  int32_t best = defOf(p).values.front();
  for (int32_t v : legalValues(p, settled, free, target)) {
    if (v <= limit) best = v;
  }
  return best;
}

}  // namespace

const std::array<Parameter, kParameterCount>& settleOrder(DeviceFamily family) {
  return kSettleOrder[static_cast<size_t>(family)];
}

std::string objection(Parameter p, const KernelSchedule& s, const KernelFacts& f, const Target& t) {
  const ParameterDef& def = defOf(p);
  int32_t value = s.get(p);
  if (!std::binary_search(def.values.begin(), def.values.end(), value)) {
    std::string listed;
    for (int32_t v : def.values) listed += (listed.empty() ? "" : ", ") + number(v);
    return "is none of " + listed;
  }
  if (t.kind == DeviceKind::kCuda) return cudaObjection(p, s, f, t);
  if (f.batchInvariant && fixesSumOrder(p, f.generator)) {
    int32_t only = preferred(p, s, f, t);
    return value == only ? "" : "is fixed to " + number(only) + ": the description asks for batch_invariant";
  }
  switch (p) {
    case Parameter::vector:
      return vectorRule(s, f, t);
    case Parameter::unroll:
      return unrollRule(s, f, t);
    case Parameter::registerRows:
      return registerRowsRule(s, f, t);
    case Parameter::registerColumns:
      return registerColumnsRule(s, f, t);
    case Parameter::tileRows:
      return tileRowsRule(s, f, t);
    case Parameter::tileColumns:
      return tileColumnsRule(s, f, t);
    case Parameter::blockK:
      return blockKRule(s, f, t);
    case Parameter::streamStores:
      return streamStoresRule(s, f, t);
    default:
      return {};
  }
}

std::vector<int32_t> legalValues(Parameter p, KernelSchedule schedule, const KernelFacts& facts, const Target& target) {
  std::vector<int32_t> legal;
  for (int32_t v : defOf(p).values) {
    schedule.set(p, v);
    if (objection(p, schedule, facts, target).empty()) legal.push_back(v);
  }
  return legal;
}

KernelSchedule settle(KernelSchedule schedule, const KernelFacts& facts, const Target& target) {
  schedule.generator = facts.generator;
  schedule.family = familyOf(target);
  for (Parameter p : settleOrder(schedule.family)) {
    const ParameterDef& def = defOf(p);
    if (!def.activeFor(facts.generator, familyOf(target))) {
      schedule.set(p, def.otherwise);
      continue;
    }
    if (objection(p, schedule, facts, target).empty()) continue;
    // Nearest by place in the list, so that 1 -> 256 is no closer to 4 than to 128.
    auto place = [&](int32_t v) {
      return std::lower_bound(def.values.begin(), def.values.end(), v) - def.values.begin();
    };
    auto wanted = place(schedule.get(p));
    int32_t best = def.values.front();
    int64_t bestDistance = INT64_MAX;
    for (int32_t v : legalValues(p, schedule, facts, target)) {
      int64_t distance = std::abs(place(v) - wanted);
      if (distance < bestDistance) {
        best = v;
        bestDistance = distance;
      }
    }
    schedule.set(p, best);
  }
  return schedule;
}

KernelFacts factsOf(const Problem& problem, const Group& group, const Target& target) {
  const op::Graph& graph = problem.primitives;
  KernelFacts facts;
  facts.generator = group.generator;
  facts.inputs = static_cast<int>(group.inputs.size());
  facts.batchInvariant = problem.source.numerics.batchInvariant;

  std::vector<int64_t> middle;
  for (size_t s = 0; s < problem.bucket.high.size(); ++s) {
    double low = static_cast<double>(problem.bucket.low[s]), high = static_cast<double>(problem.bucket.high[s]);
    middle.push_back(std::clamp(std::llround(std::sqrt(low * high)), static_cast<long long>(problem.bucket.low[s]),
                                static_cast<long long>(problem.bucket.high[s])));
  }
  auto include = [&](int32_t value, bool operandOfContraction) {
    facts.elementBytes = std::max(facts.elementBytes, op::dtypeBytes(problem.types[static_cast<size_t>(value)].dtype));
    if (operandOfContraction) return;
    Problem::Matrix m = problem.matrixOf(value);
    facts.rows = std::max(facts.rows, m.rows.extent(problem.bucket.high));
    facts.typicalRows = std::max(facts.typicalRows, m.rows.extent(middle));
    facts.columns = std::max(facts.columns, m.columns.extent(problem.bucket.high));
  };
  facts.elementBytes = 1;
  for (int32_t n : group.nodes) {
    const op::Node& node = graph.nodes[static_cast<size_t>(n)];
    OperatorKind kind = op::findOperator(node.op)->kind;
    if (kind == OperatorKind::kReduction) ++facts.reductions;
    if (kind == OperatorKind::kContraction) facts.depth = problem.matrixOf(node.operands[0]).columns.factor;
    if (kind == OperatorKind::kReduction || kind == OperatorKind::kContraction) {
      facts.elementBytes = std::max(facts.elementBytes, op::dtypeBytes(problem.source.numerics.accumulate));
    }
    for (int32_t operand : node.operands) include(operand, kind == OperatorKind::kContraction);
    include(graph.resultOf(static_cast<size_t>(n)), false);
  }
  for (int32_t v : group.outputs) {
    int64_t alignment = 64;  // Workspaces between kernels are aligned to 64 bytes.
    for (const op::Output& output : graph.outputs) {
      if (output.value != v) continue;
      if (output.aliasInput < 0) {
        alignment = std::min(alignment, output.alignmentBytes);
        continue;
      }
      const op::Input& input = graph.inputs[static_cast<size_t>(output.aliasInput)];
      alignment = std::min(alignment, input.strides.empty() ? input.alignmentBytes : 1);
    }
    Problem::Matrix m = problem.matrixOf(v);
    if (m.columns.extent(problem.bucket.high) != facts.columns) continue;  // A value per row: no vector store.
    if (facts.rows > 1) {
      int64_t rowBytes = m.columns.factor * op::dtypeBytes(problem.types[static_cast<size_t>(v)].dtype);
      while (rowBytes % alignment != 0) alignment /= 2;
    }
    facts.outputAlignment = std::min(facts.outputAlignment, alignment);
  }

  const IterationSpace space = iterationSpace(problem, group);
  facts.flat = space.flat;
  if (space.flat && target.kind == DeviceKind::kCuda) {
    facts.rows = facts.typicalRows = 1;
    facts.columns = space.columns.extent(problem.bucket.high);
  }
  // A symbolic extent is a multiple of its factor.
  facts.laneColumns = space.columns.factor;
  auto wide = [&](int32_t value) { return space.flat || problem.matrixOf(value).columns == space.columns; };
  for (const std::vector<int32_t>* list : {&group.inputs, &group.outputs}) {
    for (int32_t value : *list) {
      facts.memoryBytes = std::max(facts.memoryBytes, op::dtypeBytes(storedTypeOf(problem, value)));
      // What has rows of its own must start each of them at a whole number of lanes.
      const int64_t stride = rowStrideOf(problem, value).factor;
      if (!space.flat && wide(value)) facts.laneColumns = std::gcd(facts.laneColumns, stride);
    }
  }
  for (int32_t n : group.nodes) {
    const op::Node& node = graph.nodes[static_cast<size_t>(n)];
    if (op::findOperator(node.op)->kind != OperatorKind::kContraction) continue;
    const op::DType type = problem.types[static_cast<size_t>(node.operands[0])].dtype;
    facts.operandBytes = op::dtypeBytes(type);
    facts.operandAlignment =
        std::min(rowAlignmentOf(problem, node.operands[0]), rowAlignmentOf(problem, node.operands[1]));
    facts.tensorCores =
        (type == op::DType::kF16 || type == op::DType::kBF16) && problem.source.numerics.accumulate == op::DType::kF32;
  }
  return facts;
}

Status supported(const Problem& problem, const Target& target) {
  if (target.kind == DeviceKind::kFake) return Status::ok();
  const bool cuda = target.kind == DeviceKind::kCuda;
  if (cuda && findArchitecture(target.architecture) == nullptr) {
    std::string known;
    for (const Architecture& a : architectures()) known += (known.empty() ? "" : ", ") + std::string(a.name);
    return unsupported("no kernels are made for " + target.architecture + "; there are: " + known);
  }
  for (size_t v = 0; v < problem.types.size(); ++v) {
    const op::DType type = problem.types[v].dtype;
    if (type == op::DType::kF32 || type == op::DType::kF64) continue;
    if (cuda && (type == op::DType::kF16 || type == op::DType::kBF16)) continue;
    const char* compiles = cuda ? "cuda devices compile f64, f32, f16 and bf16" : "the cpu device compiles f32 and f64";
    return unsupported(compiles + ("; '" + problem.primitives.valueName(static_cast<int32_t>(v))) + "' is " +
                       std::string(op::dtypeName(type)));
  }
  // A GPU reads no element at an address that is no multiple of its size.
  const auto misaligned = [&](const std::string& name, op::DType type, int64_t promised) {
    return unsupported("cuda devices need elements at multiples of their size; '" + name + "' is " +
                       std::string(op::dtypeName(type)) + " and promises an alignment of " + std::to_string(promised));
  };
  const op::Graph& source = problem.source;
  for (const op::Input& input : source.inputs)
    if (cuda && input.alignmentBytes < op::dtypeBytes(input.type.dtype))
      return misaligned(input.name, input.type.dtype, input.alignmentBytes);
  for (const op::Output& output : problem.primitives.outputs) {
    const op::DType type = problem.types[static_cast<size_t>(output.value)].dtype;
    if (cuda && output.aliasInput < 0 && output.alignmentBytes < op::dtypeBytes(type))
      return misaligned(problem.primitives.valueName(output.value), type, output.alignmentBytes);
  }
  for (size_t n = 0; n < problem.primitives.nodes.size(); ++n) {
    const op::OperatorDef* def = op::findOperator(problem.primitives.nodes[n].op);
    if (def == nullptr) continue;
    const int32_t value = problem.primitives.resultOf(n);
    const op::DType type = problem.types[static_cast<size_t>(value)].dtype;
    if (!cuda && def->transcendental && type == op::DType::kF64)
      return unsupported("the cpu device has " + std::string(def->name) + " for f32 only; '" +
                         problem.primitives.valueName(value) + "' is f64");
    const bool sums = def->kind == op::OperatorKind::kContraction ||
                      (def->kind == op::OperatorKind::kReduction && def->combine == op::Combine::kSum);
    if (sums && type != op::DType::kF64 && problem.source.numerics.accumulate == op::DType::kF64)
      return unsupported("sums of " + std::string(op::dtypeName(type)) + " are accumulated in f32; '" +
                         problem.primitives.valueName(value) + "' is to be accumulated in f64");
  }
  return Status::ok();
}

Status check(const PlanGenome& genome, const Problem& problem, const Target& target) {
  KTUNE_TRY(supported(problem, target));
  for (size_t e = 0; e < genome.fuse.size(); ++e) {
    if (genome.fuse[e] > 1) return invalidArgument("fuse[" + std::to_string(e) + "] is neither 0 nor 1");
  }
  Result<std::vector<Group>> groups = problem.groups(genome.fuse);
  if (!groups) return groups.error();
  std::vector<uint8_t> canonical = problem.legalFusion(genome.fuse);
  for (size_t e = 0; e < canonical.size(); ++e) {
    if (canonical[e] == genome.fuse[e]) continue;
    return invalidArgument("fuse[" + std::to_string(e) + "] is 0, but other bits put both its nodes into one kernel");
  }
  if (problem.source.numerics.batchInvariant &&
      genome.fuse != problem.legalFusion(std::vector<uint8_t>(genome.fuse.size(), 1))) {
    return invalidArgument("the fusion is fixed: the description asks for batch_invariant");
  }
  if (genome.kernels.size() != groups->size()) {
    return invalidArgument("there are " + std::to_string(genome.kernels.size()) + " schedules for " +
                           std::to_string(groups->size()) + " kernels");
  }
  for (size_t k = 0; k < groups->size(); ++k) {
    const KernelSchedule& schedule = genome.kernels[k];
    std::string kernel = "kernel " + std::to_string(k) + ": ";
    KernelFacts facts = factsOf(problem, (*groups)[k], target);
    if (schedule.generator != facts.generator) {
      return invalidArgument(kernel + "generator is " + std::string(generatorName(schedule.generator)) +
                             "; its nodes need " + std::string(generatorName(facts.generator)));
    }
    if (schedule.family != familyOf(target)) {
      return invalidArgument(kernel + "its schedule is one for " +
                             (schedule.family == DeviceFamily::kCuda ? "cuda devices" : "the host's"));
    }
    for (Parameter p : settleOrder(familyOf(target))) {
      if (!defOf(p).activeFor(facts.generator, familyOf(target))) continue;
      std::string why = objection(p, schedule, facts, target);
      if (why.empty()) continue;
      return invalidArgument(kernel + std::string(defOf(p).name) + " = " + std::to_string(schedule.get(p)) + " " + why);
    }
  }
  return Status::ok();
}

PlanGenome repair(PlanGenome genome, const Problem& problem, const Target& target) {
  if (problem.source.numerics.batchInvariant) genome.fuse.assign(problem.edges.size(), 1);
  genome.fuse = problem.legalFusion(std::move(genome.fuse));
  Result<std::vector<Group>> groups = problem.groups(genome.fuse);
  if (!groups) return genome;  // Never: legalFusion() promises it.
  std::vector<KernelSchedule> old = std::move(genome.kernels);
  std::vector<bool> used(old.size(), false);
  genome.kernels.clear();
  for (size_t k = 0; k < groups->size(); ++k) {
    KernelFacts facts = factsOf(problem, (*groups)[k], target);
    // The schedule in the same place, else the first unclaimed one of the same generator, else the default.
    size_t from = k;
    auto fits = [&](size_t i) { return i < old.size() && !used[i] && old[i].generator == facts.generator; };
    if (!fits(from)) {
      for (from = 0; from < old.size() && !fits(from);) ++from;
    }
    if (from < old.size()) used[from] = true;
    genome.kernels.push_back(from < old.size() ? settle(old[from], facts, target) : defaultSchedule(facts, target));
  }
  return genome;
}

}  // namespace ktune::schedule
