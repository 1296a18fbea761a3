// ktune devices: what there is to tune for.
#include <CLI/CLI.hpp>

#include "tools/Backends.h"
#include "tools/Commands.h"

namespace ktune::tools {

namespace {

std::string_view kindName(schedule::DeviceKind kind) {
  switch (kind) {
    case schedule::DeviceKind::kCpu:
      return "cpu";
    case schedule::DeviceKind::kCuda:
      return "cuda";
    case schedule::DeviceKind::kFake:
      return "fake";
  }
  return "?";
}

std::string orUnknown(uint64_t bytes) {
  return bytes == 0 ? "-" : bytesText(static_cast<double>(bytes));
}

ExitCode run(const Shell& shell) {
  const std::vector<runtime::DeviceInfo> devices = runtime::listDevices();
  if (devices.empty()) return shell.fail(ExitCode::kDevice, notFound("this build of ktune knows no device here"));
  if (shell.common.json) {
    Json list = Json::array();
    for (const runtime::DeviceInfo& device : devices) {
      const schedule::Target& target = device.target;
      list.push_back({{"name", device.name},
                      {"kind", std::string(kindName(target.kind))},
                      {"description", device.description},
                      {"hardware", target.hardware},
                      {"architecture", target.architecture},
                      {"driver", device.driver},
                      {"cores", target.cores},
                      {"vector_bytes", target.vectorBytes},
                      {"vector_registers", target.vectorRegisters},
                      {"l1_bytes", target.l1Bytes},
                      {"l2_bytes", target.l2Bytes},
                      {"l3_bytes", target.l3Bytes},
                      {"memory_bytes", target.memoryBytes},
                      {"can_compile", canCompileFor(target.kind).isOk()}});
    }
    printJson({{"devices", std::move(list)}});
  } else {
    std::vector<std::vector<std::string>> rows = {
        {"name", "cores", "vector", "L1", "L2", "L3", "memory", "compiler", "description"}};
    for (const runtime::DeviceInfo& device : devices) {
      const schedule::Target& target = device.target;
      // A GPU's width is that of its SMs, which the description counts.
      const bool cuda = target.kind == schedule::DeviceKind::kCuda;
      rows.push_back({device.name, std::to_string(target.cores),
                      cuda ? "-" : std::to_string(target.vectorBytes * 8) + " bits", orUnknown(target.l1Bytes),
                      orUnknown(target.l2Bytes), orUnknown(target.l3Bytes), orUnknown(target.memoryBytes),
                      compilerVersion(target.kind), device.description});
    }
    printText(tableText(rows, {1, 2, 3, 4, 5, 6}));
  }
  return ExitCode::kOk;
}

}  // namespace

Command declareDevices(CLI::App& root, Shell& shell) {
  CLI::App* app = root.add_subcommand("devices", "List the devices to tune for");
  addCommonOptions(*app, shell, kJsonOption);
  app->footer("Example:\n  ktune devices --json");
  return {app, [&shell] { return run(shell); }};
}

}  // namespace ktune::tools
