#include "tools/Shell.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "runtime/guard/Guard.h"
#include "tools/Backends.h"
#include "tools/Version.h"

namespace ktune::tools {

namespace {

// Errors are one line each, whatever a library put into its message.
std::string oneLine(std::string_view text) {
  std::string line;
  for (char c : text) {
    const bool blank = c == '\n' || c == '\r' || c == '\t' || c == ' ';
    if (!blank)
      line.push_back(c);
    else if (!line.empty() && line.back() != ' ')
      line.push_back(' ');
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

}  // namespace

ExitCode Shell::fail(ExitCode code, const Status& status) const {
  const std::string message = oneLine(status.message());
  std::fprintf(stderr, "ktune: error: %s\n", message.c_str());
  if (common.json) printJson({{"error", errorJson(code, status.code(), message)}});
  return code;
}

Json errorJson(ExitCode exitCode, StatusCode code, const std::string& message) {
  return {{"code", std::string(statusCodeName(code))}, {"exit_code", static_cast<int>(exitCode)}, {"message", message}};
}

Result<std::string> Shell::cacheDir() const {
  if (!common.cache.empty()) return common.cache;
  return settings.resolvedCacheDir();
}

Result<std::unique_ptr<cache::Store>> Shell::openCache(bool readOnly) const {
  KTUNE_ASSIGN(std::string path, cacheDir());
  cache::StoreOptions options;
  options.path = std::move(path);
  options.readOnly = readOnly;
  options.createIfMissing = !readOnly;
  Result<std::unique_ptr<cache::Store>> store = cache::openRocksStore(options);
  if (!store && store.error().code() == StatusCode::kNotFound)
    return notFound(store.error().message() + "; `ktune warm-cache` makes one, or give another --cache");
  return store;
}

Status Shell::applyLogLevel() const {
  LogLevel level = settings.logLevel;
  if (!common.log.empty() && !parseLogLevel(common.log, level))
    return invalidArgument("--log is \"" + common.log + "\"; it must be debug, info, warning, error or silent");
  setLogLevel(level);
  return Status::ok();
}

void addCommonOptions(CLI::App& app, Shell& shell, unsigned which) {
  CommonOptions& o = shell.common;
  if (which & kJsonOption) app.add_flag("--json", o.json, "Print one JSON object on standard output");
  if (which & kCacheOption)
    app.add_option("--cache", o.cache, "Cache folder (default: $KTUNE_CACHE, else ~/.cache/ktune)")->type_name("DIR");
  if (which & kDeviceOption) {
    app.add_option(
           "--device", o.device,
           "Device, as `ktune devices` names it; several for one workload: cuda:0,cuda:1, or all (default: the best)")
        ->type_name("NAME");
    app.add_flag("--share-device", o.shareDevice,
                 "Measure on a GPU although other processes use it: times are less sure");
  }
  if (which & kJobsOption)
    app.add_option("--jobs", o.jobs, "Compile workers (default: $KTUNE_JOBS, else as many as cores and memory allow)")
        ->type_name("N")
        ->check(CLI::Range(1, 4096));
  app.add_option("--log", o.log, "debug, info, warning, error or silent (default: $KTUNE_LOG, else warning)")
      ->type_name("LEVEL");
}

void printJson(const Json& value) {
  printText(value.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n");
}

void printText(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

ExitCode cacheExitCode(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ? ExitCode::kUsage : ExitCode::kCache;
}

Result<runtime::DeviceInfo> chooseDevice(const std::string& name) {
  std::string known;
  Status why;
  for (runtime::DeviceInfo& device : runtime::listDevices()) {
    known += (known.empty() ? "" : ", ") + device.name;
    if (!name.empty() && device.name != name && device.name != name + ":0") continue;
    Status compiles = canCompileFor(device.target.kind);
    if (compiles.isOk()) return std::move(device);
    if (!name.empty()) return compiles.withPrefix("device \"" + device.name + "\"");
    if (why.isOk()) why = std::move(compiles);
  }
  if (name.empty())
    return unsupported("nothing can be compiled for the devices here (" + known + "): " + why.message());
  return notFound("there is no device \"" + name + "\"; there is: " + known +
                  "; `ktune doctor` says what is missing for others");
}

Result<std::vector<runtime::DeviceInfo>> chooseDevices(const std::string& names) {
  std::vector<runtime::DeviceInfo> chosen;
  if (names == "all") {
    for (runtime::DeviceInfo& device : runtime::listDevices())
      if (device.target.kind == schedule::DeviceKind::kCuda) chosen.push_back(std::move(device));
    if (chosen.empty()) return notFound("--device all means every GPU, and there is none; `ktune doctor` says why");
    if (Status compiles = canCompileFor(chosen[0].target.kind); !compiles.isOk()) return compiles;
  } else {
    for (size_t begin = 0; begin <= names.size();) {
      const size_t end = std::min(names.find(',', begin), names.size());
      if (begin == end && !names.empty())
        return invalidArgument("the list of devices \"" + names +
                               "\" has an empty name; write names with one comma between them, like cuda:0,cuda:1");
      KTUNE_ASSIGN(runtime::DeviceInfo device, chooseDevice(names.substr(begin, end - begin)));
      // A GPU has one lease; the host's cores are whoever's.
      for (const runtime::DeviceInfo& other : chosen)
        if (other.name == device.name && device.target.kind == schedule::DeviceKind::kCuda)
          return invalidArgument("the list of devices \"" + names + "\" has " + device.name + " twice");
      chosen.push_back(std::move(device));
      begin = end + 1;
    }
  }
  for (const runtime::DeviceInfo& device : chosen) {
    if (device.target.hardware != chosen[0].target.hardware)
      return invalidArgument(device.name + " is other hardware than " + chosen[0].name +
                             " and has kernels of its own; tune for one kind of device at a time");
  }
  return chosen;
}

cache::Stamp stampFor(const runtime::DeviceInfo& device) {
  cache::Stamp stamp;
  stamp.ktune = std::string(kVersion) + "+generator" + kGeneratorVersion;
  stamp.compiler = compilerVersion(device.target.kind);
  stamp.driver = device.driver;
  stamp.verifier = runtime::kGuardVersion;
  return stamp;
}

Result<double> parseDuration(std::string_view text) {
  const auto bad = [&] {
    return invalidArgument("\"" + std::string(text) +
                           "\" is no duration; write seconds, minutes or hours, like 40s, 2m or 1h");
  };
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(value) || value <= 0) return bad();
  const std::string_view unit(stop, static_cast<size_t>(text.data() + text.size() - stop));
  if (unit == "m")
    value *= 60;
  else if (unit == "h")
    value *= 3600;
  else if (!unit.empty() && unit != "s")
    return bad();
  return value;
}

Result<std::vector<int64_t>> parseTokens(std::string_view text) {
  std::vector<int64_t> edges;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    int64_t edge = 0;
    const auto [stop, error] = std::from_chars(at, end, edge);
    if (error != std::errc() || (stop != end && *stop != ',') || edge < 1 || (!edges.empty() && edge <= edges.back()))
      return invalidArgument("\"" + std::string(text) +
                             "\" is no list of token counts; write ascending numbers from 1, like 1,16,256");
    edges.push_back(edge);
    if (stop == end) return edges;
    at = stop + 1;
  }
}

std::string durationText(double ns) {
  if (!(ns > 0)) return "-";
  if (ns < 1e3) return format("%.0f ns", ns);
  if (ns < 1e6) return format("%.2f us", ns / 1e3);
  if (ns < 1e9) return format("%.2f ms", ns / 1e6);
  return format("%.2f s", ns / 1e9);
}

std::string bytesText(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return format(unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
}

std::string format(const char* pattern, ...) {
  va_list arguments, again;
  va_start(arguments, pattern);
  va_copy(again, arguments);
  const int length = std::vsnprintf(nullptr, 0, pattern, arguments);
  va_end(arguments);
  std::string text(static_cast<size_t>(std::max(length, 0)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  return text;
}

std::string tableText(const std::vector<std::vector<std::string>>& rows, const std::vector<size_t>& right) {
  std::vector<size_t> widths;
  for (const auto& row : rows)
    for (size_t c = 0; c < row.size(); ++c) {
      if (widths.size() <= c) widths.push_back(0);
      widths[c] = std::max(widths[c], row[c].size());
    }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      const bool atRight = std::find(right.begin(), right.end(), c) != right.end();
      line += (c == 0 ? "" : "  ") + (atRight ? padding + row[c] : row[c] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace ktune::tools
