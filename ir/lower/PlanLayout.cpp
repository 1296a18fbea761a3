#include "ir/lower/PlanLayout.h"

#include <algorithm>
#include <map>

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

bool isOne(const op::Dim& dim) {
  return dim.isStatic() && dim.factor == 1;
}

/// Every value a group touches, computed values included.
std::vector<int32_t> valuesOf(const Problem& problem, const Group& group) {
  std::vector<int32_t> values = group.inputs;
  for (int32_t node : group.nodes) values.push_back(problem.primitives.resultOf(static_cast<size_t>(node)));
  return values;
}

}  // namespace

std::string kernelSymbol(const Problem& problem, size_t index, size_t count) {
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
  return symbol;
}

IterationSpace iterationSpace(const Problem& problem, const Group& group) {
  IterationSpace space{op::Dim::fixed(1), op::Dim::fixed(1), false};
  for (int32_t value : valuesOf(problem, group)) {
    // A contraction's space is its output's: the depth is a loop, not a dim of the grid.
    if (group.generator == Generator::kContraction && problem.primitives.isInput(value)) continue;
    if (group.generator == Generator::kContraction &&
        std::find(group.inputs.begin(), group.inputs.end(), value) != group.inputs.end())
      continue;
    Problem::Matrix matrix = problem.matrixOf(value);
    if (!isOne(matrix.rows)) space.rows = matrix.rows;
    if (!isOne(matrix.columns)) space.columns = matrix.columns;
  }
  if (group.generator == Generator::kMap && !isOne(space.rows)) {
    bool dense = true;
    for (int32_t value : valuesOf(problem, group)) {
      Problem::Matrix matrix = problem.matrixOf(value);
      bool scalar = isOne(matrix.rows) && isOne(matrix.columns);
      dense &= scalar || (matrix.rows == space.rows && matrix.columns == space.columns);
    }
    if (dense && (space.rows.isStatic() || space.columns.isStatic())) {
      op::Dim total{space.rows.factor * space.columns.factor, std::max(space.rows.symbol, space.columns.symbol)};
      space = {op::Dim::fixed(1), total, true};
    }
  }
  return space;
}

KernelGrid gridOf(const Problem& problem, const Group& group, const schedule::KernelSchedule& schedule) {
  IterationSpace space = iterationSpace(problem, group);
  KernelGrid grid{ceilDiv(space.rows, schedule.tileRows), ceilDiv(space.columns, schedule.tileColumns)};
  if (group.generator == Generator::kRow) grid.columns = Extent{1, -1, 1};  // A tile holds whole rows.
  if (space.flat) grid.rows = Extent{1, -1, 1};
  return grid;
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
    launch.symbol = kernelSymbol(problem, k, groups.size());
    for (int32_t value : groups[k].outputs) {
      if (home.count(value)) continue;
      const Problem::Matrix matrix = problem.matrixOf(value);
      int64_t bytes = op::dtypeBytes(problem.types[static_cast<size_t>(value)].dtype);
      Extent size{matrix.rows.factor * matrix.columns.factor * bytes,
                  std::max(matrix.rows.symbol, matrix.columns.symbol), 1};
      home[value] = cache::WorkspaceParameter{static_cast<int32_t>(plan.workspaces.size())};
      plan.workspaces.push_back({cache::WorkspaceKind::kScratch, 64, size});
    }
    for (int32_t value : groups[k].inputs) launch.parameters.push_back(home.at(value));
    for (int32_t value : groups[k].outputs) launch.parameters.push_back(home.at(value));
    for (size_t s = 0; s < graph.symbols.size(); ++s)
      launch.parameters.push_back(cache::SymbolParameter{static_cast<int32_t>(s)});
    KernelGrid grid = gridOf(problem, groups[k], genome.kernels[k]);
    launch.grid = {grid.rows, grid.columns, Extent{1, -1, 1}};
    plan.launches.push_back(std::move(launch));
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
