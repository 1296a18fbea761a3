#include "runtime/launch/devices/cuda/Driver.h"

#include <dlfcn.h>

#include <mutex>
#include <optional>

namespace ktune::runtime::cuda {

namespace {

constexpr const char* kLibrary = "libcuda.so.1";
constexpr const char* kNeeds = "ktune needs an NVIDIA driver of CUDA 12.0 (version 525) or later";

std::mutex overrideMutex;
std::optional<Result<const Driver*>> overridden;

Result<Driver> openDriver() {
  // Never closed: the driver has threads and exit handlers of its own.
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return notFound(std::string("there is no CUDA driver (") + (why != nullptr ? why : kLibrary) +
                    "); install NVIDIA's driver, or start the container with its GPUs (--gpus all)");
  }
  KTUNE_ASSIGN(const Driver driver, resolveDriver([library](const char* name) { return ::dlsym(library, name); }));
  const CUresult result = driver.init(0);
  if (result == CUDA_ERROR_NO_DEVICE)
    return notFound("the CUDA driver sees no device; check nvidia-smi and CUDA_VISIBLE_DEVICES");
  if (result != CUDA_SUCCESS) return unavailable(statusOf(driver, result, "starting the CUDA driver").message());
  return driver;
}

// What went wrong on the device, in words; nullptr for errors of other kinds.
const char* fatalText(CUresult result) {
  // By number where CUDA 12.0's header has no name.
  switch (static_cast<int>(result)) {
    case CUDA_ERROR_DEINITIALIZED:
      return "the driver is shutting down";
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
      return "the device is lost, or taken by another process";
    case CUDA_ERROR_ECC_UNCORRECTABLE:
      return "the device's memory has an error that could not be corrected";
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
      return "an NVLink error could not be corrected";
    case 226:  // CUDA_ERROR_CONTAINED
      return "a memory error was contained";
    case CUDA_ERROR_ILLEGAL_ADDRESS:
      return "a kernel read or wrote an illegal address";
    case CUDA_ERROR_LAUNCH_TIMEOUT:
      return "a kernel ran longer than the device allows";
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
      return "the context is destroyed";
    case CUDA_ERROR_ASSERT:
      return "a kernel's assertion failed";
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
      return "a kernel overran its stack";
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
      return "a kernel ran an illegal instruction";
    case CUDA_ERROR_MISALIGNED_ADDRESS:
      return "a kernel used a misaligned address";
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
      return "a kernel used an address of the wrong space";
    case CUDA_ERROR_INVALID_PC:
      return "a kernel jumped to an invalid address";
    case CUDA_ERROR_LAUNCH_FAILED:
      return "a kernel crashed";
    case 721:  // CUDA_ERROR_TENSOR_MEMORY_LEAK
      return "a kernel left tensor memory allocated";
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
      return "MPS ended this process's work";
    case CUDA_ERROR_EXTERNAL_DEVICE:
      return "a device outside the GPU failed";
    case CUDA_ERROR_UNKNOWN:
      return "the driver failed for an unknown reason (the kernel's log, `dmesg | grep NVRM`, may say more)";
    default:
      return nullptr;
  }
}

// The code of an error that leaves the device working.
StatusCode codeOf(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return StatusCode::kResourceExhausted;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
    case CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE:
    case CUDA_ERROR_INVALID_CLUSTER_SIZE:
    case CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING:
      return StatusCode::kInvalidArgument;
    case CUDA_ERROR_NOT_FOUND:
    case CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND:
      return StatusCode::kNotFound;
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_INVALID_SOURCE:
      return StatusCode::kCorrupt;
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
    case CUDA_ERROR_JIT_COMPILATION_DISABLED:
    case CUDA_ERROR_UNSUPPORTED_LIMIT:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER:
      return StatusCode::kUnsupported;
    case CUDA_ERROR_NOT_PERMITTED:
      return StatusCode::kPermissionDenied;
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_DEVICE_NOT_LICENSED:
    case CUDA_ERROR_OPERATING_SYSTEM:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
    case CUDA_ERROR_MPS_RPC_FAILURE:
    case CUDA_ERROR_MPS_SERVER_NOT_READY:
    case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
    case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED:
      return StatusCode::kUnavailable;
    default:
      return StatusCode::kInternal;
  }
}

const char* adviceOn(CUresult result) {
  switch (result) {
    case CUDA_ERROR_STUB_LIBRARY:
      return "; the libcuda.so.1 found is the toolkit's, made for linking only: take its folder out of LD_LIBRARY_PATH";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return "; the kernel module and libcuda.so.1 are of different versions: restart the machine after an update";
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return "; the compatibility libcuda.so.1 does not support this device: use the driver's own";
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return "; a service that the system needs (nvidia-fabricmanager on NVSwitch machines) is not running";
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
      return "; libnvidia-ptxjitcompiler.so.1 is missing: install it with the driver";
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
      return "; the kernel was compiled for another architecture";
    default:
      return "";
  }
}

}  // namespace

Result<Driver> resolveDriver(const std::function<void*(const char* symbol)>& lookup) {
  enum Presence { kOptional, kRequired };
  Driver driver;
  const char* missing = nullptr;
#define KTUNE_CUDA(member, symbol, presence)                                  \
  driver.member = reinterpret_cast<decltype(driver.member)>(lookup(#symbol)); \
  if (driver.member == nullptr && (presence) == kRequired && missing == nullptr) missing = #symbol;
#define KTUNE_CUDA_TYPED(member, symbol, type, presence) KTUNE_CUDA(member, symbol, presence)
#include "runtime/launch/devices/cuda/DriverTable.def"
#undef KTUNE_CUDA
#undef KTUNE_CUDA_TYPED
  if (missing == nullptr) return driver;
  int version = 0;
  const bool known = driver.driverGetVersion != nullptr && driver.driverGetVersion(&version) == CUDA_SUCCESS;
  return unsupported(std::string("the CUDA driver (") + (known ? cudaVersionText(version) : "of unknown version") +
                     ") has no " + missing + "; " + kNeeds);
}

Result<const Driver*> loadDriver() {
  {
    const std::lock_guard lock(overrideMutex);
    if (overridden) return *overridden;
  }
  static const Result<Driver> driver = openDriver();
  if (!driver) return driver.error();
  return &*driver;
}

void overrideDriverForTests(const Driver* driver) {
  const std::lock_guard lock(overrideMutex);
  overridden.reset();
  if (driver != nullptr) overridden.emplace(driver);
}

void overrideDriverForTests(Status status) {
  const std::lock_guard lock(overrideMutex);
  overridden.emplace(std::move(status));
}

std::string cudaVersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

bool isFatal(CUresult result) {
  return fatalText(result) != nullptr;
}

Status statusOf(const Driver& driver, CUresult result, const std::string& what) {
  if (result == CUDA_SUCCESS) return Status::ok();
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.getErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "an unknown error";
  if (driver.getErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) text = "no description";
  const std::string error = std::string(name) + " (" + std::to_string(static_cast<int>(result)) + ", " + text + ")";
  if (const char* fatal = fatalText(result); fatal != nullptr)
    return unavailable(what + ": " + fatal + ": " + error + "; the device has to be opened again, in a new process");
  return {codeOf(result), what + ": " + error + adviceOn(result)};
}

}  // namespace ktune::runtime::cuda
