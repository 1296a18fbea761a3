// The worker program of the tests: `worker compile|measure --device NAME`, as the ktune program has it, with the fake
// compiler and the fake device in every build. Devices beyond the program's: `remote`, with memory of its own, and
// `hot:N`, the same and too hot until it has taken N samples.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iostream>

#include "base/Settings.h"
#include "runtime/RemoteDevice.h"
#include "runtime/launch/devices/fake/FakeDevice.h"
#include "runtime/worker/FakeBackend.h"
#include "runtime/worker/Workers.h"

using namespace ktune;
using namespace ktune::runtime;

int main(int argc, char** argv) {
  if (argc != 5 || std::strcmp(argv[1], "worker") != 0 || std::strcmp(argv[3], "--device") != 0) return 2;
  const Result<Settings> settings = readSettings();
  if (!settings) return 2;
  Result<FakeFaults> faults = FakeFaults::parse(settings->fault);
  if (!faults) {
    std::cerr << faults.error().toString() << "\n";
    return 2;
  }
  if (faults->has("start")) {
    std::cerr << "refusing to start\n";
    return 3;
  }
  FrameChannel channel{UniqueFd(Subprocess::kChannelFd)};
  const std::string kind = argv[2];
  const std::string device = argv[4];
  if (kind == "compile") {
    // Something to be tidied up, in the private folder.
    const std::string left = settings->tempDir + "/left-behind";
    if (FILE* file = std::fopen(left.c_str(), "w")) std::fclose(file);
    FakeBackend backend(*faults);
    return runCompileWorker(std::move(channel), backend);
  }
  std::unique_ptr<Device> opened;
  if (device == "fake") {
    opened = makeFakeDevice(*faults);
  } else if (device == "remote" || device.starts_with("hot:")) {
    auto remote = std::make_unique<testing::RemoteDevice>(*faults);
    if (device != "remote") remote->hotTimings = std::atoi(device.c_str() + 4);
    opened = std::move(remote);
  } else {
    Result<std::unique_ptr<Device>> other = openDevice(device);
    if (!other) return 2;
    opened = std::move(*other);
  }
  return runMeasureWorker(std::move(channel), *opened);
}
