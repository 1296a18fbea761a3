#include "ir/lower/PlanLayout.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "ir/op/Canonical.h"

namespace ktune::ir {

using cache::Extent;
using schedule::Generator;
using schedule::Group;
using schedule::Problem;

namespace {

Extent ceilDiv(const op::Dim& dim, int64_t divisor) {
  return {dim.factor, dim.symbol, divisor};
}

}  // namespace

const char* roleName(KernelRole role) {
  return role == KernelRole::kPartial ? "partial" : role == KernelRole::kCombined ? "combined" : "whole";
}

std::vector<KernelRole> rolesOf(const schedule::KernelSchedule& schedule) {
  const bool split = schedule.family == schedule::DeviceFamily::kCuda &&
                     schedule.generator == Generator::kContraction && schedule.splitK > 1;
  if (split) return {KernelRole::kPartial, KernelRole::kCombined};
  return {KernelRole::kWhole};
}

std::string kernelSymbol(const Problem& problem, size_t index, size_t count, KernelRole role) {
  std::string ops;
  for (const op::Node& node : problem.source.nodes) ops += (ops.empty() ? "" : "_") + node.op;
  // Long chains are cut: the digest tells them apart, and profilers show a limited width.
  if (ops.size() > 48) ops.resize(48);
  const op::ValueType& result = problem.types[static_cast<size_t>(problem.primitives.outputs[0].value)];
  std::string bucket = problem.bucket.describe(problem.source);
  for (char& c : bucket)
    if (!isalnum(static_cast<unsigned char>(c))) c = '_';
  std::string key8 = digestOf(op::canonicalBytes(problem.source)).hex().substr(0, 8);
  std::string symbol = "ktune_" + ops + "_" + std::string(op::dtypeName(result.dtype)) + "_" + bucket + "_" + key8;
  if (count > 1) symbol += "_" + std::to_string(index);
  if (role != KernelRole::kWhole) symbol += std::string("_") + roleName(role);
  return symbol;
}

KernelGrid gridOf(const Problem& problem, const Group& group, const schedule::KernelSchedule& schedule) {
  IterationSpace space = iterationSpace(problem, group);
  KernelGrid grid{ceilDiv(space.rows, schedule.tileRows), ceilDiv(space.columns, schedule.tileColumns)};
  if (group.generator == Generator::kRow) grid.columns = Extent{1, -1, 1};  // A tile holds whole rows.
  if (space.flat) grid.rows = Extent{1, -1, 1};
  return grid;
}

namespace {

/// The threads that add up the parts of a split contraction: nothing to choose, as they stream.
constexpr int32_t kCombineThreads = 256;

/// Neighbouring columns that every row behind a contraction has whole.
int32_t epilogueLanes(const Problem& problem, const Group& group) {
  int64_t columns = iterationSpace(problem, group).columns.factor;
  for (int32_t value : group.outputs) {
    if (!(problem.matrixOf(value).columns == iterationSpace(problem, group).columns)) continue;
    columns = std::gcd(columns, schedule::rowStrideOf(problem, value).factor);
  }
  for (int32_t value : group.inputs) columns = std::gcd(columns, schedule::rowStrideOf(problem, value).factor);
  return static_cast<int32_t>(std::gcd<int64_t>(columns, 4));
}

KernelGrid cudaGridOf(const Problem& problem, const Group& group, const BlockShape& shape) {
  const IterationSpace space = iterationSpace(problem, group);
  KernelGrid grid{ceilDiv(space.rows, shape.rows), ceilDiv(space.columns, shape.columns)};
  if (group.generator == Generator::kRow) grid.columns = Extent{1, -1, 1};
  return grid;
}

}  // namespace

BlockShape blockShapeOf(const Problem& problem, const Group& group, const schedule::KernelSchedule& s,
                        KernelRole role) {
  if (role == KernelRole::kCombined) {
    BlockShape shape{.threads = kCombineThreads, .lanes = epilogueLanes(problem, group)};
    const int64_t vectors = iterationSpace(problem, group).columns.factor / shape.lanes;
    shape.columnThreads = 1;
    while (shape.columnThreads < kCombineThreads && shape.columnThreads < vectors) shape.columnThreads *= 2;
    shape.rows = kCombineThreads / shape.columnThreads;
    shape.columns = shape.columnThreads * shape.lanes;
    return shape;
  }
  if (group.generator != Generator::kContraction) {
    return {.rows = s.blockRows,
            .columns = s.columnThreads * s.lanes * s.steps,
            .threads = s.threads,
            .columnThreads = s.columnThreads,
            .lanes = s.lanes};
  }
  BlockShape shape{.rows = s.blockRows, .columns = s.blockColumns, .lanes = epilogueLanes(problem, group)};
  if (s.instruction == 0) shape.threads = 32 * s.warpColumns * s.warpDepth;
  if (s.instruction == 1) shape.threads = s.blockRows / s.threadRows * (s.blockColumns / s.threadColumns);
  if (s.instruction == 2) {
    constexpr int32_t kOperandBytes = 2;
    shape.threads = 32 * s.warpRows * s.warpColumns;
    shape.sharedBytes = (s.blockRows + s.blockColumns) * s.stageDepth * kOperandBytes * s.stages;
  }
  return shape;
}

Result<cache::Plan> layoutPlan(const Problem& problem, const schedule::PlanGenome& genome) {
  const op::Graph& graph = problem.primitives;
  KTUNE_ASSIGN(std::vector<Group> groups, problem.groups(genome.fuse));
  if (groups.size() != genome.kernels.size())
    return invalidArgument("the genome has " + std::to_string(genome.kernels.size()) +
                           " kernels, its fusion bits make " + std::to_string(groups.size()));
  cache::Plan plan;
  plan.tensorCount = static_cast<int32_t>(graph.inputs.size() + graph.outputs.size());
  plan.symbolCount = static_cast<int32_t>(graph.symbols.size());

  std::map<int32_t, cache::LaunchParameter> home;  // Where each value lies in memory.
  for (size_t i = 0; i < graph.inputs.size(); ++i)
    home[static_cast<int32_t>(i)] = cache::PointerParameter{static_cast<int32_t>(i)};
  for (size_t i = 0; i < graph.outputs.size(); ++i)
    home.emplace(graph.outputs[i].value, cache::PointerParameter{static_cast<int32_t>(graph.inputs.size() + i)});

  for (size_t k = 0; k < groups.size(); ++k) {
    cache::Launch launch;
    for (int32_t value : groups[k].outputs) {
      if (home.count(value)) continue;
      const Problem::Matrix matrix = problem.matrixOf(value);
      int64_t bytes = op::dtypeBytes(schedule::storedTypeOf(problem, value));
      Extent size{matrix.rows.factor * matrix.columns.factor * bytes,
                  std::max(matrix.rows.symbol, matrix.columns.symbol), 1};
      home[value] = cache::WorkspaceParameter{static_cast<int32_t>(plan.workspaces.size())};
      plan.workspaces.push_back({cache::WorkspaceKind::kScratch, 64, size});
    }
    for (int32_t value : groups[k].inputs) launch.parameters.push_back(home.at(value));
    for (int32_t value : groups[k].outputs) launch.parameters.push_back(home.at(value));
    const schedule::KernelSchedule& schedule = genome.kernels[k];
    const std::vector<KernelRole> roles = rolesOf(schedule);
    if (roles.size() > 1) {
      const IterationSpace space = iterationSpace(problem, groups[k]);
      const int64_t bytes = op::dtypeBytes(schedule::partialsTypeOf(problem, groups[k]));
      launch.parameters.push_back(cache::WorkspaceParameter{static_cast<int32_t>(plan.workspaces.size())});
      plan.workspaces.push_back({cache::WorkspaceKind::kScratch, 64,
                                 Extent{schedule.splitK * space.rows.factor * space.columns.factor * bytes,
                                        std::max(space.rows.symbol, space.columns.symbol), 1}});
    }
    for (size_t s = 0; s < graph.symbols.size(); ++s)
      launch.parameters.push_back(cache::SymbolParameter{static_cast<int32_t>(s)});
    for (KernelRole role : roles) {
      launch.symbol = kernelSymbol(problem, k, groups.size(), role);
      if (schedule.family == schedule::DeviceFamily::kCuda) {
        const BlockShape shape = blockShapeOf(problem, groups[k], schedule, role);
        const KernelGrid grid = cudaGridOf(problem, groups[k], shape);
        // The x dim of a grid may be the largest by far.
        const bool flat = groups[k].generator == Generator::kMap && iterationSpace(problem, groups[k]).oneRow();
        launch.grid = {flat ? grid.columns : grid.rows, flat ? Extent{1, -1, 1} : grid.columns,
                       Extent{role == KernelRole::kPartial ? schedule.splitK : 1, -1, 1}};
        launch.block = {shape.threads, 1, 1};
        launch.dynamicSharedBytes = shape.sharedBytes;
      } else {
        const KernelGrid grid = gridOf(problem, groups[k], schedule);
        launch.grid = {grid.rows, grid.columns, Extent{1, -1, 1}};
      }
      plan.launches.push_back(launch);
    }
  }

  using Kind = cache::Precondition::Kind;
  for (size_t i = 0; i < graph.inputs.size(); ++i)
    plan.preconditions.push_back({Kind::kAlignment, static_cast<int32_t>(i), graph.inputs[i].alignmentBytes, 0});
  for (size_t i = 0; i < graph.outputs.size(); ++i)
    plan.preconditions.push_back(
        {Kind::kAlignment, static_cast<int32_t>(graph.inputs.size() + i), graph.outputs[i].alignmentBytes, 0});
  for (size_t s = 0; s < graph.symbols.size(); ++s)
    plan.preconditions.push_back(
        {Kind::kSymbolRange, static_cast<int32_t>(s), problem.bucket.low[s], problem.bucket.high[s]});
  return plan;
}

}  // namespace ktune::ir
