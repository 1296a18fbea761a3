// Progress of tuning on standard error.
#pragma once

#include <string>
#include <vector>

#include "search/Tuner.h"
#include "tools/Workload.h"

namespace ktune::tools {

/// "hit", "tuned", "not-reached", "failed".
[[nodiscard]] std::string_view outcomeName(search::UnitOutcome outcome);

/// Shows what tuneUnits() reports. While it lives, log messages go through it, so that they neither break the live
/// line nor the stream of events. One at a time in a process.
class Display {
 public:
  enum class Mode {
    kQuiet,   ///< Nothing but log messages.
    kLines,   ///< One line per finished unit.
    kLive,    ///< kLines, and below them one line that is rewritten (terminals).
    kEvents,  ///< One JSON object per line: {"event": "unit" | "log", ...}.
  };
  /// UNITS must outlive the display.
  Display(Mode mode, const std::vector<PlannedUnit>& units);
  ~Display();
  Display(const Display&) = delete;
  Display& operator=(const Display&) = delete;

  void progress(const search::Progress& progress);
  /// REQUIRES: the unit's record, if any, is durable: whoever reads the line may rely on it.
  void unitDone(size_t unit, const search::UnitReport& report);

 private:
  void line(const std::string& text);
  void clearLive();

  const Mode mode_;
  const std::vector<PlannedUnit>& units_;
  bool liveShown_ = false;
  double nextLiveAt_ = 0;
};

}  // namespace ktune::tools
