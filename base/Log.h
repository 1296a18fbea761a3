// Leveled messages. A process has one sink; the default writes "ktune: LEVEL: MESSAGE" lines to standard error.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace ktune {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kSilent = 4 };

/// Thread-safe: the sink may be called from any thread, one message at a time.
using LogSink = std::function<void(LogLevel, std::string_view message)>;

void setLogLevel(LogLevel minimum);
[[nodiscard]] LogLevel logLevel();
/// Replaces the sink (an empty function restores the default). Engines route messages to their own log with this.
void setLogSink(LogSink sink);

void log(LogLevel level, std::string_view message);
inline void logDebug(std::string_view m) {
  log(LogLevel::kDebug, m);
}
inline void logInfo(std::string_view m) {
  log(LogLevel::kInfo, m);
}
inline void logWarning(std::string_view m) {
  log(LogLevel::kWarning, m);
}
inline void logError(std::string_view m) {
  log(LogLevel::kError, m);
}

/// Parses "debug", "info", "warning", "error" or "silent"; false when TEXT is none of them.
[[nodiscard]] bool parseLogLevel(std::string_view text, LogLevel& level);

}  // namespace ktune
