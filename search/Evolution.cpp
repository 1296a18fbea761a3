#include "search/Evolution.h"

#include <algorithm>

namespace ktune::search {
namespace {

/// Attempts at a child nobody has seen, each wilder than the last, before the space counts as exhausted.
constexpr int kAttempts = 24;

}  // namespace

EvolutionProposer::EvolutionProposer(const schedule::Problem& problem, const schedule::Target& target, uint64_t seed,
                                     EvolutionOptions options)
    : problem_(problem), target_(target), options_(options), random_(seed) {
  options_.islands = std::max(1, options_.islands);
  islands_.assign(static_cast<size_t>(options_.islands), Archive(options_.islandCapacity));
}

const schedule::PlanGenome& EvolutionProposer::parent(const Archive& island) {
  // Entries are ordered best first: the smallest index drawn wins the tournament.
  uint64_t winner = boundedRandom(random_, island.entries().size());
  for (int i = 1; i < options_.tournament; ++i)
    winner = std::min(winner, boundedRandom(random_, island.entries().size()));
  return island.entries()[winner].genome;
}

Proposal EvolutionProposer::child(const Archive& island, int attempt) {
  bool desperate = attempt >= kAttempts * 2 / 3;
  if (island.empty() || desperate || unitRandom(random_) < options_.freshRate)
    return {schedule::randomGenome(problem_, target_, random_), "evolution/random"};
  if (island.entries().size() > 1 && unitRandom(random_) < options_.crossoverRate) {
    const schedule::PlanGenome& a = parent(island);
    const schedule::PlanGenome& b = parent(island);
    schedule::PlanGenome genome = schedule::crossover(a, b, problem_, target_, random_);
    if (unitRandom(random_) < 0.5) genome = schedule::mutate(genome, problem_, target_, 1, random_);
    return {std::move(genome), "evolution/crossover"};
  }
  int strength = 1 + attempt / 4;
  while (strength < 6 && unitRandom(random_) < 0.4) ++strength;
  return {schedule::mutate(parent(island), problem_, target_, strength, random_), "evolution/mutate"};
}

std::vector<Proposal> EvolutionProposer::propose(int n) {
  std::vector<Proposal> proposals;
  for (int i = 0; i < n; ++i) {
    size_t island = nextIsland_;
    nextIsland_ = (nextIsland_ + 1) % islands_.size();
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      Proposal proposal = child(islands_[island], attempt);
      Digest digest = proposal.genome.digest();
      if (!seen_.insert(digest).second) continue;
      home_[digest] = island;
      proposals.push_back(std::move(proposal));
      break;
    }
  }
  return proposals;
}

void EvolutionProposer::observe(std::span<const Feedback> feedback) {
  for (const Feedback& f : feedback) {
    Digest digest = f.genome.digest();
    seen_.insert(digest);
    bool known = false;
    for (Archive& island : islands_) {
      if (f.rejected || !island.contains(f.genome)) continue;
      island.insert(f.genome, f.score);  // measured again: the newer score is the firmer one
      known = true;
    }
    if (known) continue;
    size_t island = nextHome_;
    if (auto it = home_.find(digest); it != home_.end()) {
      island = it->second;
      home_.erase(it);
    } else if (!f.rejected) {
      nextHome_ = (nextHome_ + 1) % islands_.size();
    }
    if (!f.rejected) islands_[island].insert(f.genome, f.score);
  }
  if (++generation_ % std::max(1, options_.migrateEvery) == 0) migrate();
}

void EvolutionProposer::migrate() {
  std::vector<Archive::Entry> best;
  for (const Archive& island : islands_)
    if (!island.empty()) best.push_back(island.entries().front());
  if (best.size() < 2) return;
  for (size_t i = 0; i < islands_.size(); ++i) {
    const Archive::Entry& guest = best[i % best.size()];
    islands_[(i + 1) % islands_.size()].insert(guest.genome, guest.score);
  }
}

}  // namespace ktune::search
