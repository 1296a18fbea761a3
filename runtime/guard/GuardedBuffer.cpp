#include "runtime/guard/GuardedBuffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
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

// The patterns as blocks, so that memcpy and memcmp do the work.
constexpr size_t kBlockBytes = 4096;
using PatternBlock = std::array<unsigned char, kBlockBytes>;
constexpr PatternBlock blockOf(int which) {
  PatternBlock block{};
  for (size_t i = 0; i < kBlockBytes; ++i) block[i] = kPoison[which][i & 1];
  return block;
}
constexpr PatternBlock kBlocks[2] = {blockOf(0), blockOf(1)};

void fillPattern(char* from, char* to, int which) {
  for (; from < to; from += kBlockBytes)
    std::memcpy(from, kBlocks[which].data(), std::min<size_t>(kBlockBytes, static_cast<size_t>(to - from)));
}

// The first byte of [from, to) that is not the pattern, or TO.
const char* firstDifference(const char* from, const char* to, int which) {
  for (; from < to; from += kBlockBytes) {
    const size_t n = std::min<size_t>(kBlockBytes, static_cast<size_t>(to - from));
    if (std::memcmp(from, kBlocks[which].data(), n) == 0) continue;
    for (size_t i = 0; i < n; ++i) {
      if (static_cast<unsigned char>(from[i]) != kBlocks[which][i]) return from + i;
    }
  }
  return to;
}

}  // namespace

GuardedBuffer::GuardedBuffer(GuardedBuffer&& o) noexcept
    : map_(std::exchange(o.map_, nullptr)),
      mapBytes_(std::exchange(o.mapBytes_, 0)),
      data_(std::exchange(o.data_, nullptr)),
      bytes_(std::exchange(o.bytes_, 0)),
      device_(std::exchange(o.device_, nullptr)),
      twin_(std::move(o.twin_)),
      twinData_(std::exchange(o.twinData_, nullptr)) {}

GuardedBuffer& GuardedBuffer::operator=(GuardedBuffer&& o) noexcept {
  std::swap(map_, o.map_);
  std::swap(mapBytes_, o.mapBytes_);
  std::swap(data_, o.data_);
  std::swap(bytes_, o.bytes_);
  std::swap(device_, o.device_);
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

Result<GuardedBuffer> GuardedBuffer::create(size_t bytes, size_t alignment, Device* device) {
  GuardedBuffer buffer;
  if (device != nullptr && !device->sharesHostMemory()) {
    buffer.device_ = device;
    KTUNE_ASSIGN(buffer.twin_, device->allocate(twinBytes(bytes, alignment)));
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
  fillPattern(data_ - kBandBytes, data_, 0);
  fillPattern(data_ + bytes_, end(), 0);
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
  return device_->copyToDevice(twinData_ - kBandBytes, data_ - kBandBytes,
                               static_cast<size_t>(end() - data_) + kBandBytes);
}

Status GuardedBuffer::download() {
  if (twin_ == nullptr) return Status::ok();
  return device_->copyFromDevice(data_ - kBandBytes, twinData_ - kBandBytes,
                                 static_cast<size_t>(end() - data_) + kBandBytes);
}

Status GuardedBuffer::downloadBands() {
  if (twin_ == nullptr) return Status::ok();
  KTUNE_TRY(device_->copyFromDevice(data_ - kBandBytes, twinData_ - kBandBytes, kBandBytes));
  return device_->copyFromDevice(data_ + bytes_, twinData_ + bytes_, static_cast<size_t>(end() - data_) - bytes_);
}

void GuardedBuffer::poison(int which, const op::ParallelFor& parallelFor) {
  constexpr size_t kPiece = size_t{4} << 20;
  if (bytes_ <= kPiece) return fillPattern(data_, data_ + bytes_, which);
  parallelFor(static_cast<int64_t>((bytes_ + kPiece - 1) / kPiece), [&](int64_t begin, int64_t end) {
    const size_t last = std::min(static_cast<size_t>(end) * kPiece, bytes_);
    fillPattern(data_ + static_cast<size_t>(begin) * kPiece, data_ + last, which);
  });
}

bool GuardedBuffer::isPoison(const char* data, size_t offset, size_t bytes, int which) {
  for (size_t i = 0; i < bytes; ++i) {
    if (data[i] != static_cast<char>(kPoison[which][(offset + i) & 1])) return false;
  }
  return true;
}

std::optional<int64_t> GuardedBuffer::damage() const {
  // Behind the block first: that is where overruns go.
  const char* const blockEnd = data_ + bytes_;
  if (const char* p = firstDifference(blockEnd, end(), 0); p != end()) return p - blockEnd;
  if (const char* p = firstDifference(data_ - kBandBytes, data_, 0); p != data_) return p - data_;
  return std::nullopt;
}

}  // namespace ktune::runtime
