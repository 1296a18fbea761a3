#include "tools/Display.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "base/Log.h"
#include "tools/RecordText.h"
#include "tools/Shell.h"

namespace ktune::tools {

namespace {

constexpr double kLiveSeconds = 0.1;  // Fast enough to look alive, slow enough to cost nothing.

// One write a line, so that lines stay whole for whoever reads the other end of a pipe.
void writeError(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

size_t terminalColumns() {
  winsize size = {};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string_view logLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    default:
      return "error";
  }
}

std::string eventLine(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

// "tuned, 1.31x faster (2.10 ms -> 1.60 ms)"
std::string outcomeText(const search::UnitReport& report) {
  const cache::Record& record = report.record;
  const TypicalTimes typical = typicalTimes(record);
  std::string times;
  if (typical.ns > 0 && typical.defaultNs > 0)
    times = " (" + durationText(typical.defaultNs) + " -> " + durationText(typical.ns) + ")";
  switch (report.outcome) {
    case search::UnitOutcome::kNotReached:
      return "not reached";
    case search::UnitOutcome::kFailed:
      return "failed: " + report.status.message();
    case search::UnitOutcome::kHit:
    case search::UnitOutcome::kTuned:
      break;
  }
  std::string text;
  switch (record.decision) {
    case cache::Decision::kTuned:
      text = speedUpText(record) + " as fast as the default" + times;
      break;
    case cache::Decision::kDefault:
      text = record.evidence.candidates > 1 ? "the default is best" : "there was time for the default only";
      break;
    case cache::Decision::kUseFallback:
      text = "no kernel was proven right: use the fallback";
      break;
  }
  if (report.outcome == search::UnitOutcome::kHit) return "in the cache: " + text;
  return text + format(", %lld candidates, %.1f s", static_cast<long long>(record.evidence.candidates), report.seconds);
}

}  // namespace

std::string_view outcomeName(search::UnitOutcome outcome) {
  switch (outcome) {
    case search::UnitOutcome::kHit:
      return "hit";
    case search::UnitOutcome::kTuned:
      return "tuned";
    case search::UnitOutcome::kNotReached:
      return "not-reached";
    case search::UnitOutcome::kFailed:
      return "failed";
  }
  return "?";
}

Display::Display(Mode mode, const std::vector<PlannedUnit>& units) : mode_(mode), units_(units) {
  setLogSink([this](LogLevel level, std::string_view message) {
    if (mode_ == Mode::kEvents)
      line(eventLine(
          {{"event", "log"}, {"level", std::string(logLevelName(level))}, {"message", std::string(message)}}));
    else
      line("ktune: " + std::string(logLevelName(level)) + ": " + std::string(message) + "\n");
  });
}

Display::~Display() {
  clearLive();
  setLogSink({});
}

void Display::clearLive() {
  if (liveShown_) writeError("\r\033[K");
  liveShown_ = false;
}

void Display::line(const std::string& text) {
  clearLive();
  writeError(text);
}

void Display::progress(const search::Progress& p) {
  if (mode_ != Mode::kLive || monotonicSeconds() < nextLiveAt_) return;
  nextLiveAt_ = monotonicSeconds() + kLiveSeconds;
  std::string text = format("[%zu/%zu] %s: %s, %lld tried", p.unit + 1, p.unitCount, p.label.c_str(), p.phase.c_str(),
                            static_cast<long long>(p.candidates));
  if (p.bestRatio > 0 && p.bestNs > 0)
    text += format(", best %.2fx (%s)", 1 / p.bestRatio, durationText(p.bestNs).c_str());
  text += format(", %.0f s left", p.secondsLeft);
  // A wrapped line could not be taken back.
  text.resize(std::min(text.size(), terminalColumns() - 1));
  writeError("\r\033[K" + text);
  liveShown_ = true;
}

void Display::unitDone(size_t index, const search::UnitReport& report) {
  const PlannedUnit& unit = units_[index];
  if (mode_ == Mode::kQuiet) return;
  if (mode_ == Mode::kEvents) {
    Json json = {{"event", "unit"},
                 {"key", unit.key.hex()},
                 {"bucket", unit.unit.bucketIndex},
                 {"label", unit.label},
                 {"range", unit.bucket.describe(unit.unit.graph)},
                 {"outcome", std::string(outcomeName(report.outcome))},
                 {"seconds", report.seconds}};
    if (report.outcome == search::UnitOutcome::kHit || report.outcome == search::UnitOutcome::kTuned) {
      json["decision"] = std::string(cache::decisionName(report.record.decision));
      json["ratio"] = report.record.evidence.ratio;
    } else if (!report.status.isOk()) {
      json["message"] = report.status.message();
    }
    line(eventLine(json));
    return;
  }
  line(format("[%*zu/%zu] ", static_cast<int>(std::to_string(units_.size()).size()), index + 1, units_.size()) +
       unit.label + " " + unit.bucket.describe(unit.unit.graph) + ": " + outcomeText(report) + "\n");
}

}  // namespace ktune::tools
