// Shares a batch between proposers by what each has gained.
#pragma once

#include <cstddef>
#include <vector>

namespace ktune::search {

/// Deterministic: no draw, so that a run repeats. Each arm's value is its decayed gain per candidate; a floor keeps
/// every arm explored, because the one that leads early (a prior) is seldom the one that leads late.
class Bandit {
 public:
  struct Parameters {
    double decay = 0.8;             ///< Weight of the past, per batch in which the arm took part.
    double floor = 0.3;             ///< Part of each batch shared equally.
    double optimism = 0.02;         ///< Gain per candidate assumed of an arm that was never tried.
    double optimismCandidates = 4;  ///< How many candidates that assumption is worth.
  };
  explicit Bandit(size_t arms) : Bandit(arms, Parameters()) {}
  Bandit(size_t arms, Parameters parameters);

  /// How many of N candidates each arm may propose. Sums to N.
  [[nodiscard]] std::vector<int> share(int n) const;
  /// ARM proposed CANDIDATES in the last batch and improved the best by GAIN (log of old / new time, at least 0).
  void reward(size_t arm, int candidates, double gain);
  [[nodiscard]] double value(size_t arm) const;

 private:
  struct Arm {
    double gain = 0, candidates = 0;
  };
  Parameters parameters_;
  std::vector<Arm> arms_;
};

}  // namespace ktune::search
