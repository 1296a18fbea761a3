// Proposer: evolution on islands.
#pragma once

#include <map>
#include <set>

#include "search/Archive.h"
#include "search/Proposer.h"
#include "search/Statistics.h"

namespace ktune::search {

struct EvolutionOptions {
  int islands = 3;
  size_t islandCapacity = 16;
  int tournament = 3;           ///< Parents compete in groups of this size.
  double crossoverRate = 0.35;  ///< Of children that have two parents; half of them are mutated as well.
  double freshRate = 0.05;      ///< Of children that have none: random genomes.
  int migrateEvery = 4;         ///< Generations (calls of observe()) between migrations.
};

/// Each island is an Archive of its own; children come from one island and return to it, and every few generations
/// each island's best is copied to the next, so that islands explore different parts of the space yet share finds.
/// What other proposers found is dealt to the islands in turn. Same seed and same feedback: same proposals.
class EvolutionProposer : public Proposer {
 public:
  /// PROBLEM must outlive it.
  EvolutionProposer(const schedule::Problem& problem, const schedule::Target& target, uint64_t seed,
                    EvolutionOptions options = {});
  [[nodiscard]] std::string name() const override { return "evolution"; }
  [[nodiscard]] std::vector<Proposal> propose(int n) override;
  void observe(std::span<const Feedback> feedback) override;

  [[nodiscard]] const Archive& island(size_t index) const { return islands_[index]; }

 private:
  [[nodiscard]] Proposal child(const Archive& island, int attempt);
  [[nodiscard]] const schedule::PlanGenome& parent(const Archive& island);
  void migrate();

  const schedule::Problem& problem_;
  schedule::Target target_;
  EvolutionOptions options_;
  Random random_;
  std::vector<Archive> islands_;
  std::set<Digest> seen_;
  std::map<Digest, size_t> home_;  ///< Island of each child that is out for measurement.
  size_t nextIsland_ = 0, nextHome_ = 0;
  int generation_ = 0;
};

}  // namespace ktune::search
