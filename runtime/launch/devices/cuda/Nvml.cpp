#include "runtime/launch/devices/cuda/Nvml.h"

#include <dlfcn.h>

#include <fstream>

namespace ktune::runtime::cuda {

namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";
constexpr int kSuccess = 0;           // NVML_SUCCESS
constexpr int kInsufficientSize = 7;  // NVML_ERROR_INSUFFICIENT_SIZE
constexpr int kSmClock = 1;           // NVML_CLOCK_SM
constexpr int kGpuSensor = 0;         // NVML_TEMPERATURE_GPU
constexpr unsigned kMostProcesses = 4096;

struct Library {
  NvmlTable table;
  bool works = false;
  std::string why;
};

Library openLibrary() {
  Library library;
  // Never closed, nor shut down: other users of it in the process would be cut off.
  void* const handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    library.why = std::string(kLibrary) + " is not here";
    return library;
  }
#define KTUNE_NVML(member, symbol, ...) \
  library.table.member = reinterpret_cast<decltype(library.table.member)>(::dlsym(handle, #symbol));
#include "runtime/launch/devices/cuda/Nvml.def"
#undef KTUNE_NVML
  const int result = library.table.init == nullptr ? -1 : library.table.init();
  library.works = result == kSuccess;
  if (!library.works) library.why = std::string(kLibrary) + " does not start (error " + std::to_string(result) + ")";
  return library;
}

const NvmlTable* overridden = nullptr;

// The table, or nullptr.
const NvmlTable* nvml(std::string* why = nullptr) {
  if (overridden != nullptr) return overridden;
  static const Library library = openLibrary();
  if (why != nullptr) *why = library.why;
  return library.works ? &library.table : nullptr;
}

}  // namespace

NvmlDeviceView NvmlDeviceView::find(const std::string& uuid, const std::string& pciBusId) {
  NvmlDeviceView view;
  const NvmlTable* const table = nvml();
  if (table == nullptr) return view;
  if (table->deviceGetHandleByUUID != nullptr && table->deviceGetHandleByUUID(uuid.c_str(), &view.device_) == kSuccess)
    return view;
  view.device_ = nullptr;
  if (table->deviceGetHandleByPciBusId == nullptr ||
      table->deviceGetHandleByPciBusId(pciBusId.c_str(), &view.device_) != kSuccess)
    view.device_ = nullptr;
  return view;
}

std::optional<std::vector<GpuProcess>> NvmlDeviceView::processes() const {
  const NvmlTable* const table = nvml();
  if (table == nullptr || device_ == nullptr || table->deviceGetComputeRunningProcesses == nullptr) return std::nullopt;
  std::vector<NvmlTable::Process> found(64);
  for (;;) {
    auto count = static_cast<unsigned>(found.size());
    const int result = table->deviceGetComputeRunningProcesses(device_, &count, found.data());
    if (result == kInsufficientSize && found.size() < kMostProcesses) {
      found.resize(found.size() * 4);
      continue;
    }
    if (result != kSuccess) return std::nullopt;
    std::vector<GpuProcess> processes;
    for (unsigned i = 0; i < count && i < found.size(); ++i) {
      // All ones: not available.
      const unsigned long long bytes = found[i].usedGpuMemory == ~0ULL ? 0 : found[i].usedGpuMemory;
      processes.push_back({static_cast<pid_t>(found[i].pid), bytes});
    }
    return processes;
  }
}

DeviceConditions NvmlDeviceView::conditions() const {
  DeviceConditions conditions;
  const NvmlTable* const table = nvml();
  if (table == nullptr || device_ == nullptr) return conditions;
  unsigned value = 0;
  if (table->deviceGetClockInfo != nullptr && table->deviceGetClockInfo(device_, kSmClock, &value) == kSuccess)
    conditions.clockMhz = value;
  if (table->deviceGetPowerUsage != nullptr && table->deviceGetPowerUsage(device_, &value) == kSuccess)
    conditions.powerWatts = value / 1000.0;
  if (table->deviceGetTemperature != nullptr && table->deviceGetTemperature(device_, kGpuSensor, &value) == kSuccess)
    conditions.temperatureC = value;
  conditions.throttle = throttle();
  return conditions;
}

std::string NvmlDeviceView::throttle() const {
  const NvmlTable* const table = nvml();
  unsigned long long reasons = 0;
  if (table == nullptr || device_ == nullptr || table->deviceGetClocksReasons == nullptr ||
      table->deviceGetClocksReasons(device_, &reasons) != kSuccess)
    return {};
  return throttleText(reasons);
}

std::string driverRelease() {
  const NvmlTable* const table = nvml();
  char version[96] = {};
  if (table != nullptr && table->systemGetDriverVersion != nullptr &&
      table->systemGetDriverVersion(version, sizeof version - 1) == kSuccess)
    return version;
  std::ifstream file("/sys/module/nvidia/version");
  std::string text;
  file >> text;
  return text;
}

std::string nvmlText() {
  std::string why;
  if (nvml(&why) == nullptr) return why;
  const std::string release = driverRelease();
  return "NVML" + (release.empty() ? "" : " of driver " + release);
}

bool haveNvml() {
  return nvml() != nullptr;
}

std::string throttleText(unsigned long long reasons) {
  struct Reason {
    unsigned long long bit;
    const char* name;
  };
  // nvml.h, nvmlClocksEventReason*. Not here: 0x1 idle, 0x2 application clocks, 0x100 display clocks.
  constexpr Reason kReasons[] = {{0x4, "power cap"}, {0x8, "hardware slowdown"}, {0x10, "sync boost"},
                                 {0x20, "thermal"},  {0x40, "hardware thermal"}, {0x80, "power brake"}};
  std::string text;
  for (const Reason& reason : kReasons) {
    if (reasons & reason.bit) text += (text.empty() ? "" : ", ") + std::string(reason.name);
  }
  return text;
}

void overrideNvmlForTests(const NvmlTable* table) {
  overridden = table;
}

}  // namespace ktune::runtime::cuda
