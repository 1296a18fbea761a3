#include "runtime/worker/Child.h"

namespace ktune::runtime {

namespace {

// A program of a hundred megabytes on a busy machine with cold disks.
constexpr double kStartSeconds = 60;
// How long a process that has closed its channel may take to be a zombie (a large core image being torn down).
constexpr double kDyingSeconds = 5;

}  // namespace

Result<std::unique_ptr<Child>> Child::start(const WorkerOptions& options, const std::string& kind,
                                            const ProcessLimits& limits, WorkerFolders& folders) {
  std::string why;
  for (int attempt = 0; attempt < 2; ++attempt) {
    Result<std::string> folder = folders.makeFolder();
    if (!folder) return unavailable("no folder for a " + kind + " worker: " + folder.error().message());
    Subprocess::Options spawn;
    spawn.argv = {options.program, "worker", kind, "--device", options.device};
    if (options.shareDevice && kind == "measure") spawn.argv.emplace_back("--share-device");
    spawn.extraEnvironment = {"TMPDIR=" + *folder};
    spawn.limits = limits;
    Result<Subprocess> process = Subprocess::spawn(spawn);
    if (!process) {
      folders.removeFolder(*folder);
      return unavailable("cannot start a " + kind + " worker: " + process.error().message());
    }
    std::unique_ptr<Child> child(new Child(std::move(*process), std::move(*folder), folders));
    const Result<Frame> ready = receiveFrame(child->channel(), Deadline::after(kStartSeconds));
    if (ready && ready->kind == FrameKind::kReady) return child;
    const bool gone = !ready && ready.error().code() == StatusCode::kUnavailable;
    const ExitInfo exit = child->end(gone);
    why = gone ? deathText(exit, child->standardError()) : "it did not report in time";
  }
  return unavailable("the " + kind + " worker `" + options.program + " worker " + kind + " --device " + options.device +
                     "` does not start: " + why);
}

Child::~Child() {
  process_.kill();
  folders_.removeFolder(folder_);
}

ExitInfo Child::end(bool gone) {
  if (gone) {
    if (Result<ExitInfo> exit = process_.wait(Deadline::after(kDyingSeconds))) {
      process_.kill();  // What is left of its group.
      return *exit;
    }
  }
  return process_.kill();
}

}  // namespace ktune::runtime
