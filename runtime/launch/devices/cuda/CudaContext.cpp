#include "runtime/launch/devices/cuda/CudaContext.h"

#include <algorithm>
#include <cstring>

#include "base/System.h"

namespace ktune::runtime::cuda {

namespace {

constexpr size_t kStagingBytes = size_t{32} << 20;
constexpr size_t kSmallCopyBytes = size_t{1} << 20;  // Up to here the driver's own staging is as good.
constexpr int64_t kCopyPieceBytes = int64_t{1} << 20;

int attribute(const Driver& driver, CUdevice device, CUdevice_attribute which, int otherwise) {
  int value = 0;
  return driver.deviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : otherwise;
}

Limits readLimits(const Driver& driver, CUdevice device) {
  Limits limits;
  const auto get = [&](CUdevice_attribute which, int64_t otherwise) {
    return int64_t{attribute(driver, device, which, static_cast<int>(otherwise))};
  };
  limits.major = attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
  limits.minor = attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0);
  limits.maxThreads = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, limits.maxThreads);
  limits.maxBlock = {get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, limits.maxBlock[0]),
                     get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, limits.maxBlock[1]),
                     get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, limits.maxBlock[2])};
  limits.maxGrid = {get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, limits.maxGrid[0]),
                    get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, limits.maxGrid[1]),
                    get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, limits.maxGrid[2])};
  limits.sharedOptinBytes = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, limits.sharedOptinBytes);
  return limits;
}

}  // namespace

Result<std::shared_ptr<CudaContext>> CudaContext::create(const Driver& driver, CUdevice device, Lease lease,
                                                         uint64_t memoryCap) {
  std::shared_ptr<CudaContext> made(new CudaContext(driver, device, std::move(lease), memoryCap));
  // Waiting threads sleep: a measurement is timed by the device, and a reference may want the core.
  KTUNE_TRY(made->check(driver.ctxCreate(&made->context_, CU_CTX_SCHED_BLOCKING_SYNC, device), "cuCtxCreate"));
  const CUresult result = driver.streamCreate(&made->stream_, CU_STREAM_NON_BLOCKING);
  CUcontext popped = nullptr;
  (void)driver.ctxPopCurrent(&popped);  // Creating made it current.
  KTUNE_TRY(made->check(result, "cuStreamCreate"));
  made->limits_ = readLimits(driver, device);
  made->lease_.noteOwnContext();
  return made;
}

CudaContext::~CudaContext() {
  if (context_ == nullptr) return;
  // After a fatal error, or at the end of the process, all of these may fail, and there is nothing to be done.
  if (driver_.ctxPushCurrent(context_) == CUDA_SUCCESS) {
    for (Staging& staging : staging_) {
      if (staging.event != nullptr) (void)driver_.eventDestroy(staging.event);
      if (staging.data != nullptr) (void)driver_.memFreeHost(staging.data);
    }
    if (stream_ != nullptr) (void)driver_.streamDestroy(stream_);
    CUcontext popped = nullptr;
    (void)driver_.ctxPopCurrent(&popped);
  }
  (void)driver_.ctxDestroy(context_);
}

Status CudaContext::check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return Status::ok();
  Status status = statusOf(driver_, result, what);
  if (isFatal(result) && failure_.isOk()) failure_ = status;
  return status;
}

Status CudaContext::check(CUresult result, const char* what, size_t bytes) {
  if (result == CUDA_SUCCESS) return Status::ok();
  return check(result, (std::string(what) + " of " + std::to_string(bytes) + " bytes").c_str());
}

Status CudaContext::synchronize() {
  if (failed()) return failure_;
  return check(driver_.streamSynchronize(stream_), "cuStreamSynchronize");
}

Result<CUdeviceptr> CudaContext::allocate(size_t bytes, CUdeviceptr& raw) {
  Current current(*this);
  KTUNE_TRY(current.status());
  if (memoryCap_ != 0 && (bytes > memoryCap_ || memoryUsed_ > memoryCap_ - bytes))
    return resourceExhausted(std::to_string(bytes) + " bytes of device memory: " + std::to_string(memoryUsed_) +
                             " are in use, and the cap is " + std::to_string(memoryCap_));
  // The driver aligns to 256 bytes at least.
  const size_t padded = bytes + kWorkspaceAlignment;
  KTUNE_TRY(check(driver_.memAlloc(&raw, padded), "cuMemAlloc", bytes));
  memoryUsed_ += bytes;
  return (raw + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

void CudaContext::free(CUdeviceptr raw, size_t bytes) noexcept {
  Current current(*this);
  (void)driver_.memFree(raw);
  memoryUsed_ -= bytes;
}

bool CudaContext::haveStaging() {
  if (!stagingTried_) {
    stagingTried_ = true;
    for (Staging& staging : staging_) {
      if (driver_.memHostAlloc(&staging.data, kStagingBytes, 0) != CUDA_SUCCESS) staging.data = nullptr;
      if (driver_.eventCreate(&staging.event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC) != CUDA_SUCCESS)
        staging.event = nullptr;
    }
  }
  return std::all_of(staging_.begin(), staging_.end(),
                     [](const Staging& s) { return s.data != nullptr && s.event != nullptr; });
}

void CudaContext::copyOnHost(char* to, const char* from, size_t bytes) {
  const auto pieces = static_cast<int64_t>((bytes + kCopyPieceBytes - 1) / kCopyPieceBytes);
  parallelFor(pieces, [&](int64_t first, int64_t last) {
    const auto begin = static_cast<size_t>(first * kCopyPieceBytes);
    const auto end = std::min(bytes, static_cast<size_t>(last * kCopyPieceBytes));
    std::memcpy(to + begin, from + begin, end - begin);
  });
}

Status CudaContext::toDevice(CUdeviceptr to, const void* from, size_t bytes) {
  Current current(*this);
  KTUNE_TRY(current.status());
  if (bytes == 0) return synchronize();
  if (bytes <= kSmallCopyBytes || !haveStaging()) {
    KTUNE_TRY(check(driver_.memcpyHtoDAsync(to, from, bytes, stream_), "copying to the device", bytes));
    return synchronize();
  }
  const char* const source = static_cast<const char*>(from);
  size_t index = 0;
  for (size_t done = 0; done < bytes; ++index) {
    Staging& staging = staging_[index % staging_.size()];
    const size_t chunk = std::min(kStagingBytes, bytes - done);
    // Its last use: of an event that was never recorded nothing is to be waited for.
    KTUNE_TRY(check(driver_.eventSynchronize(staging.event), "copying to the device", bytes));
    copyOnHost(static_cast<char*>(staging.data), source + done, chunk);
    KTUNE_TRY(check(driver_.memcpyHtoDAsync(to + done, staging.data, chunk, stream_), "copying to the device", bytes));
    KTUNE_TRY(check(driver_.eventRecord(staging.event, stream_), "copying to the device", bytes));
    done += chunk;
  }
  return synchronize();
}

Status CudaContext::fromDevice(void* to, CUdeviceptr from, size_t bytes) {
  Current current(*this);
  KTUNE_TRY(current.status());
  if (bytes == 0) return synchronize();
  if (bytes <= kSmallCopyBytes || !haveStaging()) {
    KTUNE_TRY(check(driver_.memcpyDtoHAsync(to, from, bytes, stream_), "copying from the device", bytes));
    return synchronize();
  }
  const size_t chunks = (bytes + kStagingBytes - 1) / kStagingBytes;
  const auto sizeOf = [&](size_t i) { return std::min(kStagingBytes, bytes - i * kStagingBytes); };
  const auto queue = [&](size_t i) -> Status {
    Staging& staging = staging_[i % staging_.size()];
    KTUNE_TRY(check(driver_.memcpyDtoHAsync(staging.data, from + i * kStagingBytes, sizeOf(i), stream_),
                    "copying from the device", bytes));
    return check(driver_.eventRecord(staging.event, stream_), "copying from the device", bytes);
  };
  KTUNE_TRY(queue(0));
  for (size_t i = 0; i < chunks; ++i) {
    if (i + 1 < chunks) KTUNE_TRY(queue(i + 1));  // Its buffer was emptied one round ago.
    const Staging& staging = staging_[i % staging_.size()];
    KTUNE_TRY(check(driver_.eventSynchronize(staging.event), "copying from the device", bytes));
    copyOnHost(static_cast<char*>(to) + i * kStagingBytes, static_cast<const char*>(staging.data), sizeOf(i));
  }
  return synchronize();
}

void CudaContext::parallelFor(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  // A loop in a loop, or a second thread: the pool runs one at a time.
  if (count == 1 || poolBusy_.test_and_set(std::memory_order_acquire)) {
    body(0, count);
    return;
  }
  if (pool_ == nullptr) pool_ = std::make_unique<ThreadPool>(usableCores());
  pool_->parallelFor(count, 1, body);
  poolBusy_.clear(std::memory_order_release);
}

Result<std::unique_ptr<CudaMemory>> CudaMemory::make(std::shared_ptr<CudaContext> context, size_t bytes) {
  CUdeviceptr raw = 0;
  KTUNE_ASSIGN(const CUdeviceptr address, context->allocate(bytes, raw));
  return std::unique_ptr<CudaMemory>(new CudaMemory(std::move(context), raw, address, bytes));
}

}  // namespace ktune::runtime::cuda
