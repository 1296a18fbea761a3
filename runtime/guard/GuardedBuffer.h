// Memory with guard bands, for the tensors that a candidate is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "ir/op/Operator.h"
#include "runtime/launch/Device.h"

namespace ktune::runtime {

/// Two patterns whose 16-bit, 32-bit and 64-bit words are NaNs in every float format of that size, and which differ in
/// every byte: memory that still holds the first after one run and the second after another was not written.
inline constexpr unsigned char kPoison[2][2] = {{0xff, 0x7f}, {0xfe, 0xff}};

/// A block of memory that is surrounded by bands of a known pattern, which are surrounded by inaccessible pages: a
/// write just outside is found by damage(), one far outside is a SIGSEGV. Reading a band gives NaNs. Move-only.
///
/// For a device whose memory the host can't address the block has a twin there, bands included: upload() makes the twin
/// what the block is, download() the block what the twin is, so that everything is looked at on the host.
class GuardedBuffer {
 public:
  static constexpr size_t kBandBytes = size_t{16} << 10;

  GuardedBuffer() = default;
  GuardedBuffer(GuardedBuffer&& o) noexcept;
  GuardedBuffer& operator=(GuardedBuffer&& o) noexcept;
  ~GuardedBuffer();

  /// Room for blocks of up to BYTES at up to ALIGNMENT. Pages are taken when written. DEVICE: has the twin when it does
  /// not share the host's memory, and must outlive the buffer; null for none.
  /// Errors: kResourceExhausted; as Device::allocate.
  [[nodiscard]] static Result<GuardedBuffer> create(size_t bytes, size_t alignment, Device* device = nullptr);
  /// What create() may take in all (address space; the inaccessible pages cost no memory).
  [[nodiscard]] static size_t totalBytes(size_t bytes, size_t alignment);
  /// What the twin takes of the device's memory.
  [[nodiscard]] static size_t twinBytes(size_t bytes, size_t alignment);

  /// Puts a block of BYTES near the end and writes the bands round it. Its address is a multiple of ALIGNMENT, and of
  /// twice that only if not SHIFTED. The block's own contents are undefined.
  /// REQUIRES: BYTES and ALIGNMENT are at most create()'s; ALIGNMENT is a power of two.
  char* place(size_t bytes, size_t alignment, bool shifted);
  [[nodiscard]] char* data() const { return data_; }
  [[nodiscard]] size_t bytes() const { return bytes_; }

  /// Where the device has the block: the twin, aligned as the block is, or the block itself.
  [[nodiscard]] char* deviceData() const { return twin_ != nullptr ? twinData_ : data_; }

  /// Block and bands to and from the twin; nothing to do without one. Errors: as Device::copyToDevice.
  [[nodiscard]] Status upload() const;
  [[nodiscard]] Status download();
  [[nodiscard]] Status downloadBands();

  /// Fills the block with kPoison[WHICH].
  void poison(int which, const op::ParallelFor& parallelFor);
  /// Whether the bytes of the block from OFFSET on are poison.
  [[nodiscard]] static bool isPoison(const char* data, size_t offset, size_t bytes, int which);

  /// The distance of the first damaged byte from the block: negative before it, counted from its end behind it;
  /// nothing when both bands are whole.
  [[nodiscard]] std::optional<int64_t> damage() const;

 private:
  char* map_ = nullptr;
  size_t mapBytes_ = 0;
  char* data_ = nullptr;
  size_t bytes_ = 0;
  Device* device_ = nullptr;
  std::unique_ptr<DeviceMemory> twin_;
  char* twinData_ = nullptr;

  [[nodiscard]] char* end() const;
};

}  // namespace ktune::runtime
