#include "runtime/guard/GuardedBuffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace ktune::runtime {

namespace {

// Inaccessible on either side: an index that is far off must not land in another buffer.
constexpr size_t kFenceBytes = size_t{1} << 20;
constexpr size_t kPageBytes = 4096;

size_t roundUp(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

}  // namespace

GuardedBuffer::GuardedBuffer(GuardedBuffer&& o) noexcept
    : map_(std::exchange(o.map_, nullptr)),
      mapBytes_(std::exchange(o.mapBytes_, 0)),
      data_(std::exchange(o.data_, nullptr)),
      bytes_(std::exchange(o.bytes_, 0)),
      memory_(std::exchange(o.memory_, {})),
      twin_(std::move(o.twin_)),
      twinData_(std::exchange(o.twinData_, nullptr)) {}

GuardedBuffer& GuardedBuffer::operator=(GuardedBuffer&& o) noexcept {
  std::swap(map_, o.map_);
  std::swap(mapBytes_, o.mapBytes_);
  std::swap(data_, o.data_);
  std::swap(bytes_, o.bytes_);
  std::swap(memory_, o.memory_);
  std::swap(twin_, o.twin_);
  std::swap(twinData_, o.twinData_);
  return *this;
}

GuardedBuffer::~GuardedBuffer() {
  if (map_ != nullptr) ::munmap(map_, mapBytes_);
}

size_t GuardedBuffer::totalBytes(size_t bytes, size_t alignment) {
  return roundUp(bytes + 2 * kBandBytes + 3 * alignment, kPageBytes) + 2 * kFenceBytes;
}

// Room to align the block on the device, and for what the block's own alignment leaves behind it on the host.
size_t GuardedBuffer::twinBytes(size_t bytes, size_t alignment) {
  return bytes + 2 * kBandBytes + 6 * alignment;
}

Result<GuardedBuffer> GuardedBuffer::create(size_t bytes, size_t alignment, const GuardedMemory& memory) {
  GuardedBuffer buffer;
  buffer.memory_ = memory;
  if (memory.device != nullptr && !memory.device->sharesHostMemory()) {
    KTUNE_ASSIGN(buffer.twin_, memory.device->allocate(twinBytes(bytes, alignment)));
  }
  buffer.mapBytes_ = totalBytes(bytes, alignment);
  void* map =
      ::mmap(nullptr, buffer.mapBytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return errnoStatus(errno, "no memory for a buffer of " + std::to_string(bytes) + " bytes");
  buffer.map_ = static_cast<char*>(map);
  if (::mprotect(buffer.map_, kFenceBytes, PROT_NONE) != 0 || ::mprotect(buffer.end(), kFenceBytes, PROT_NONE) != 0)
    return errnoStatus(errno, "mprotect");
  // Large weights are written again and again: fewer page faults, best effort.
  if (bytes >= (size_t{64} << 20))
    ::madvise(buffer.map_ + kFenceBytes, buffer.mapBytes_ - 2 * kFenceBytes, MADV_HUGEPAGE);
  return buffer;
}

char* GuardedBuffer::end() const {
  return map_ + mapBytes_ - kFenceBytes;
}

char* GuardedBuffer::place(size_t bytes, size_t alignment, bool shifted) {
  const auto last = reinterpret_cast<uintptr_t>(end()) - kBandBytes - bytes;
  uintptr_t start = last / (2 * alignment) * (2 * alignment);
  if (shifted) start += start + alignment <= last ? alignment : -alignment;
  data_ = map_ + (start - reinterpret_cast<uintptr_t>(map_));
  bytes_ = bytes;
  for (char* band : {data_ - kBandBytes, data_ + bytes_}) {
    const size_t length = band < data_ ? kBandBytes : static_cast<size_t>(end() - band);
    for (size_t i = 0; i < length; ++i) band[i] = static_cast<char>(kPoison[0][i & 1]);
  }
  if (twin_ != nullptr) {
    const uintptr_t first = reinterpret_cast<uintptr_t>(twin_->data()) + kBandBytes;
    uintptr_t twin = (first + 2 * alignment - 1) / (2 * alignment) * (2 * alignment);
    if (shifted) twin += twin >= first + alignment ? -alignment : alignment;
    twinData_ = twin_->data() + (twin - reinterpret_cast<uintptr_t>(twin_->data()));
  }
  return data_;
}

Status GuardedBuffer::upload() const {
  if (twin_ == nullptr) return Status::ok();
  return memory_.device->copyToDevice(twinData_ - kBandBytes, data_ - kBandBytes, bytes_ + 2 * kBandBytes);
}

Status GuardedBuffer::download() const {
  if (twin_ == nullptr) return Status::ok();
  return memory_.device->copyFromDevice(data_ - kBandBytes, twinData_ - kBandBytes, bytes_ + 2 * kBandBytes);
}

Status GuardedBuffer::bringBackBands() const {
  if (twin_ == nullptr || inspectedOnDevice()) return Status::ok();
  KTUNE_TRY(memory_.device->copyFromDevice(data_ - kBandBytes, twinData_ - kBandBytes, kBandBytes));
  return memory_.device->copyFromDevice(data_ + bytes_, twinData_ + bytes_, kBandBytes);
}

Status GuardedBuffer::prepare() const {
  if (!inspectedOnDevice()) return upload();
  KTUNE_TRY(inspector().fill(twinData_ - kBandBytes, kBandBytes, kPoison[0]));
  return inspector().fill(twinData_ + bytes_, kBandBytes, kPoison[0]);
}

Result<std::optional<int64_t>> GuardedBuffer::damage() const {
  char* const block = inspectedData();
  // Behind the block first: that is where overruns go. The host's band reaches to the fence.
  const size_t behind = inspectedOnDevice() ? kBandBytes : static_cast<size_t>(end() - data_) - bytes_;
  KTUNE_ASSIGN(std::optional<size_t> at, inspector().firstOther(block + bytes_, behind, kPoison[0]));
  if (at) return std::optional<int64_t>(static_cast<int64_t>(*at));
  KTUNE_ASSIGN(at, inspector().firstOther(block - kBandBytes, kBandBytes, kPoison[0]));
  if (at) return std::optional<int64_t>(static_cast<int64_t>(*at) - static_cast<int64_t>(kBandBytes));
  return std::optional<int64_t>();
}

}  // namespace ktune::runtime
