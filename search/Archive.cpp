#include "search/Archive.h"

#include <algorithm>

namespace ktune::search {
namespace {

using schedule::KernelSchedule;
using schedule::ParameterDef;

int activeCount(const KernelSchedule& kernel) {
  int count = 0;
  for (const ParameterDef& def : schedule::parameterTable()) count += def.activeFor(kernel) ? 1 : 0;
  return count;
}

int distanceOf(const KernelSchedule& a, const KernelSchedule& b) {
  if (a.generator != b.generator) return std::max(activeCount(a), activeCount(b));
  int count = 0;
  for (const ParameterDef& def : schedule::parameterTable())
    count += def.activeFor(a) && a.get(def.id) != b.get(def.id) ? 1 : 0;
  return count;
}

}  // namespace

int distance(const schedule::PlanGenome& a, const schedule::PlanGenome& b) {
  int count = 0;
  for (size_t i = 0; i < std::max(a.fuse.size(), b.fuse.size()); ++i) {
    int bitA = i < a.fuse.size() ? a.fuse[i] : -1, bitB = i < b.fuse.size() ? b.fuse[i] : -1;
    count += bitA != bitB ? 1 : 0;
  }
  size_t common = std::min(a.kernels.size(), b.kernels.size());
  for (size_t i = 0; i < common; ++i) count += distanceOf(a.kernels[i], b.kernels[i]);
  for (size_t i = common; i < a.kernels.size(); ++i) count += activeCount(a.kernels[i]);
  for (size_t i = common; i < b.kernels.size(); ++i) count += activeCount(b.kernels[i]);
  return count;
}

bool Archive::insert(const schedule::PlanGenome& genome, double score) {
  if (capacity_ == 0) return false;
  auto nearest = entries_.end();
  int nearestDistance = 0;
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    int d = distance(it->genome, genome);
    // Entries are ordered by score, so that of equally near ones the worst is the rival.
    if (nearest == entries_.end() || d <= nearestDistance) {
      nearest = it;
      nearestDistance = d;
    }
    if (d == 0) break;
  }
  if (nearest != entries_.end() && nearestDistance == 0) {
    entries_.erase(nearest);
    place({genome, score});
    return true;
  }
  if (entries_.size() >= capacity_) {
    auto victim = nearestDistance <= kNicheRadius ? nearest : entries_.end() - 1;
    if (victim->score <= score) return false;
    entries_.erase(victim);
  }
  place({genome, score});
  return true;
}

bool Archive::contains(const schedule::PlanGenome& genome) const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const Entry& entry) { return distance(entry.genome, genome) == 0; });
}

void Archive::place(Entry entry) {
  auto at = std::upper_bound(entries_.begin(), entries_.end(), entry.score,
                             [](double score, const Entry& e) { return score < e.score; });
  entries_.insert(at, std::move(entry));
}

}  // namespace ktune::search
