#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <vector>

#include "base/Settings.h"

namespace ktune {
namespace {

const char* const kVariables[] = {"KTUNE_CACHE", "TMPDIR",     "HOME",       "XDG_CACHE_HOME",
                                  "KTUNE_LOG",   "KTUNE_JOBS", "KTUNE_FAULT"};

class SettingsTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kVariables) {
      if (const char* value = std::getenv(name)) saved_[name] = value;
      ::unsetenv(name);
    }
  }
  void TearDown() override {
    for (const char* name : kVariables) ::unsetenv(name);
    for (const auto& [name, value] : saved_) ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::map<std::string, std::string> saved_;
};

TEST_F(SettingsTest, Defaults) {
  const Result<Settings> s = readSettings();
  ASSERT_TRUE(s);
  EXPECT_EQ(s->cacheDir, "");
  EXPECT_EQ(s->tempDir, "/tmp");
  EXPECT_EQ(s->logLevel, LogLevel::kWarning);
  EXPECT_EQ(s->jobs, 0);
  EXPECT_EQ(s->fault, "");
}

TEST_F(SettingsTest, EveryVariableIsRead) {
  ::setenv("KTUNE_CACHE", "/c", 1);
  ::setenv("TMPDIR", "/t", 1);
  ::setenv("HOME", "/h", 1);
  ::setenv("XDG_CACHE_HOME", "/x", 1);
  ::setenv("KTUNE_LOG", "debug", 1);
  ::setenv("KTUNE_JOBS", "12", 1);
  ::setenv("KTUNE_FAULT", "crash", 1);
  const Result<Settings> s = readSettings();
  ASSERT_TRUE(s) << s.error().toString();
  EXPECT_EQ(s->cacheDir, "/c");
  EXPECT_EQ(s->tempDir, "/t");
  EXPECT_EQ(s->homeDir, "/h");
  EXPECT_EQ(s->xdgCacheDir, "/x");
  EXPECT_EQ(s->logLevel, LogLevel::kDebug);
  EXPECT_EQ(s->jobs, 12);
  EXPECT_EQ(s->fault, "crash");
}

TEST_F(SettingsTest, EmptyMeansUnset) {
  for (const char* name : kVariables) ::setenv(name, "", 1);
  const Result<Settings> s = readSettings();
  ASSERT_TRUE(s) << s.error().toString();
  EXPECT_EQ(s->tempDir, "/tmp");
  EXPECT_EQ(s->jobs, 0);
}

TEST_F(SettingsTest, BadValuesNameTheVariable) {
  const std::pair<const char*, const char*> kTable[] = {
      {"KTUNE_LOG", "loud"}, {"KTUNE_JOBS", "-1"},   {"KTUNE_JOBS", "4x"},         {"KTUNE_JOBS", " 4"},
      {"KTUNE_JOBS", "1.5"}, {"KTUNE_JOBS", "5000"}, {"KTUNE_JOBS", "99999999999"}};
  for (const auto& [name, value] : kTable) {
    ::setenv(name, value, 1);
    const Result<Settings> s = readSettings();
    ASSERT_FALSE(s) << name << "=" << value;
    EXPECT_EQ(s.error().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(s.error().message().find(std::string(name) + " is \"" + value + "\""), std::string::npos)
        << s.error().message();
    ::unsetenv(name);
  }
}

TEST_F(SettingsTest, CacheFolder) {
  struct Case {
    const char* cache;
    const char* xdg;
    const char* home;
    const char* expected;  // Null: an error.
  };
  const Case kTable[] = {{"/c", "/x", "/h", "/c"},
                         {"rel", "/x", "/h", "rel"},
                         {"", "/x", "/h", "/x/ktune"},
                         {"", "", "/h", "/h/.cache/ktune"},
                         {"", "rel", "/h", "/h/.cache/ktune"},  // XDG: relative paths are ignored
                         {"", "rel", "", nullptr},
                         {"", "", "", nullptr}};
  for (const Case& c : kTable) {
    Settings s;
    s.cacheDir = c.cache;
    s.xdgCacheDir = c.xdg;
    s.homeDir = c.home;
    const Result<std::string> folder = s.resolvedCacheDir();
    ASSERT_EQ(folder.has_value(), c.expected != nullptr);
    if (folder) {
      EXPECT_EQ(*folder, c.expected);
    } else {
      EXPECT_EQ(folder.error().code(), StatusCode::kInvalidArgument);
    }
  }
}

}  // namespace
}  // namespace ktune
