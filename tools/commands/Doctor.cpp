// ktune doctor: what ktune finds here, what is wrong, and what to do about it.
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/Deadline.h"
#include "base/File.h"
#include "base/System.h"
#include "ir/op/Builder.h"
#include "ir/schedule/Vary.h"
#include "tools/Backends.h"
#include "tools/Commands.h"
#include "tools/Tuning.h"
#include "tools/Version.h"

#if KTUNE_WITH_CUDA
#include "runtime/launch/devices/cuda/CudaDevice.h"
#include "runtime/nvrtc/Nvrtc.h"
#endif

namespace ktune::tools {

namespace {

constexpr uint64_t kLowMemoryBytes = uint64_t{2} << 30;  // One compile worker's share.
constexpr uint64_t kLowCacheBytes = uint64_t{1} << 30;
constexpr uint64_t kLowTempBytes = uint64_t{256} << 20;
constexpr double kWorkerSeconds = 60;

enum class Level { kOk, kWarning, kProblem };

struct Check {
  std::string name;
  Level level = Level::kOk;
  std::string detail;
  std::string advice;                   ///< What to do; empty when ok.
  ExitCode code = ExitCode::kInternal;  ///< Of a problem.
};

std::string_view levelName(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarning:
      return "warning";
    case Level::kProblem:
      return "problem";
  }
  return "?";
}

std::string bytesOrUnknown(uint64_t bytes) {
  return bytes == 0 ? "unknown" : bytesText(static_cast<double>(bytes));
}

// PATH or its nearest parent that exists.
std::string existingPart(std::string path) {
  struct stat info = {};
  while (path.size() > 1 && ::stat(path.c_str(), &info) != 0) {
    const size_t slash = path.find_last_of('/');
    if (slash == std::string::npos) return ".";
    path.resize(slash == 0 ? 1 : slash);
  }
  return path;
}

// "ext4", "nfs4": the type of the mount on which PATH lies, from /proc/self/mountinfo (see proc(5)).
std::string fileSystemType(const std::string& path) {
  char* const resolved = ::realpath(existingPart(path).c_str(), nullptr);
  if (resolved == nullptr) return "unknown";
  const std::string real = resolved;
  ::free(resolved);
  std::ifstream mounts("/proc/self/mountinfo");
  std::string line, type = "unknown";
  size_t longest = 0;
  while (std::getline(mounts, line)) {
    std::istringstream fields(line);
    std::string skipped, mountPoint, word;
    fields >> skipped >> skipped >> skipped >> skipped >> mountPoint;
    while (fields >> word && word != "-") {
    }
    fields >> word;
    const bool inside = mountPoint == "/" || real == mountPoint || real.starts_with(mountPoint + "/");
    // Later mounts cover earlier ones at the same point.
    if (inside && mountPoint.size() >= longest) {
      longest = mountPoint.size();
      type = word;
    }
  }
  return type;
}

std::vector<Check> checkMachine() {
  std::vector<Check> checks;
  const int cores = usableCores();
  const unsigned present = std::thread::hardware_concurrency();
  checks.push_back({"cores", Level::kOk,
                    std::to_string(cores) + " usable of " + std::to_string(present) +
                        (cores < static_cast<int>(present) ? " (affinity or control group limits them)" : ""),
                    ""});
  const uint64_t memory = availableMemoryBytes();
  Check check{"memory", Level::kOk, bytesOrUnknown(memory) + " available, control group counted", ""};
  if (memory != 0 && memory < kLowMemoryBytes) {
    check.level = Level::kWarning;
    check.advice = "compiling large kernels may fail: give the container more memory, or use --jobs 1";
  }
  checks.push_back(std::move(check));
  return checks;
}

std::vector<Check> checkDevices(const std::vector<runtime::DeviceInfo>& devices) {
  std::vector<Check> checks;
  bool any = false;
  for (const runtime::DeviceInfo& device : devices) {
    const bool compiles = canCompileFor(device.target.kind).isOk();
    any = any || compiles;
    checks.push_back({"device " + device.name, Level::kOk,
                      device.description + "; driver " + device.driver + "; compiler " +
                          (compiles ? stampFor(device).compiler : "none in this build"),
                      ""});
  }
  if (!any)
    checks.push_back({"devices", Level::kProblem, "this build can compile for none of the devices here",
                      "use a build configured with KTUNE_WITH_MLIR=ON", ExitCode::kDevice});
  return checks;
}

/// What there is of CUDA: driver, compiler, management library, and each GPU with its lease. A machine without a GPU
/// needs none of it.
std::vector<Check> checkCuda() {
#if KTUNE_WITH_CUDA
  const runtime::cuda::CudaReport report = runtime::cuda::reportCuda(/*share=*/false);
  const auto row = [&report](std::string name, const Status& status, std::string detail, const std::string& advice) {
    if (status.isOk()) return Check{std::move(name), Level::kOk, std::move(detail), ""};
    if (!report.hardware && report.gpus.empty())
      return Check{std::move(name), Level::kOk, "none, and no NVIDIA GPU here: " + status.message(), ""};
    return Check{std::move(name), Level::kWarning, status.message(), advice};
  };
  std::vector<Check> checks;
  checks.push_back(row("cuda driver", report.driver, report.driverText,
                       "GPUs cannot be used until the driver works; see docs/cuda.md"));
  const Result<const nvrtc::Nvrtc*> nvrtc = nvrtc::Nvrtc::load();
  const Status fits = nvrtc ? (*nvrtc)->fitsDriver(runtime::cuda::cudaDriverVersion()) : nvrtc.status();
  checks.push_back(row("nvrtc", fits, nvrtc ? (*nvrtc)->version() + ", " + (*nvrtc)->path() : std::string(),
                       "`pip install nvidia-cuda-nvrtc`, or set CUDA_HOME to a CUDA toolkit"));
  checks.push_back(row("nvml", report.nvml ? Status::ok() : notFound(report.nvmlText), report.nvmlText,
                       "clocks, power and other users of a GPU stay unknown; install the driver's libnvidia-ml.so.1"));
  for (const runtime::cuda::CudaReport::Gpu& gpu : report.gpus) {
    const runtime::cuda::CudaFacts& facts = gpu.facts;
    Check check{"gpu " + facts.name, Level::kOk,
                format("%s, UUID %s, %d SMs, compute capability %d.%d, MIG %s, %s; lease ", facts.product.c_str(),
                       facts.uuid.c_str(), facts.multiprocessors, facts.major, facts.minor, facts.mig.c_str(),
                       bytesText(static_cast<double>(facts.memoryBytes)).c_str()),
                ""};
    if (gpu.lease.isOk()) {
      check.detail += "free";
    } else {
      check.level = Level::kWarning;
      check.detail += "refused";
      check.advice = gpu.lease.message();
    }
    checks.push_back(std::move(check));
  }
  return checks;
#else
  return {{"cuda driver", Level::kOk, "this build has no CUDA device (KTUNE_WITH_CUDA=OFF)", ""}};
#endif
}

std::vector<Check> checkCache(const Shell& shell) {
  std::vector<Check> checks;
  const Result<std::string> path = shell.cacheDir();
  if (!path)
    return {{"cache folder", Level::kProblem, path.error().message(), "give --cache DIR or set KTUNE_CACHE",
             ExitCode::kCache}};
  const std::string existing = existingPart(*path);
  Check folder{"cache folder", Level::kOk, *path + (existing == *path ? "" : " (not there yet)"), "", ExitCode::kCache};
  struct stat info = {};
  if (::stat(existing.c_str(), &info) == 0 && !S_ISDIR(info.st_mode)) {
    folder.level = Level::kProblem;
    folder.detail = existing + " is not a folder";
    folder.advice = "give another --cache DIR";
  } else if (::access(existing.c_str(), W_OK | X_OK) != 0) {
    folder.level = Level::kProblem;
    folder.detail = existing + " cannot be written by this user";
    folder.advice = "change its owner or permissions, or give another --cache DIR";
  }
  const bool usable = folder.level == Level::kOk;
  checks.push_back(std::move(folder));

  Check disk{"cache disk", Level::kOk, "", ""};
  const uint64_t free = freeDiskBytes(existing);
  disk.detail = fileSystemType(*path) + ", " + bytesOrUnknown(free) + " free";
  if (isNetworkFilesystem(*path)) {
    disk.level = Level::kWarning;
    disk.detail += ", a network file system";
    disk.advice = "its locks may not hold between machines: keep the cache on a local disk, one for each machine";
  } else if (free != 0 && free < kLowCacheBytes) {
    disk.level = Level::kWarning;
    disk.advice = "free space, or give another --cache DIR";
  }
  checks.push_back(std::move(disk));
  if (!usable && existing != *path) return checks;  // Nothing can be there, and one problem is enough.

  Result<std::unique_ptr<cache::Store>> store = shell.openCache(/*readOnly=*/true);
  Check records{"cache records", Level::kOk, "", "", ExitCode::kCache};
  if (store) {
    const cache::StoreStats stats = (*store)->stats();
    records.detail = std::to_string(stats.records) + " records, " + bytesText(static_cast<double>(stats.bytes)) + ", " +
                     std::to_string(stats.quarantined) + " quarantined";
    if (stats.quarantined > 0) {
      records.level = Level::kWarning;
      records.advice = "damaged records were set aside and are tuned again when asked for; check the disk";
    }
  } else if (store.error().code() == StatusCode::kNotFound) {
    records.detail = "none yet";
  } else {
    records.level = Level::kProblem;
    records.detail = store.error().message();
    records.advice = "see docs/errors.md, exit code 5";
  }
  checks.push_back(std::move(records));
  return checks;
}

Check checkTemp(const Shell& shell) {
  Check check{"temporary folder", Level::kOk, shell.settings.tempDir, "", ExitCode::kDevice};
  const Result<std::string> folder = makeTempDirectory(shell.settings.tempDir, "ktune-doctor");
  const uint64_t free = freeDiskBytes(shell.settings.tempDir);
  if (!folder) {
    check.level = Level::kProblem;
    check.detail = folder.error().message();
    check.advice = "set TMPDIR to a folder that can be written";
  } else {
    (void)removeTree(*folder).isOk();
    check.detail += ", " + bytesOrUnknown(free) + " free";
    if (free != 0 && free < kLowTempBytes) {
      check.level = Level::kWarning;
      check.advice = "free space, or set TMPDIR to another folder";
    }
  }
  return check;
}

/// Compiles, runs and checks a small kernel in workers, as tuning does. Returns what was done.
Result<std::string> tryWorkers(const Shell& shell, const runtime::DeviceInfo& device) {
  const double startedAt = monotonicSeconds();
  const Deadline deadline = Deadline::after(kWorkerSeconds);
  KTUNE_ASSIGN(const runtime::WorkerOptions options, workerOptions(shell, device));
  KTUNE_ASSIGN(const std::unique_ptr<search::Compiler> compiler, runtime::makeCompilePool(options, device.target));
  KTUNE_ASSIGN(const std::unique_ptr<search::Measurer> measurer, runtime::makeMeasureClient(options, device.target));

  KTUNE_ASSIGN(const op::Graph graph, op::makeAdd({"M", 1, 1, {1}}, 1024, op::DType::kF32));
  KTUNE_ASSIGN(const schedule::Problem problem, schedule::Problem::create(graph, op::bucketsOf(graph).front()));
  const search::CompileRequest request{0, schedule::defaultGenome(problem, device.target)};
  KTUNE_ASSIGN(const std::vector<search::CompileOutcome> compiled, compiler->compile(problem, {&request, 1}, deadline));
  if (compiled.empty()) return deadlineExceeded("the compile worker did not answer in time");
  if (compiled[0].rejection) return internalError(compiled[0].rejection->reason + ": " + compiled[0].rejection->detail);
  KTUNE_TRY(measurer->open(problem, {}, deadline).status());
  KTUNE_ASSIGN(const std::optional<search::Rejection> refused, measurer->load(1, compiled[0].plan, deadline));
  if (refused) return internalError(refused->reason + ": " + refused->detail);
  KTUNE_ASSIGN(const search::CheckOutcome outcome, measurer->check(1, search::CheckLevel::kScreen, deadline));
  if (outcome.rejection) return internalError(outcome.rejection->reason + ": " + outcome.rejection->detail);
  return format("compiled, ran and checked a kernel in %.1f s; %d compile workers", monotonicSeconds() - startedAt,
                compiler->parallelism());
}

ExitCode run(const Shell& shell) {
  std::vector<Check> checks;
  const auto append = [&checks](std::vector<Check> more) {
    checks.insert(checks.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  checks.push_back({"ktune", Level::kOk, std::string(kVersion) + ", generator " + kGeneratorVersion, ""});
  append(checkMachine());
  const std::vector<runtime::DeviceInfo> devices = runtime::listDevices();
  append(checkDevices(devices));
  append(checkCuda());
  append(checkCache(shell));
  checks.push_back(checkTemp(shell));
  for (const runtime::DeviceInfo& device : devices) {
    if (!canCompileFor(device.target.kind).isOk()) continue;
    const Result<std::string> worked = tryWorkers(shell, device);
    if (worked)
      checks.push_back({"workers " + device.name, Level::kOk, *worked, ""});
    else
      checks.push_back({"workers " + device.name, Level::kProblem, worked.error().message(),
                        "run again with --log debug, and report it", ExitCode::kDevice});
  }

  ExitCode code = ExitCode::kOk;
  int problems = 0, warnings = 0;
  for (const Check& check : checks) {
    if (check.level == Level::kProblem && problems++ == 0) code = check.code;
    if (check.level == Level::kWarning) ++warnings;
  }
  if (shell.common.json) {
    Json list = Json::array();
    for (const Check& check : checks)
      list.push_back({{"name", check.name},
                      {"level", std::string(levelName(check.level))},
                      {"detail", check.detail},
                      {"advice", check.advice}});
    printJson({{"checks", std::move(list)}, {"problems", problems}, {"warnings", warnings}});
  } else {
    std::string text;
    for (const Check& check : checks) {
      text += format("%-8s %s: %s\n", std::string(levelName(check.level)).c_str(), check.name.c_str(),
                     check.detail.c_str());
      if (!check.advice.empty()) text += "         -> " + check.advice + "\n";
    }
    text += format("%d problems, %d warnings\n", problems, warnings);
    printText(text);
  }
  return code;
}

}  // namespace

Command declareDoctor(CLI::App& root, Shell& shell) {
  CLI::App* app = root.add_subcommand("doctor", "Say what ktune finds here, what is wrong and what to do");
  addCommonOptions(*app, shell, kJsonOption | kCacheOption | kJobsOption);
  app->footer("Example:\n  ktune doctor\n\nExit code 0: no problem. It writes nothing into the cache.");
  return {app, [&shell] { return run(shell); }};
}

}  // namespace ktune::tools
