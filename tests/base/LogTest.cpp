#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>
#include <vector>

#include "base/Log.h"

namespace ktune {
namespace {

class Log : public testing::Test {
 protected:
  void SetUp() override { setLogLevel(LogLevel::kDebug); }
  void TearDown() override {
    setLogSink({});
    setLogLevel(LogLevel::kWarning);
  }
};

TEST_F(Log, LevelsFilter) {
  std::string seen;
  setLogSink(
      [&](LogLevel level, std::string_view m) { seen += std::to_string(static_cast<int>(level)) + std::string(m); });
  const std::pair<LogLevel, const char*> kTable[] = {{LogLevel::kDebug, "0d1i2w3e"},
                                                     {LogLevel::kInfo, "1i2w3e"},
                                                     {LogLevel::kWarning, "2w3e"},
                                                     {LogLevel::kError, "3e"},
                                                     {LogLevel::kSilent, ""}};
  for (const auto& [minimum, expected] : kTable) {
    seen.clear();
    setLogLevel(minimum);
    EXPECT_EQ(logLevel(), minimum);
    logDebug("d");
    logInfo("i");
    logWarning("w");
    logError("e");
    log(LogLevel::kSilent, "never");
    EXPECT_EQ(seen, expected);
  }
}

TEST_F(Log, DefaultWritesLinesToStandardError) {
  testing::internal::CaptureStderr();
  logWarning("careful");
  logError("broken");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "ktune: warning: careful\nktune: error: broken\n");
}

TEST_F(Log, NamesParse) {
  const char* const kNames[] = {"debug", "info", "warning", "error", "silent"};
  for (int i = 0; i < 5; ++i) {
    LogLevel level{};
    EXPECT_TRUE(parseLogLevel(kNames[i], level));
    EXPECT_EQ(static_cast<int>(level), i);
  }
  LogLevel level = LogLevel::kError;
  for (const char* text : {"", "Debug", "warn", "debug "}) EXPECT_FALSE(parseLogLevel(text, level)) << text;
  EXPECT_EQ(level, LogLevel::kError);
}

TEST_F(Log, OneMessageAtATimeFromManyThreads) {
  int count = 0;  // Unprotected on purpose: ThreadSanitizer checks the promise.
  setLogSink([&](LogLevel, std::string_view) { ++count; });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) logInfo("m");
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(count, 2000);
}

TEST_F(Log, SinksMayLogThrowAndReplaceThemselves) {
  testing::internal::CaptureStderr();
  setLogSink([](LogLevel, std::string_view) { logError("from the sink"); });
  logInfo("a");
  setLogSink([](LogLevel, std::string_view) { throw std::runtime_error("sink"); });
  logInfo("b");
  setLogSink([](LogLevel, std::string_view) { setLogSink({}); });
  logInfo("c");
  logInfo("d");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "ktune: error: from the sink\nktune: info: b\nktune: info: d\n");
}

}  // namespace
}  // namespace ktune
