#include "ir/schedule/Vary.h"

#include <algorithm>

#include "ir/schedule/KernelFacts.h"

namespace ktune::schedule {

namespace {

/// A number in [0, BOUND), the same on every standard library (std::uniform_int_distribution is not).
uint64_t draw(Random& random, uint64_t bound) {
  uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
  uint64_t r = random();
  while (r >= limit) r = random();
  return r % bound;
}

bool coin(Random& random) {
  return draw(random, 2) != 0;
}

std::vector<Group> groupsOf(const PlanGenome& genome, const Problem& problem) {
  Result<std::vector<Group>> groups = problem.groups(genome.fuse);
  return groups ? *std::move(groups) : std::vector<Group>();
}

/// The schedule of a genome whose kernel shares most nodes with GROUP and has its generator; nullptr when none does.
const KernelSchedule* bestMatch(const Group& group, const PlanGenome& genome, const std::vector<Group>& groups) {
  const KernelSchedule* best = nullptr;
  size_t bestShared = 0;
  for (size_t k = 0; k < groups.size() && k < genome.kernels.size(); ++k) {
    if (groups[k].generator != group.generator) continue;
    std::vector<int32_t> shared;
    std::set_intersection(group.nodes.begin(), group.nodes.end(), groups[k].nodes.begin(), groups[k].nodes.end(),
                          std::back_inserter(shared));
    if (shared.size() <= bestShared) continue;
    best = &genome.kernels[k];
    bestShared = shared.size();
  }
  return best;
}

/// GENOME with other fusion bits: kernels keep the schedule they had where they overlap an old one.
PlanGenome withFusion(const PlanGenome& genome, std::vector<uint8_t> fuse, const Problem& problem,
                      const Target& target) {
  PlanGenome result;
  result.fuse = problem.legalFusion(std::move(fuse));
  std::vector<Group> old = groupsOf(genome, problem);
  for (const Group& group : groupsOf(result, problem)) {
    const KernelSchedule* match = bestMatch(group, genome, old);
    result.kernels.push_back(match ? *match : defaultSchedule(factsOf(problem, group, target), target));
  }
  return repair(std::move(result), problem, target);
}

/// Joins or cuts at edge E.
PlanGenome flipEdge(const PlanGenome& genome, size_t e, const Problem& problem, const Target& target) {
  std::vector<uint8_t> fuse = genome.fuse;
  if (!fuse[e]) {
    fuse[e] = 1;
    return withFusion(genome, std::move(fuse), problem, target);
  }
  // Clearing one bit does not split a group that holds together by other edges: cut all that cross the same place.
  int32_t last = problem.edges[e].producer;
  for (const Group& group : groupsOf(genome, problem)) {
    if (!std::binary_search(group.nodes.begin(), group.nodes.end(), last)) continue;
    for (size_t i = 0; i < fuse.size(); ++i) {
      bool inside = std::binary_search(group.nodes.begin(), group.nodes.end(), problem.edges[i].producer) &&
                    std::binary_search(group.nodes.begin(), group.nodes.end(), problem.edges[i].consumer);
      if (inside && problem.edges[i].producer <= last && problem.edges[i].consumer > last) fuse[i] = 0;
    }
  }
  return withFusion(genome, std::move(fuse), problem, target);
}

/// Other genomes next to GENOME by their fusion, each different from it.
std::vector<PlanGenome> otherFusions(const PlanGenome& genome, const Problem& problem, const Target& target) {
  std::vector<PlanGenome> others;
  auto consider = [&](PlanGenome g) {
    if (!(g == genome)) others.push_back(std::move(g));
  };
  if (problem.source.numerics.batchInvariant) return others;
  for (size_t e = 0; e < genome.fuse.size(); ++e) consider(flipEdge(genome, e, problem, target));
  for (uint8_t all : {0, 1}) {
    consider(withFusion(genome, std::vector<uint8_t>(genome.fuse.size(), all), problem, target));
  }
  return others;
}

/// One change to a legal genome; the result is legal and differs from it whenever it can.
PlanGenome mutateOnce(const PlanGenome& genome, const Problem& problem, const Target& target, Random& random) {
  struct Choice {
    size_t kernel;
    Parameter parameter;
    std::vector<int32_t> values;
  };
  std::vector<Choice> choices;
  std::vector<Group> groups = groupsOf(genome, problem);
  for (size_t k = 0; k < groups.size(); ++k) {
    KernelFacts facts = factsOf(problem, groups[k], target);
    for (const ParameterDef& def : parameterTable()) {
      if (!def.activeFor(facts.generator, familyOf(target))) continue;
      std::vector<int32_t> values = legalValues(def.id, genome.kernels[k], facts, target);
      if (values.size() > 1) choices.push_back({k, def.id, std::move(values)});
    }
  }
  constexpr uint64_t kFusionOneIn = 8;
  bool fusion = !genome.fuse.empty() && draw(random, kFusionOneIn) == 0;
  if (fusion || choices.empty()) {
    std::vector<PlanGenome> others = otherFusions(genome, problem, target);
    if (!others.empty()) return others[draw(random, others.size())];
  }
  if (choices.empty()) return genome;
  const Choice& choice = choices[draw(random, choices.size())];
  PlanGenome result = genome;
  KernelSchedule& kernel = result.kernels[choice.kernel];
  auto at = static_cast<size_t>(std::find(choice.values.begin(), choice.values.end(), kernel.get(choice.parameter)) -
                                choice.values.begin());
  size_t last = choice.values.size() - 1;
  size_t to;
  constexpr uint64_t kJumpOneIn = 4;
  if (draw(random, kJumpOneIn) == 0) {
    to = draw(random, last);
    if (to >= at) ++to;
  } else if (at == 0 || at == last) {
    to = at == 0 ? 1 : last - 1;
  } else {
    to = coin(random) ? at + 1 : at - 1;
  }
  kernel.set(choice.parameter, choice.values[to]);
  // Parameters settled before this one stay, so that the change survives the repair of those after it.
  return repair(std::move(result), problem, target);
}

/// Pieces of size PIECE that cover EXTENT.
int64_t pieces(int64_t extent, int64_t piece) {
  return (extent + piece - 1) / piece;
}

/// 1 where what a kernel writes is more than the cores' own caches hold, so that fetching the lines first is for
/// nothing. (The last level is no measure: virtual machines report the host's.)
int32_t streams(const KernelFacts& facts, KernelSchedule schedule, const Target& target) {
  const uint64_t bytes = static_cast<uint64_t>(facts.typicalRows) * static_cast<uint64_t>(facts.columns) *
                         static_cast<uint64_t>(facts.elementBytes);
  schedule.streamStores = 1;
  const bool legal = objection(Parameter::streamStores, schedule, facts, target).empty();
  return legal && bytes > target.l2Bytes * static_cast<uint64_t>(target.cores) ? 1 : 0;
}

}  // namespace

KernelSchedule defaultSchedule(const KernelFacts& facts, const Target& target) {
  if (target.kind == DeviceKind::kCuda) return defaultCudaSchedule(facts, target);
  KernelSchedule s;
  s.generator = facts.generator;
  s = settle(s, facts, target);
  // The largest legal value up to LIMIT, else the smallest legal one.
  auto pick = [&](Parameter p, int64_t limit) {
    std::vector<int32_t> values = legalValues(p, s, facts, target);
    int32_t best = values.front();
    for (int32_t v : values) {
      if (v <= limit) best = v;
    }
    s.set(p, best);
  };
  const int64_t enoughTiles = int64_t{4} * target.cores;
  bool contraction = facts.generator == Generator::kContraction;
  pick(Parameter::vector, INT32_MAX);
  pick(Parameter::unroll, contraction ? 2 : 4);
  if (facts.generator == Generator::kRow) {
    constexpr int64_t kMostTileRows = 16;
    pick(Parameter::registerRows, 1);
    int32_t best = 1;
    for (int32_t rows : legalValues(Parameter::tileRows, s, facts, target)) {
      if (rows <= kMostTileRows && pieces(facts.typicalRows, rows) >= enoughTiles) best = rows;
    }
    s.tileRows = best;
    s.streamStores = streams(facts, s, target);
    return settle(s, facts, target);
  }
  if (contraction) {
    pick(Parameter::registerRows, 4);
    pick(Parameter::registerColumns, s.registerRows == 1 ? 4 : 6);
  }
  // Two-dimensional tiles: the largest that leaves every core several, within what stays in a core's caches.
  constexpr int64_t kMostTileRows = 64, kLeastMapElements = 1024, kMostMapElements = 32768;
  const int64_t mostColumns = contraction ? 384 : 8192;
  const int64_t total = facts.typicalRows * facts.columns;
  bool bestIsEnough = false;
  int64_t bestTiles = 0, bestArea = 0;
  KernelSchedule best = s;
  for (int32_t rows : legalValues(Parameter::tileRows, s, facts, target)) {
    KernelSchedule trial = s;
    trial.tileRows = rows;
    for (int32_t columns : legalValues(Parameter::tileColumns, trial, facts, target)) {
      trial.tileColumns = columns;
      int64_t area = int64_t{rows} * columns;
      bool first = bestArea == 0;
      bool fits = rows <= kMostTileRows && columns <= mostColumns;
      if (contraction) {
        int64_t operandBytes = int64_t{rows} * facts.depth * facts.elementBytes;
        fits = fits && (rows == s.registerRows || operandBytes <= static_cast<int64_t>(target.l2Bytes / 2));
      } else {
        fits = fits && area <= kMostMapElements && area >= std::min(kLeastMapElements, total);
      }
      if (!fits && !first) continue;
      int64_t tiles = pieces(facts.typicalRows, rows) * pieces(facts.columns, columns);
      bool enough = fits && tiles >= enoughTiles;
      // Of equally large tiles the one with the longer rows: they are what is walked without a jump.
      bool larger = area > bestArea || (area == bestArea && columns > best.tileColumns);
      bool better = enough != bestIsEnough ? enough : enough ? larger : tiles > bestTiles;
      if (!first && !better) continue;
      best = trial;
      bestIsEnough = enough;
      bestTiles = fits ? tiles : 0;
      bestArea = area;
    }
  }
  if (!contraction) best.streamStores = streams(facts, best, target);
  return settle(best, facts, target);
}

PlanGenome defaultGenome(const Problem& problem, const Target& target) {
  PlanGenome genome;
  genome.fuse = problem.legalFusion(std::vector<uint8_t>(problem.edges.size(), 1));
  for (const Group& group : groupsOf(genome, problem)) {
    genome.kernels.push_back(defaultSchedule(factsOf(problem, group, target), target));
  }
  return repair(std::move(genome), problem, target);
}

PlanGenome randomGenome(const Problem& problem, const Target& target, Random& random) {
  PlanGenome genome;
  // Mostly fused: half the edges cut would almost never leave a long chain whole.
  for (size_t e = 0; e < problem.edges.size(); ++e) genome.fuse.push_back(draw(random, 4) != 0 ? 1 : 0);
  if (problem.source.numerics.batchInvariant) genome.fuse.assign(problem.edges.size(), 1);
  genome.fuse = problem.legalFusion(std::move(genome.fuse));
  for (const Group& group : groupsOf(genome, problem)) {
    KernelFacts facts = factsOf(problem, group, target);
    KernelSchedule kernel;
    kernel.generator = facts.generator;
    kernel.family = familyOf(target);
    for (Parameter p : settleOrder(familyOf(target))) {
      if (!parameterTable()[static_cast<size_t>(p)].activeFor(facts.generator, familyOf(target))) continue;
      std::vector<int32_t> values = legalValues(p, kernel, facts, target);
      kernel.set(p, values[draw(random, values.size())]);
    }
    genome.kernels.push_back(kernel);
  }
  return repair(std::move(genome), problem, target);
}

PlanGenome mutate(const PlanGenome& genome, const Problem& problem, const Target& target, int strength,
                  Random& random) {
  PlanGenome start = repair(genome, problem, target);
  PlanGenome result = start;
  for (int i = 0; i < std::max(1, strength); ++i) result = mutateOnce(result, problem, target, random);
  // Several changes may have undone each other; a single one never does.
  if (result == genome) result = mutateOnce(start, problem, target, random);
  return result;
}

PlanGenome crossover(const PlanGenome& a, const PlanGenome& b, const Problem& problem, const Target& target,
                     Random& random) {
  PlanGenome mother = repair(a, problem, target), father = repair(b, problem, target);
  std::vector<Group> motherGroups = groupsOf(mother, problem), fatherGroups = groupsOf(father, problem);
  PlanGenome child;
  for (size_t e = 0; e < problem.edges.size(); ++e) {
    child.fuse.push_back(coin(random) ? mother.fuse[e] : father.fuse[e]);
  }
  child.fuse = problem.legalFusion(std::move(child.fuse));
  for (const Group& group : groupsOf(child, problem)) {
    const KernelSchedule* fromMother = bestMatch(group, mother, motherGroups);
    const KernelSchedule* fromFather = bestMatch(group, father, fatherGroups);
    if (!fromMother) std::swap(fromMother, fromFather);
    KernelSchedule kernel = fromMother ? *fromMother : defaultSchedule(factsOf(problem, group, target), target);
    for (const ParameterDef& def : parameterTable()) {
      if (fromFather && def.activeFor(kernel) && coin(random)) kernel.set(def.id, fromFather->get(def.id));
    }
    child.kernels.push_back(kernel);
  }
  return repair(std::move(child), problem, target);
}

}  // namespace ktune::schedule
