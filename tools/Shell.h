// What every command shares: settings, common options, output and errors.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/Json.h"
#include "base/Settings.h"
#include "base/Status.h"
#include "cache/store/Store.h"
#include "runtime/launch/Device.h"
#include "tools/ExitCodes.h"

namespace CLI {
class App;
}

namespace ktune::tools {

/// Options with one meaning everywhere. Which of them a command has is its own choice (addCommonOptions).
struct CommonOptions {
  bool json = false;         ///< --json
  std::string cache;         ///< --cache: overrides KTUNE_CACHE.
  std::string device;        ///< --device: empty = the best that this build can compile for.
  bool shareDevice = false;  ///< --share-device: measure on a GPU although others use it.
  int jobs = 0;              ///< --jobs: overrides KTUNE_JOBS; 0 = as many as cores and memory allow.
  std::string log;           ///< --log: overrides KTUNE_LOG.
};

/// Sets of common options for addCommonOptions.
enum CommonOption : unsigned { kJsonOption = 1, kCacheOption = 2, kDeviceOption = 4, kJobsOption = 8 };

struct Shell {
  Settings settings;
  CommonOptions common;

  /// Prints "ktune: error: MESSAGE" as one line on standard error and, with --json, {"error": ...} on standard
  /// output. Returns CODE.
  ExitCode fail(ExitCode code, const Status& status) const;
  /// The cache folder that applies. Errors: kInvalidArgument when there is none.
  [[nodiscard]] Result<std::string> cacheDir() const;
  /// Opens that cache. Errors: as cache::openRocksStore.
  [[nodiscard]] Result<std::unique_ptr<cache::Store>> openCache(bool readOnly) const;
  [[nodiscard]] int jobs() const { return common.jobs > 0 ? common.jobs : settings.jobs; }
  /// --log over KTUNE_LOG. Errors: kInvalidArgument.
  [[nodiscard]] Status applyLogLevel() const;
};

/// Adds --log and the chosen common options (CommonOption bits) to a command.
void addCommonOptions(CLI::App& app, Shell& shell, unsigned which);

/// A command: its options are declared on a child of ROOT; run() is called when it was chosen.
struct Command {
  CLI::App* app = nullptr;
  std::function<ExitCode()> run;
};

/// The "error" of JSON output: {"code": "invalid-argument", "exit_code": 2, "message": ...}.
[[nodiscard]] Json errorJson(ExitCode exitCode, StatusCode code, const std::string& message);
/// VALUE, indented, on standard output. Bytes that are not UTF-8 are replaced, never an error.
void printJson(const Json& value);
/// The text on standard output.
void printText(std::string_view text);

/// The exit code for a cache that could not be opened or written.
[[nodiscard]] ExitCode cacheExitCode(const Status& status);
/// The device named, or the best one that this build can compile for. Quick: starts nothing.
/// Errors: kNotFound listing what there is, kUnsupported when there is no compiler for it in this build.
[[nodiscard]] Result<runtime::DeviceInfo> chooseDevice(const std::string& name);
/// The devices named in a list ("cuda:0,cuda:1"), "all" for every GPU, or as chooseDevice(). All of one hardware, so
/// that they can share the work of one key. Errors: as chooseDevice; kInvalidArgument when their hardware differs.
[[nodiscard]] Result<std::vector<runtime::DeviceInfo>> chooseDevices(const std::string& names);
/// The stamp that records made now on this device carry.
[[nodiscard]] cache::Stamp stampFor(const runtime::DeviceInfo& device);

/// "40s", "2m", "1h" or plain seconds -> seconds. Errors: kInvalidArgument.
[[nodiscard]] Result<double> parseDuration(std::string_view text);
/// "1,16" -> {1, 16}: bucket edges, ascending, at least 1. Errors: kInvalidArgument.
[[nodiscard]] Result<std::vector<int64_t>> parseTokens(std::string_view text);

/// "1.52 ms", "880 ns".
[[nodiscard]] std::string durationText(double ns);
/// "512 B", "1.3 GiB".
[[nodiscard]] std::string bytesText(double bytes);
/// printf into a string.
[[nodiscard]] std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

/// Rows of text in aligned columns, two blanks apart; the first row is the header. Columns listed in RIGHT are
/// right-aligned.
[[nodiscard]] std::string tableText(const std::vector<std::vector<std::string>>& rows,
                                    const std::vector<size_t>& right);

}  // namespace ktune::tools
