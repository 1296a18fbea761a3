// Ask/tell proposers. They see genomes and scores, never devices, clocks or the cache.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/schedule/Vary.h"

namespace ktune::search {

/// One candidate as proposed.
struct Proposal {
  schedule::PlanGenome genome;
  std::string origin;  ///< "default", "incumbent", "prior", "evolution/mutate", ...
};
/// What became of it. Lower is better; score = time / default's time, geometric mean over the scoring points;
/// infinity when rejected.
struct Feedback {
  schedule::PlanGenome genome;
  std::string origin;
  double score = 0;
  bool rejected = false;
};

class Proposer {
 public:
  virtual ~Proposer() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  /// Up to N legal genomes not proposed before (fewer or none when the space is exhausted).
  [[nodiscard]] virtual std::vector<Proposal> propose(int n) = 0;
  virtual void observe(std::span<const Feedback> feedback) = 0;
};

}  // namespace ktune::search
