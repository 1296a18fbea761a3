// Settings from the environment, read once at process start. This is the only file that calls getenv.
#pragma once

#include <string>

#include "base/Log.h"
#include "base/Status.h"

namespace ktune {

/// Every environment variable that ktune honours, one field each (docs/settings.md is checked against this table).
struct Settings {
  std::string cacheDir;     ///< KTUNE_CACHE: the cache folder; empty = $XDG_CACHE_HOME/ktune, else $HOME/.cache/ktune.
  std::string tempDir;      ///< TMPDIR, else /tmp: where workers keep their temporary folders.
  std::string homeDir;      ///< HOME.
  std::string xdgCacheDir;  ///< XDG_CACHE_HOME.
  LogLevel logLevel = LogLevel::kWarning;  ///< KTUNE_LOG: debug, info, warning, error or silent.
  int jobs = 0;                            ///< KTUNE_JOBS: compile workers; 0 = as many as cores and memory allow.
  std::string cudaHome;                    ///< CUDA_HOME: a CUDA toolkit; NVRTC is looked for there first.
  std::string virtualEnv;     ///< VIRTUAL_ENV: a Python environment, in which a wheel may have brought NVRTC.
  std::string mpsPipeDir;     ///< CUDA_MPS_PIPE_DIRECTORY: where an MPS control daemon listens.
  std::string xdgRuntimeDir;  ///< XDG_RUNTIME_DIR: lock files of GPUs, where /run/lock can't be written.
  std::string fault;          ///< KTUNE_FAULT: fault injection for tests, read by the fake compiler and device only.

  /// The cache folder that applies: cacheDir, or the default under the home folder.
  /// Errors: kInvalidArgument when neither KTUNE_CACHE, XDG_CACHE_HOME nor HOME is set.
  [[nodiscard]] Result<std::string> resolvedCacheDir() const;
};

/// Reads the environment. Errors: kInvalidArgument naming the variable and its accepted values.
[[nodiscard]] Result<Settings> readSettings();

}  // namespace ktune
