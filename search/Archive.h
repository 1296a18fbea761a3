// The archive: a bounded set of candidates that keeps the best and the different.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ir/schedule/Genome.h"

namespace ktune::search {

/// Number of differing fusion bits and active parameters. Kernels are compared in order; one without a counterpart,
/// or of another generator, counts all of its active parameters.
[[nodiscard]] int distance(const schedule::PlanGenome& a, const schedule::PlanGenome& b);

/// Genomes within kNicheRadius of each other are one niche, and compete for one place once the archive is full: a
/// crowd of near copies of the best cannot push out everything else.
class Archive {
 public:
  static constexpr int kNicheRadius = 1;
  struct Entry {
    schedule::PlanGenome genome;
    double score = 0;  ///< Lower is better.
  };

  explicit Archive(size_t capacity) : capacity_(capacity) {}
  /// True when GENOME is kept. A genome already there takes the new score.
  bool insert(const schedule::PlanGenome& genome, double score);
  [[nodiscard]] bool contains(const schedule::PlanGenome& genome) const;
  /// Best first.
  [[nodiscard]] std::span<const Entry> entries() const { return entries_; }
  [[nodiscard]] bool empty() const { return entries_.empty(); }

 private:
  void place(Entry entry);

  size_t capacity_;
  std::vector<Entry> entries_;
};

}  // namespace ktune::search
