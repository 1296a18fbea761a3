#include "runtime/launch/devices/cuda/CudaDevice.h"

#include <dirent.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>

#include "runtime/launch/Devices.h"
#include "runtime/launch/devices/cuda/CudaContext.h"
#include "runtime/launch/devices/cuda/CudaDot.h"
#include "runtime/launch/devices/cuda/CudaInspector.h"
#include "runtime/launch/devices/cuda/CudaPlan.h"
#include "runtime/launch/devices/cuda/CudaTiming.h"
#include "runtime/launch/devices/cuda/Driver.h"
#include "runtime/launch/devices/cuda/Lease.h"
#include "runtime/launch/devices/cuda/Nvml.h"

namespace ktune::runtime {

namespace cuda {

namespace {

constexpr std::string_view kMigMark = " MIG ";

std::string uuidText(const CUuuid& uuid, bool mig) {
  std::string text = mig ? "MIG-" : "GPU-";
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

// Of the hardware text's separator and of lines nothing may be in a name.
std::string clean(std::string name) {
  for (char& c : name) {
    if (c == ';' || c == '\n' || static_cast<unsigned char>(c) < ' ') c = '_';
  }
  return name;
}

Result<CudaFacts> readFacts(const Driver& driver, CUdevice device, int ordinal) {
  CudaFacts facts;
  facts.name = "cuda:" + std::to_string(ordinal);
  const auto check = [&](CUresult result, const char* what) { return statusOf(driver, result, what); };
  char name[256] = {};
  KTUNE_TRY(check(driver.deviceGetName(name, sizeof name - 1, device), "cuDeviceGetName"));
  facts.product = clean(name);
  facts.mig = "none";
  if (const size_t mark = facts.product.find(kMigMark); mark != std::string::npos) {
    facts.mig = facts.product.substr(mark + kMigMark.size());
    facts.product.resize(mark);
  }
  CUuuid uuid{};
  KTUNE_TRY(check(driver.deviceGetUuid(&uuid, device), "cuDeviceGetUuid"));
  facts.uuid = uuidText(uuid, facts.mig != "none");
  char bus[64] = {};
  if (driver.deviceGetPCIBusId(bus, sizeof bus - 1, device) == CUDA_SUCCESS) facts.pciBusId = bus;
  size_t memory = 0;
  KTUNE_TRY(check(driver.deviceTotalMem(&memory, device), "cuDeviceTotalMem"));
  facts.memoryBytes = memory;
  int l2 = 0, shared = 0;
  const std::pair<CUdevice_attribute, int*> attributes[] = {
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &facts.major},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &facts.minor},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &facts.multiprocessors},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, &l2},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &shared},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, &facts.computeMode},
  };
  for (const auto& [attribute, value] : attributes)
    KTUNE_TRY(check(driver.deviceGetAttribute(value, attribute, device), "cuDeviceGetAttribute"));
  facts.l2Bytes = static_cast<uint64_t>(std::max(0, l2));
  facts.sharedBytes = static_cast<uint64_t>(std::max(0, shared));
  return facts;
}

std::string driverText(const Driver& driver) {
  int version = 0;
  const std::string cuda = driver.driverGetVersion(&version) == CUDA_SUCCESS ? cudaVersionText(version) : "unknown";
  const std::string release = driverRelease();
  return "CUDA driver " + (release.empty() ? cuda : release + " (" + cuda + ")");
}

std::string describe(const CudaFacts& facts) {
  return facts.product + (facts.mig == "none" ? "" : " MIG " + facts.mig) + ", " +
         std::to_string(facts.multiprocessors) + " SMs, compute capability " + std::to_string(facts.major) + "." +
         std::to_string(facts.minor) + ", " + std::to_string((facts.memoryBytes + (uint64_t{1} << 29)) >> 30) + " GiB";
}

LeaseProbes probesOf(const Driver& driver, CUdevice device, const CudaFacts& facts) {
  LeaseProbes probes;
  probes.directory = lockDirectory();
  probes.processes = [view = NvmlDeviceView::find(facts.uuid, facts.pciBusId)] { return view.processes(); };
  probes.computeMode = [&driver, device] {
    int mode = 0;
    if (driver.deviceGetAttribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device) != CUDA_SUCCESS) mode = 0;
    return static_cast<ComputeMode>(mode);
  };
  probes.activeMps = [] { return findActiveMps(); };
  probes.isOurs = isOurProcess;
  return probes;
}

// An NVIDIA display or 3D controller on the PCI bus.
bool hasHardware() {
  DIR* const directory = ::opendir("/sys/bus/pci/devices");
  if (directory == nullptr) return false;
  bool found = false;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string base = std::string("/sys/bus/pci/devices/") + entry->d_name;
    std::string vendor, kind;
    std::ifstream(base + "/vendor") >> vendor;
    std::ifstream(base + "/class") >> kind;
    found = found || (vendor == "0x10de" && kind.starts_with("0x03"));
  }
  ::closedir(directory);
  return found;
}

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<CudaContext> context, CudaFacts facts, const DeviceOptions& options)
      : context_(std::move(context)),
        facts_(std::move(facts)),
        target_(cudaTarget(facts_)),
        driver_(driverText(context_->driver())),
        nvml_(NvmlDeviceView::find(facts_.uuid, facts_.pciBusId)),
        compileKernel_(options.compileKernel) {}

  [[nodiscard]] const schedule::Target& target() const override { return target_; }
  [[nodiscard]] const std::string& name() const override { return facts_.name; }
  [[nodiscard]] std::string description() const override { return describe(facts_); }
  [[nodiscard]] std::string driver() const override { return driver_; }

  [[nodiscard]] Result<std::unique_ptr<LoadedPlan>> load(const cache::Plan& plan) override {
    KTUNE_ASSIGN(std::unique_ptr<CudaPlan> loaded, CudaPlan::load(context_, plan));
    return std::unique_ptr<LoadedPlan>(std::move(loaded));
  }
  void parallelFor(int64_t count, const std::function<void(int64_t, int64_t)>& body) override {
    context_->parallelFor(count, body);
  }

  [[nodiscard]] bool sharesHostMemory() const override { return false; }
  [[nodiscard]] Result<std::unique_ptr<DeviceMemory>> allocate(size_t bytes) override {
    KTUNE_ASSIGN(std::unique_ptr<CudaMemory> memory, CudaMemory::make(context_, bytes));
    return std::unique_ptr<DeviceMemory>(std::move(memory));
  }
  [[nodiscard]] Status copyToDevice(void* to, const void* from, size_t bytes) override {
    return context_->toDevice(addressOf(to), from, bytes);
  }
  [[nodiscard]] Status copyFromDevice(void* to, const void* from, size_t bytes) override {
    return context_->fromDevice(to, addressOf(from), bytes);
  }
  [[nodiscard]] Status copyOnDevice(void* to, const void* from, size_t bytes) override {
    Current current(*context_);
    KTUNE_TRY(current.status());
    if (bytes != 0)
      KTUNE_TRY(
          context_->check(context_->driver().memcpyDtoDAsync(addressOf(to), addressOf(from), bytes, context_->stream()),
                          "copying on the device", bytes));
    return context_->synchronize();
  }
  [[nodiscard]] Status synchronize() override {
    Current current(*context_);
    KTUNE_TRY(current.status());
    return context_->synchronize();
  }

  [[nodiscard]] Result<std::unique_ptr<TimedCalls>> prepareTimedCalls(LoadedPlan& plan,
                                                                      std::vector<std::vector<void*>> sets,
                                                                      std::vector<int64_t> symbolValues,
                                                                      void* workspace) override {
    // Plans of a cuda device are CudaPlans.
    return makeTimedCalls(static_cast<CudaPlan&>(plan), sets, symbolValues, workspace);
  }
  [[nodiscard]] Result<double> copyBytesPerSecond(void* to, const void* from, size_t bytes) override {
    return timeCopies(context_, to, from, bytes);
  }
  [[nodiscard]] Result<double> emptyLaunchNanoseconds() override {
    if (emptyLaunchNs_ == 0) {
      // The driver may lack its compiler of PTX; ours then does.
      Result<double> measured = timeEmptyLaunch(context_, kEmptyPtx);
      if (!measured && !context_->failed() && compileKernel_) {
        KTUNE_ASSIGN(const std::string cubin, compileKernel_(kEmptySource, target_.architecture));
        measured = timeEmptyLaunch(context_, cubin);
      }
      if (!measured) return measured;
      emptyLaunchNs_ = *measured;
    }
    return emptyLaunchNs_;
  }
  [[nodiscard]] std::string timingMethod() const override { return "CUDA graph of rotating buffers, events, steady"; }
  [[nodiscard]] DeviceConditions conditions() override { return nvml_.conditions(); }
  [[nodiscard]] std::string throttle() override { return nvml_.throttle(); }

  [[nodiscard]] Inspector* inspector() override {
    if (!inspectorTried_ && compileKernel_) {
      inspectorTried_ = true;
      // Without it memory comes back to the host to be looked at.
      if (const Result<std::string> cubin = compileKernel_(kInspectorSource, target_.architecture)) {
        if (Result<std::unique_ptr<Inspector>> made = makeCudaInspector(context_, *this, *cubin))
          inspector_ = std::move(*made);
      }
    }
    return inspector_.get();
  }

  [[nodiscard]] op::DotEngine* dotEngine() override {
    if (!dotEngineTried_ && compileKernel_) {
      dotEngineTried_ = true;
      // Without it the host computes the references, only slower.
      if (const Result<std::string> cubin = compileKernel_(kDotSource, target_.architecture)) {
        if (Result<std::unique_ptr<op::DotEngine>> engine = makeCudaDotEngine(context_, *cubin))
          dotEngine_ = std::move(*engine);
      }
    }
    return dotEngine_.get();
  }

  [[nodiscard]] std::string foreignActivity() override { return context_->lease().foreignActivity(); }

 private:
  static CUdeviceptr addressOf(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

  std::shared_ptr<CudaContext> context_;
  const CudaFacts facts_;
  const schedule::Target target_;
  const std::string driver_;
  const NvmlDeviceView nvml_;
  const std::function<Result<std::string>(const std::string&, const std::string&)> compileKernel_;
  std::unique_ptr<Inspector> inspector_;
  bool inspectorTried_ = false;
  std::unique_ptr<op::DotEngine> dotEngine_;
  bool dotEngineTried_ = false;
  double emptyLaunchNs_ = 0;
};

}  // namespace

std::vector<CudaFacts> listCudaFacts() {
  std::vector<CudaFacts> all;
  const Result<const Driver*> loaded = loadDriver();
  if (!loaded) return all;
  const Driver& driver = **loaded;
  int count = 0;
  if (driver.deviceGetCount(&count) != CUDA_SUCCESS) return all;
  for (int i = 0; i < count; ++i) {
    CUdevice device = 0;
    if (driver.deviceGet(&device, i) != CUDA_SUCCESS) continue;
    if (Result<CudaFacts> facts = readFacts(driver, device, i)) all.push_back(std::move(*facts));
  }
  return all;
}

std::string cudaArchitecture(int major, int minor) {
  const int number = major * 10 + minor;
  // Those with instructions that only code for exactly this architecture may use (wgmma, tcgen05).
  const bool exact = number == 90 || number == 100 || number == 103;
  return "sm_" + std::to_string(number) + (exact ? "a" : "");
}

schedule::Target cudaTarget(const CudaFacts& facts) {
  schedule::Target target;
  target.kind = schedule::DeviceKind::kCuda;
  // No UUID and no amount of memory: the same product must find the same records.
  target.hardware = "cuda;" + facts.product + ";sm=" + std::to_string(facts.major) + "." + std::to_string(facts.minor) +
                    ";sms=" + std::to_string(facts.multiprocessors) + ";mig=" + facts.mig +
                    ";l2=" + std::to_string(facts.l2Bytes);
  target.architecture = cudaArchitecture(facts.major, facts.minor);
  target.cores = std::max(1, facts.multiprocessors);
  target.vectorBytes = 16;
  target.vectorRegisters = 255;
  target.l1Bytes = facts.sharedBytes;
  target.l2Bytes = facts.l2Bytes;
  target.l3Bytes = 0;
  target.memoryBytes = facts.memoryBytes;
  return target;
}

int cudaDriverVersion() {
  int version = 0;
  const Result<const Driver*> loaded = loadDriver();
  return loaded && (*loaded)->driverGetVersion(&version) == CUDA_SUCCESS ? version : 0;
}

CudaReport reportCuda(bool share) {
  CudaReport report;
  report.hardware = hasHardware();
  report.nvml = haveNvml();
  report.nvmlText = nvmlText();
  const Result<const Driver*> loaded = loadDriver();
  report.driver = loaded.status();
  if (!loaded) return report;
  const Driver& driver = **loaded;
  report.driverText = driverText(driver);
  for (const CudaFacts& facts : listCudaFacts()) {
    CUdevice device = 0;
    const int ordinal = std::atoi(facts.name.c_str() + std::string_view("cuda:").size());
    CudaReport::Gpu gpu{facts, statusOf(driver, driver.deviceGet(&device, ordinal), "cuDeviceGet")};
    if (gpu.lease.isOk()) {
      LeaseProbes probes = probesOf(driver, device, facts);
      probes.patienceSeconds = 0;
      gpu.lease = Lease::take(facts.uuid, std::move(probes), share).status();
    }
    report.gpus.push_back(std::move(gpu));
  }
  return report;
}

}  // namespace cuda

std::vector<DeviceInfo> listCudaDevices() {
  std::vector<DeviceInfo> devices;
  const std::vector<cuda::CudaFacts> all = cuda::listCudaFacts();
  if (all.empty()) return devices;
  const Result<const cuda::Driver*> driver = cuda::loadDriver();
  if (!driver) return devices;
  const std::string driverText = cuda::driverText(**driver);
  for (const cuda::CudaFacts& facts : all)
    devices.push_back({facts.name, cuda::describe(facts), cuda::cudaTarget(facts), driverText});
  return devices;
}

Result<std::unique_ptr<Device>> openCudaDevice(const std::string& name, const DeviceOptions& options) {
  int ordinal = 0;
  constexpr std::string_view kPrefix = "cuda:";
  if (name != "cuda") {
    const char* const end = name.data() + name.size();
    if (!name.starts_with(kPrefix)) return notFound("there is no device '" + name + "'");
    const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, ordinal);
    if (error != std::errc() || stop != end || ordinal < 0) return notFound("there is no device '" + name + "'");
  }
  KTUNE_ASSIGN(const cuda::Driver* const loaded, cuda::loadDriver());
  const cuda::Driver& driver = *loaded;
  int count = 0;
  KTUNE_TRY(cuda::statusOf(driver, driver.deviceGetCount(&count), "cuDeviceGetCount"));
  if (ordinal >= count)
    return notFound("there is no device '" + name + "'; the CUDA driver shows " + std::to_string(count) + " devices");
  CUdevice device = 0;
  KTUNE_TRY(cuda::statusOf(driver, driver.deviceGet(&device, ordinal), "cuDeviceGet"));
  KTUNE_ASSIGN(cuda::CudaFacts facts, cuda::readFacts(driver, device, ordinal));
  cuda::Lease lease;
  if (options.lease) {
    KTUNE_ASSIGN(lease, cuda::Lease::take(facts.uuid, cuda::probesOf(driver, device, facts), options.shareDevice));
  }
  KTUNE_ASSIGN(std::shared_ptr<cuda::CudaContext> context,
               cuda::CudaContext::create(driver, device, std::move(lease), options.memoryBytes));
  return std::unique_ptr<Device>(std::make_unique<cuda::CudaDevice>(std::move(context), std::move(facts), options));
}

}  // namespace ktune::runtime
