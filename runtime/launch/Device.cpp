#include "runtime/launch/Device.h"

#include <algorithm>

#include "runtime/launch/Devices.h"

namespace ktune::runtime {

namespace {

// The kinds of device of this build, best first: one line of cmake/KtuneFolders.cmake each.
constexpr DeviceDriver kDrivers[] = {
    cpuDriver(),
#if KTUNE_FAKE_DEVICE
    fakeDriver(),
#endif
};

}  // namespace

Status checkPreconditions(const cache::Plan& plan, std::span<void* const> tensors,
                          std::span<const int64_t> symbolValues) {
  for (const cache::Precondition& condition : plan.preconditions) {
    const auto index = static_cast<size_t>(condition.index);
    switch (condition.kind) {
      case cache::Precondition::Kind::kAlignment:
        if (index >= tensors.size() || condition.low <= 0 ||
            reinterpret_cast<uintptr_t>(tensors[index]) % static_cast<uintptr_t>(condition.low) != 0)
          return invalidArgument("the plan needs " + condition.describe());
        break;
      case cache::Precondition::Kind::kSymbolRange:
        if (index >= symbolValues.size() || symbolValues[index] < condition.low || symbolValues[index] > condition.high)
          return invalidArgument("the plan needs " + condition.describe());
        break;
    }
  }
  return Status::ok();
}

std::vector<DeviceInfo> listDevices() {
  std::vector<DeviceInfo> devices;
  for (const DeviceDriver& driver : kDrivers) {
    for (DeviceInfo& info : driver.list()) devices.push_back(std::move(info));
  }
  return devices;
}

Result<std::unique_ptr<Device>> openDevice(const std::string& name, const DeviceOptions& options) {
  const std::string kind = name.substr(0, name.find(':'));
  for (const DeviceDriver& driver : kDrivers) {
    if (kind == driver.kind) return driver.open(name, options);
  }
  std::string known;
  for (const DeviceInfo& info : listDevices()) known += (known.empty() ? "" : ", ") + info.name;
  if (kind == "cuda" || kind == "fake")
    return unsupported("this build of ktune has no " + kind + " device; it has: " + known);
  return notFound("there is no device '" + name + "'; there is: " + known);
}

std::vector<WorkspaceSlot> layOutWorkspace(const std::vector<cache::Workspace>& workspaces,
                                           const std::vector<int64_t>& symbolValues) {
  std::vector<WorkspaceSlot> slots;
  slots.reserve(workspaces.size());
  size_t end = 0;
  for (const cache::Workspace& workspace : workspaces) {
    const auto alignment = static_cast<size_t>(std::max<int64_t>(1, workspace.alignmentBytes));
    const size_t offset = (end + alignment - 1) / alignment * alignment;
    const auto bytes = static_cast<size_t>(std::max<int64_t>(0, workspace.bytes.evaluate(symbolValues)));
    slots.push_back({offset, bytes, workspace.kind});
    end = offset + bytes;
  }
  return slots;
}

size_t workspaceEnd(std::span<const WorkspaceSlot> slots) {
  size_t end = 0;
  for (const WorkspaceSlot& slot : slots) end = std::max(end, slot.offset + slot.bytes);
  return end;
}

}  // namespace ktune::runtime
