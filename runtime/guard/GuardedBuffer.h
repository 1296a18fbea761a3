// Memory with guard bands, for the tensors that a candidate is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/launch/Device.h"
#include "runtime/launch/Inspector.h"

namespace ktune::runtime {

/// Two patterns whose 16-bit, 32-bit and 64-bit words are NaNs in every float format of that size, and which differ in
/// every byte: memory that still holds the first after one run and the second after another was not written.
inline constexpr BytePair kPoison[2] = {{0xff, 0x7f}, {0xfe, 0xff}};

/// Where buffers lie and who looks at them. Both must outlive the buffers.
struct GuardedMemory {
  /// Has a twin of each buffer when it does not share the host's memory; may be null.
  Device* device = nullptr;
  /// Looks at the twins where they are; null: they come back to be looked at by HOST.
  Inspector* deviceInspector = nullptr;
  Inspector* host = nullptr;
};

/// A block of memory that is surrounded by bands of a known pattern, which are surrounded by inaccessible pages: a
/// write just outside is found by damage(), one far outside is a SIGSEGV. Reading a band gives NaNs. Move-only.
///
/// For a device whose memory the host can't address the block has a twin there, bands included. Candidates get the
/// twin. Where the device has an inspector everything happens there, and the host's block is what an input is made in;
/// else upload() makes the twin what the block is, download() the block what the twin is, and the block is looked at.
/// Errors of all functions: as Device::copyToDevice.
class GuardedBuffer {
 public:
  static constexpr size_t kBandBytes = size_t{16} << 10;

  GuardedBuffer() = default;
  GuardedBuffer(GuardedBuffer&& o) noexcept;
  GuardedBuffer& operator=(GuardedBuffer&& o) noexcept;
  ~GuardedBuffer();

  /// Room for blocks of up to BYTES at up to ALIGNMENT. Pages are taken when written.
  /// Errors: kResourceExhausted; as Device::allocate.
  [[nodiscard]] static Result<GuardedBuffer> create(size_t bytes, size_t alignment, const GuardedMemory& memory);
  /// What create() may take in all (address space; the inaccessible pages cost no memory).
  [[nodiscard]] static size_t totalBytes(size_t bytes, size_t alignment);
  /// What the twin takes of the device's memory.
  [[nodiscard]] static size_t twinBytes(size_t bytes, size_t alignment);

  /// Puts a block of BYTES near the end, on the host and in the twin, and writes the bands round the host's. Its
  /// address is a multiple of ALIGNMENT, and of twice that only if not SHIFTED. The block's own contents stay when it
  /// lies where it did, and are undefined else. REQUIRES: BYTES and ALIGNMENT are at most create()'s; ALIGNMENT is a
  /// power of two.
  char* place(size_t bytes, size_t alignment, bool shifted);
  [[nodiscard]] char* data() const { return data_; }  ///< On the host.
  [[nodiscard]] size_t bytes() const { return bytes_; }

  /// What candidates get: the twin, aligned as the block is, or the block itself.
  [[nodiscard]] char* candidateData() const { return twin_ != nullptr ? twinData_ : data_; }
  /// What inspector() looks at.
  [[nodiscard]] char* inspectedData() const { return inspectedOnDevice() ? twinData_ : data_; }
  [[nodiscard]] Inspector& inspector() const { return inspectedOnDevice() ? *memory_.deviceInspector : *memory_.host; }
  [[nodiscard]] bool inspectedOnDevice() const { return twin_ != nullptr && memory_.deviceInspector != nullptr; }

  /// The host's block and bands to the twin; nothing to do without one.
  [[nodiscard]] Status upload() const;
  /// The twin's block and bands to the host; nothing to do without one.
  [[nodiscard]] Status download() const;
  /// Block, or bands alone, to where the inspector looks: nothing to do when it looks at what candidates get.
  [[nodiscard]] Status bringBack() const { return inspectedOnDevice() ? Status::ok() : download(); }
  [[nodiscard]] Status bringBackBands() const;

  /// Fills the block with kPoison[WHICH], where it will be inspected. prepare() brings it to the candidate.
  [[nodiscard]] Status poison(int which) const { return inspector().fill(inspectedData(), bytes_, kPoison[which]); }
  /// Block and bands, as they are at inspectedData() and anew, to where candidates find them.
  [[nodiscard]] Status prepare() const;

  /// The distance of the first damaged byte from the block, at inspectedData(): negative before it, counted from its
  /// end behind it; nothing when both bands are whole.
  [[nodiscard]] Result<std::optional<int64_t>> damage() const;

 private:
  char* map_ = nullptr;
  size_t mapBytes_ = 0;
  char* data_ = nullptr;
  size_t bytes_ = 0;
  GuardedMemory memory_;
  std::unique_ptr<DeviceMemory> twin_;
  char* twinData_ = nullptr;

  [[nodiscard]] char* end() const;
};

}  // namespace ktune::runtime
