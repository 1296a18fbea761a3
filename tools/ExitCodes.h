// Exit codes of the ktune program. docs/errors.md explains them; scripts depend on them: append only.
#pragma once

namespace ktune::tools {

enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,            ///< A broken invariant of ktune itself: a bug to report.
  kUsage = 2,               ///< Wrong options or bad input.
  kNotTuned = 3,            ///< Some unit has no record: the budget ended first, or it failed.
  kDevice = 4,              ///< Device, driver or worker unavailable, or this build cannot compile for it.
  kCache = 5,               ///< Cache unavailable: locked, unwritable, full or damaged.
  kVerificationFailed = 6,  ///< A record does not hold.
  kInterrupted = 130,       ///< SIGINT; what was done is kept.
  kTerminated = 143,        ///< SIGTERM; what was done is kept.
};

}  // namespace ktune::tools
