// What everything made on one CUDA device shares: context, stream, and whether the device still works. Private to
// devices/cuda.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/launch/Device.h"
#include "runtime/launch/ThreadPool.h"
#include "runtime/launch/devices/cuda/Driver.h"
#include "runtime/launch/devices/cuda/Lease.h"

namespace ktune::runtime::cuda {

/// Attributes of a device that launches are checked against.
struct Limits {
  int major = 0, minor = 0;
  int64_t maxThreads = 1024;
  std::array<int64_t, 3> maxBlock{1024, 1024, 64};
  std::array<int64_t, 3> maxGrid{2147483647, 65535, 65535};
  int64_t sharedOptinBytes = 49152;
};

/// A context of its own and a stream. Plans, memory and timed calls hold it by shared_ptr, so that the order in which
/// they and the device end does not matter. Thread-compatible. It is made current for the length of each call only: the
/// calling thread's own context is never replaced.
class CudaContext {
 public:
  /// The lease, when one is held, is given back after the context is gone.
  [[nodiscard]] static Result<std::shared_ptr<CudaContext>> create(const Driver& driver, CUdevice device, Lease lease,
                                                                   uint64_t memoryCap);
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;
  ~CudaContext();

  [[nodiscard]] const Driver& driver() const { return driver_; }
  [[nodiscard]] CUdevice device() const { return device_; }
  [[nodiscard]] CUstream stream() const { return stream_; }
  [[nodiscard]] const Limits& limits() const { return limits_; }
  [[nodiscard]] Lease& lease() { return lease_; }

  /// ok, or RESULT as a Status; a fatal one is remembered.
  Status check(CUresult result, const char* what);
  /// As check, with a number: "cuMemAlloc of 12 bytes".
  Status check(CUresult result, const char* what, size_t bytes);
  /// ok, or the first fatal error.
  [[nodiscard]] const Status& failure() const { return failure_; }
  [[nodiscard]] bool failed() const { return !failure_.isOk(); }
  Status synchronize();

  /// BYTES at an address aligned to ALIGNMENT, counted against the cap. RAW is what free() takes.
  [[nodiscard]] Result<CUdeviceptr> allocate(size_t bytes, CUdeviceptr& raw);
  void free(CUdeviceptr raw, size_t bytes) noexcept;

  /// Copies that end before they return; large ones go through pinned buffers with all host threads.
  Status toDevice(CUdeviceptr to, const void* from, size_t bytes);
  Status fromDevice(void* to, CUdeviceptr from, size_t bytes);

  void parallelFor(int64_t count, const std::function<void(int64_t, int64_t)>& body);

 private:
  CudaContext(const Driver& driver, CUdevice device, Lease lease, uint64_t memoryCap)
      : lease_(std::move(lease)), driver_(driver), device_(device), memoryCap_(memoryCap) {}

  struct Staging {
    void* data = nullptr;
    CUevent event = nullptr;
  };
  bool haveStaging();
  void copyOnHost(char* to, const char* from, size_t bytes);

  Lease lease_;  // First, so that it ends last.
  const Driver& driver_;
  const CUdevice device_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  Limits limits_;
  Status failure_;
  const uint64_t memoryCap_;
  uint64_t memoryUsed_ = 0;
  std::array<Staging, 2> staging_;
  bool stagingTried_ = false;
  std::atomic_flag poolBusy_ = ATOMIC_FLAG_INIT;
  std::unique_ptr<ThreadPool> pool_;

  friend class Current;
};

/// Makes a context current on this thread as long as it lives.
class Current {
 public:
  explicit Current(CudaContext& context) : context_(context) {
    result_ = context.driver_.ctxPushCurrent(context.context_);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    CUcontext ignored = nullptr;
    if (result_ == CUDA_SUCCESS) (void)context_.driver_.ctxPopCurrent(&ignored);
  }
  /// ok; the context's earlier failure; or why it can't be made current.
  [[nodiscard]] Status status() {
    if (context_.failed()) return context_.failure();
    return result_ == CUDA_SUCCESS ? Status::ok() : context_.check(result_, "cuCtxPushCurrent");
  }

 private:
  CudaContext& context_;
  CUresult result_;
};

/// Memory that a DeviceMemory of this device stands for.
class CudaMemory final : public DeviceMemory {
 public:
  [[nodiscard]] static Result<std::unique_ptr<CudaMemory>> make(std::shared_ptr<CudaContext> context, size_t bytes);
  ~CudaMemory() override { context_->free(raw_, bytes_); }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;
  [[nodiscard]] char* data() const override { return reinterpret_cast<char*>(address_); }
  [[nodiscard]] size_t bytes() const override { return bytes_; }
  [[nodiscard]] CUdeviceptr address() const { return address_; }

 private:
  CudaMemory(std::shared_ptr<CudaContext> context, CUdeviceptr raw, CUdeviceptr address, size_t bytes)
      : context_(std::move(context)), raw_(raw), address_(address), bytes_(bytes) {}
  std::shared_ptr<CudaContext> context_;
  CUdeviceptr raw_, address_;
  size_t bytes_;
};

}  // namespace ktune::runtime::cuda
