#include "search/Budget.h"

#include <algorithm>

namespace ktune::search {
namespace {

/// Assumed cost of a default before any was measured: a worker's start and a compile, and by the byte and operation of
/// a call what checks and first samples take on a machine of a few GB/s.
constexpr double kUnknownFixedSeconds = 0.5;
constexpr double kUnknownSecondsPerWork = 3e-10;
/// Estimates are rough; a reserve too large only moves time from the middle of a search to a later unit.
constexpr double kReserveMargin = 1.5;

}  // namespace

BudgetKeeper::BudgetKeeper(double seconds, std::vector<Unit> units)
    : units_(std::move(units)), total_(Deadline::after(seconds)) {
  for (Unit& unit : units_) unit.weight = unit.weight > 0 ? unit.weight : 0;
}

void BudgetKeeper::begin(size_t) {
  beganAt_ = monotonicSeconds();
  leftAtBegin_ = total_.remainingSeconds();
}

void BudgetKeeper::learn(size_t unit, double seconds) {
  costs_.push_back({units_[unit].work, seconds});
}

double BudgetKeeper::reserveOf(size_t unit) const {
  if (costs_.empty()) return kUnknownFixedSeconds + kUnknownSecondsPerWork * units_[unit].work;
  // cost = fixed + slope * work. One observation cannot tell the two apart: half each.
  auto byWork = [](const Cost& a, const Cost& b) { return a.work < b.work; };
  auto bySeconds = [](const Cost& a, const Cost& b) { return a.seconds < b.seconds; };
  const Cost& largest = *std::max_element(costs_.begin(), costs_.end(), byWork);
  double least = std::min_element(costs_.begin(), costs_.end(), bySeconds)->seconds;
  double fixed = costs_.size() == 1 ? least / 2 : least;
  double slope = largest.work > 0 ? std::max(0.0, largest.seconds - fixed) / largest.work : 0;
  return kReserveMargin * (fixed + slope * units_[unit].work);
}

Deadline BudgetKeeper::deadlineOf(size_t unit) const {
  double reserves = 0, weights = 0;
  for (size_t i = 0; i < units_.size(); ++i) {
    if (units_[i].settled) continue;
    reserves += reserveOf(i);
    weights += units_[i].weight;
  }
  double free = std::max(0.0, leftAtBegin_ - reserves);
  // With no weights at all (all zero) the first unit may have everything that is not reserved.
  double part = weights > 0 ? units_[unit].weight / weights : 1;
  double end = beganAt_ + std::min(leftAtBegin_, reserveOf(unit) + free * part);
  return Deadline::after(end - monotonicSeconds()).earlierOf(total_);
}

}  // namespace ktune::search
