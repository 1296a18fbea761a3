// Making genomes: the default, random ones, mutation and crossover. Results are always legal.
#pragma once

#include <random>

#include "ir/schedule/Legality.h"

namespace ktune::schedule {

using Random = std::mt19937_64;

/// The schedule that a careful programmer would write without measuring: everything fusable fused, full vectors,
/// tiles that give every core several. Also what an engine gets before anything was tuned.
[[nodiscard]] PlanGenome defaultGenome(const Problem& problem, const Target& target);
[[nodiscard]] PlanGenome randomGenome(const Problem& problem, const Target& target, Random& random);
/// Changes STRENGTH parameters or fusion bits (most often moving a parameter one step along its list). The result
/// differs from GENOME whenever the space has another point.
[[nodiscard]] PlanGenome mutate(const PlanGenome& genome, const Problem& problem, const Target& target, int strength,
                                Random& random);
/// Each parameter and bit from one parent or the other.
[[nodiscard]] PlanGenome crossover(const PlanGenome& a, const PlanGenome& b, const Problem& problem,
                                   const Target& target, Random& random);

}  // namespace ktune::schedule
