#include "base/Settings.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace ktune {

namespace {

// More workers than any machine has cores: a slip of the keyboard.
constexpr int kMaxJobs = 4096;

// An empty variable counts as unset, as the XDG specification and most tools have it.
std::string environmentValue(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace

Result<std::string> Settings::resolvedCacheDir() const {
  if (!cacheDir.empty()) return cacheDir;
  // The XDG base directory specification: "If an implementation encounters a relative path ... ignore it."
  if (xdgCacheDir.starts_with('/')) return xdgCacheDir + "/ktune";
  if (!homeDir.empty()) return homeDir + "/.cache/ktune";
  return invalidArgument("no cache folder: set KTUNE_CACHE (or XDG_CACHE_HOME to an absolute path, or HOME)");
}

Result<Settings> readSettings() {
  Settings settings;
  settings.cacheDir = environmentValue("KTUNE_CACHE");
  settings.homeDir = environmentValue("HOME");
  settings.xdgCacheDir = environmentValue("XDG_CACHE_HOME");
  settings.cudaHome = environmentValue("CUDA_HOME");
  settings.virtualEnv = environmentValue("VIRTUAL_ENV");
  settings.mpsPipeDir = environmentValue("CUDA_MPS_PIPE_DIRECTORY");
  settings.xdgRuntimeDir = environmentValue("XDG_RUNTIME_DIR");
  settings.fault = environmentValue("KTUNE_FAULT");
  settings.tempDir = environmentValue("TMPDIR");
  if (settings.tempDir.empty()) settings.tempDir = "/tmp";

  if (const std::string level = environmentValue("KTUNE_LOG");
      !level.empty() && !parseLogLevel(level, settings.logLevel))
    return invalidArgument("KTUNE_LOG is \"" + level + "\"; it must be debug, info, warning, error or silent");

  if (const std::string jobs = environmentValue("KTUNE_JOBS"); !jobs.empty()) {
    const char* const end = jobs.data() + jobs.size();
    const auto [stop, error] = std::from_chars(jobs.data(), end, settings.jobs);
    if (error != std::errc() || stop != end || settings.jobs < 0 || settings.jobs > kMaxJobs)
      return invalidArgument("KTUNE_JOBS is \"" + jobs +
                             "\"; it must be a number from 0 (as many as cores and memory " + "allow) to " +
                             std::to_string(kMaxJobs));
  }
  return settings;
}

}  // namespace ktune
