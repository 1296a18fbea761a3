#include "base/Log.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

namespace ktune {

namespace {

constexpr std::array<std::string_view, 5> kLevelNames = {"debug", "info", "warning", "error", "silent"};

struct LogState {
  std::atomic<LogLevel> minimum{LogLevel::kWarning};
  // Recursive: a sink that logs or replaces itself must not deadlock.
  std::recursive_mutex mutex;
  std::shared_ptr<const LogSink> sink;  // Null: the default.
  bool inSink = false;
};

// Never destroyed: other threads and destructors of statics may still log while the process exits.
LogState& logState() {
  static LogState* const state = new LogState;
  return *state;
}

void writeToStandardError(LogLevel level, std::string_view message) {
  std::string line = "ktune: ";
  line.append(kLevelNames[static_cast<size_t>(level)]).append(": ").append(message).push_back('\n');
  // One write, so that lines of several processes do not mix. Nothing useful can be done when it fails.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void setLogLevel(LogLevel minimum) {
  logState().minimum.store(minimum, std::memory_order_relaxed);
}

LogLevel logLevel() {
  return logState().minimum.load(std::memory_order_relaxed);
}

void setLogSink(LogSink sink) {
  LogState& state = logState();
  std::shared_ptr<const LogSink> next = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  // Taken while a message is delivered, so after the return the old sink is not running in another thread.
  const std::lock_guard lock(state.mutex);
  state.sink.swap(next);
}

void log(LogLevel level, std::string_view message) {
  LogState& state = logState();
  if (level < logLevel() || level >= LogLevel::kSilent) return;
  const std::lock_guard lock(state.mutex);
  // A message logged by the sink itself goes to standard error, instead of recursing for ever.
  if (!state.sink || state.inSink) {
    writeToStandardError(level, message);
    return;
  }
  const std::shared_ptr<const LogSink> sink = state.sink;  // It may replace itself.
  state.inSink = true;
  try {
    (*sink)(level, message);
  } catch (...) {
    // Logging never fails its caller; the message must not be lost.
    writeToStandardError(level, message);
  }
  state.inSink = false;
}

bool parseLogLevel(std::string_view text, LogLevel& level) {
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (text != kLevelNames[i]) continue;
    level = static_cast<LogLevel>(i);
    return true;
  }
  return false;
}

}  // namespace ktune
