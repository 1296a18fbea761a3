#include "search/Bandit.h"

#include <algorithm>
#include <cmath>

namespace ktune::search {

Bandit::Bandit(size_t arms, Parameters parameters) : parameters_(parameters), arms_(arms) {}

double Bandit::value(size_t arm) const {
  const Arm& a = arms_[arm];
  return (a.gain + parameters_.optimism * parameters_.optimismCandidates) /
         (a.candidates + parameters_.optimismCandidates);
}

std::vector<int> Bandit::share(int n) const {
  std::vector<int> shares(arms_.size(), 0);
  if (arms_.empty() || n <= 0) return shares;
  double sum = 0;
  for (size_t i = 0; i < arms_.size(); ++i) sum += value(i);
  std::vector<double> exact(arms_.size());
  int given = 0;
  for (size_t i = 0; i < arms_.size(); ++i) {
    double equal = 1.0 / static_cast<double>(arms_.size());
    double part = sum > 0 ? value(i) / sum : equal;
    exact[i] = n * (parameters_.floor * equal + (1 - parameters_.floor) * part);
    shares[i] = static_cast<int>(exact[i]);
    given += shares[i];
  }
  // Largest remainder; ties go to the earlier arm.
  while (given < n) {
    size_t most = 0;
    for (size_t i = 1; i < arms_.size(); ++i)
      if (exact[i] - shares[i] > exact[most] - shares[most] + 1e-12) most = i;
    ++shares[most];
    ++given;
  }
  return shares;
}

void Bandit::reward(size_t arm, int candidates, double gain) {
  if (candidates <= 0) return;
  Arm& a = arms_[arm];
  a.gain = parameters_.decay * a.gain + std::max(0.0, gain);
  a.candidates = parameters_.decay * a.candidates + candidates;
}

}  // namespace ktune::search
