// The prior: a transparent formula for what a genome's kernels cost, and the proposer that ranks a pool by it. It has
// to rank, not to predict: docs/search.md gives the formula and what it leaves out.
#pragma once

#include <set>
#include <vector>

#include "ir/schedule/Problem.h"
#include "search/Proposer.h"
#include "search/Statistics.h"

namespace ktune::search {

/// What the formulas need to know of one kernel at given symbol values.
struct KernelShape {
  double rows = 1, columns = 1;  // of the output; of the longest row read for a row kernel
  double depth = 1;              // K
  double elementBytes = 4;
  double inputs = 1, outputs = 1;  // streams read and written
  double arithmetic = 0;           // primitive nodes that are not constants
  double reductions = 0;
  double inputBytes = 0, outputBytes = 0;
  double leftBytes = 0, weightBytes = 0;  // A[M, K] and W[N, K]
};

class Prior {
 public:
  /// COPYBYTESPERSECOND: reads and writes counted, all cores; 0 = assume one from the number of cores.
  /// PROBLEM must outlive it.
  Prior(const schedule::Problem& problem, const schedule::Target& target, double copyBytesPerSecond);
  /// Predicted nanoseconds of one call at the given symbol values. REQUIRES: GENOME is legal.
  [[nodiscard]] double predictNs(const schedule::PlanGenome& genome, const std::vector<int64_t>& symbolValues) const;
  /// Geometric mean of predictNs over the bucket's scoring points.
  [[nodiscard]] double score(const schedule::PlanGenome& genome) const;

 private:
  double mapNs(const schedule::KernelSchedule& s, const KernelShape& shape) const;
  double rowNs(const schedule::KernelSchedule& s, const KernelShape& shape) const;
  double contractionNs(const schedule::KernelSchedule& s, const KernelShape& shape) const;
  KernelShape shapeOf(const schedule::Group& group, const std::vector<int64_t>& symbolValues) const;
  double memoryNs(double bytes, double tiles) const;
  double waves(double tiles) const;

  const schedule::Problem& problem_;
  schedule::Target target_;
  double copyBytesPerSecond_;
  std::vector<std::vector<int64_t>> points_;
};

/// Draws POOL random legal genomes and every neighbour of the default (each parameter at each value, each bit
/// flipped), ranks them by the prior and proposes them from the best down, those different from what it proposed
/// before first.
class PriorProposer : public Proposer {
 public:
  PriorProposer(const schedule::Problem& problem, const schedule::Target& target, double copyBytesPerSecond,
                uint64_t seed, int pool = 2000);
  [[nodiscard]] std::string name() const override { return "prior"; }
  [[nodiscard]] std::vector<Proposal> propose(int n) override;
  void observe(std::span<const Feedback> feedback) override;
  [[nodiscard]] size_t left() const { return ranked_.size(); }

 private:
  struct Ranked {
    schedule::PlanGenome genome;
    Digest digest;
    double ns = 0;
  };
  std::vector<Ranked> ranked_;  ///< Best first.
  std::set<Digest> seen_;
};

}  // namespace ktune::search
