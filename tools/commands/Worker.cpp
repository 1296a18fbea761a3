// ktune worker: the entry of the children that compile and measure. Not for people.
#include <fcntl.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>

#include "base/Subprocess.h"
#include "runtime/worker/Workers.h"
#include "tools/Backends.h"
#include "tools/Commands.h"
#include "tools/Printing.h"

#if KTUNE_FAKE_DEVICE
#include "runtime/worker/FakeBackend.h"
#endif

namespace ktune::tools {

namespace {

struct WorkerOptionsText {
  std::string kind;
  std::string device;
  bool shareDevice = false;
};

// Descriptor 3 of a program that a person starts is closed, or something of the shell's that is no socket.
bool hasChannel() {
  struct stat info = {};
  return ::fstat(Subprocess::kChannelFd, &info) == 0 && S_ISSOCK(info.st_mode);
}

ExitCode run(const Shell& shell, const WorkerOptionsText& options) {
  if (!hasChannel())
    return shell.fail(
        ExitCode::kUsage,
        invalidArgument("`ktune worker` is started by ktune itself; use `ktune warm-cache` or `ktune tune`"));
  // Nothing that a worker starts may inherit the channel: its closing tells the parent that the worker is gone.
  ::fcntl(Subprocess::kChannelFd, F_SETFD, FD_CLOEXEC);
  FrameChannel channel{UniqueFd(Subprocess::kChannelFd)};
  // TMPDIR, and with it settings.tempDir, is a private folder of each child.
  if (options.kind == "print") return static_cast<ExitCode>(runPrintWorker(std::move(channel), shell.settings.tempDir));
#if KTUNE_FAKE_DEVICE
  if (options.device == "fake") {  // Tests want workers that do not start.
    const Result<runtime::FakeFaults> faults = runtime::FakeFaults::parse(shell.settings.fault);
    if (faults && faults->has("start")) return ExitCode::kInternal;
  }
#endif
  if (options.kind == "compile") {
    Result<std::unique_ptr<runtime::CompileBackend>> backend = makeBackend(options.device, shell.settings);
    if (!backend) return shell.fail(ExitCode::kDevice, backend.error());
    return static_cast<ExitCode>(runtime::runCompileWorker(std::move(channel), **backend));
  }
  runtime::DeviceOptions opening;
  opening.lease = true;
  opening.shareDevice = options.shareDevice;
  opening.compileKernel = deviceKernelCompiler();
  Result<std::unique_ptr<runtime::Device>> device = runtime::openDevice(options.device, opening);
  if (!device) return shell.fail(ExitCode::kDevice, device.error());
  return static_cast<ExitCode>(runtime::runMeasureWorker(std::move(channel), **device));
}

}  // namespace

Command declareWorker(CLI::App& root, Shell& shell) {
  CLI::App* app = root.add_subcommand("worker", "Internal: compiles or measures for a parent ktune");
  app->group("");  // Hidden.
  auto o = std::make_shared<WorkerOptionsText>();
  app->add_option("kind", o->kind, "compile, measure or print")
      ->required()
      ->check(CLI::IsMember({"compile", "measure", "print"}));
  app->add_option("--device", o->device, "Device name");
  app->add_flag("--share-device", o->shareDevice, "measure: although others use the device");
  return {app, [&shell, o] { return run(shell, *o); }};
}

}  // namespace ktune::tools
