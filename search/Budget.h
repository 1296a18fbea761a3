// Who may use how much of the wall clock.
#pragma once

#include <cstddef>
#include <vector>

#include "base/Deadline.h"

namespace ktune::search {

/// Divides one time budget among units in order. Of what is left when a unit begins, first every outstanding unit's
/// reserve (what proving its default is expected to cost) is set aside; the rest is divided by weight. Time that a unit
/// does not use is thereby divided among the later ones.
class BudgetKeeper {
 public:
  struct Unit {
    double weight = 1;
    double work = 1;       ///< Any measure of size that the cost of proving a default grows with.
    bool settled = false;  ///< Needs no time (a hit).
  };
  /// The clock starts now.
  BudgetKeeper(double seconds, std::vector<Unit> units);

  /// The end of the whole budget: what the proof of a default may use up to.
  [[nodiscard]] Deadline total() const { return total_; }
  void begin(size_t unit);
  /// Proving UNIT's default took SECONDS: reserves are estimated from these.
  void learn(size_t unit, double seconds);
  /// When UNIT (begun, not finished) must end. Later after begin() only by what learn() taught.
  [[nodiscard]] Deadline deadlineOf(size_t unit) const;
  void finish(size_t unit) { units_[unit].settled = true; }
  /// Seconds expected for proving UNIT's default.
  [[nodiscard]] double reserveOf(size_t unit) const;

 private:
  struct Cost {
    double work, seconds;
  };
  std::vector<Unit> units_;
  std::vector<Cost> costs_;
  Deadline total_;
  double beganAt_ = 0, leftAtBegin_ = 0;
};

}  // namespace ktune::search
