// Private to runtime/worker: the memory that timed runs work on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "ir/op/Operator.h"
#include "runtime/launch/Device.h"
#include "runtime/launch/Elements.h"

namespace ktune::runtime {

/// Memory of a device, of which a growing part is filled and used. Where the device has the host's memory, what is not
/// filled yet is address space only.
class Arena {
 public:
  Arena() = default;
  /// DEVICE must outlive the arena. Errors: as Device::allocate.
  [[nodiscard]] static Result<Arena> reserve(Device& device, size_t bytes);
  [[nodiscard]] bool isReserved() const { return memory_ != nullptr; }
  [[nodiscard]] size_t bytes() const { return memory_ == nullptr ? 0 : memory_->bytes(); }
  [[nodiscard]] char* data() const { return memory_->data(); }
  [[nodiscard]] size_t filled() const { return filled_; }
  /// Fills up to BYTES with values of TYPE that look random (so that they cost as much power and take as many cache
  /// lines as real ones): a generated block of a few megabytes, then copies of it. Does nothing for what is filled.
  /// REQUIRES: BYTES is at most what was reserved. Errors: as Device::copyToDevice.
  [[nodiscard]] Status fill(size_t bytes, op::DType type, uint64_t seed);
  /// Writes zeros on the host, so that the pages exist; memory of a device's own exists.
  void touch(size_t bytes);

 private:
  Device* device_ = nullptr;
  std::unique_ptr<DeviceMemory> memory_;
  size_t filled_ = 0;
};

/// The tensors of several calls, for one scoring point. Call i uses set i % count().
class BufferRing {
 public:
  [[nodiscard]] size_t count() const { return tensorCount_ == 0 ? 1 : addresses_.size() / tensorCount_; }
  [[nodiscard]] std::span<void* const> set(size_t i) const {
    return {addresses_.data() + i * tensorCount_, tensorCount_};
  }

 private:
  friend class TimingBuffers;
  size_t tensorCount_ = 0;
  std::vector<void*> addresses_;
};

/// Buffers for timing one problem, cold: consecutive calls use different sets, and a set comes again only after at
/// least coldBytes() of other memory was touched. Filled once in a process's life, as far as needed.
class TimingBuffers {
 public:
  /// LASTLEVELBYTES: of the cache, 0 unknown. MEMORYBYTES: cap of everything here. DEVICE must outlive the buffers.
  /// MANYSETS: on a device that runs whole rounds over the sets, as many sets as coldness takes; else at most 512, so
  /// that preparing a round stays cheap: sets of tiny tensors then come again while the cache still has them.
  TimingBuffers(Device& device, uint64_t lastLevelBytes, uint64_t memoryBytes, uint64_t seed, bool manySets = true);
  /// The last cache before a device's memory.
  [[nodiscard]] static uint64_t lastLevelBytes(const schedule::Target& target);

  /// How much memory lies between two uses of a set: twice the last-level cache, but at most 512 MiB (virtual machines
  /// report the host's whole cache, of which a guest has a part) and at most half of the cap.
  [[nodiscard]] uint64_t coldBytes() const { return coldBytes_; }
  /// True when an input is cold at every use wherever it lies, as it alone fills coldBytes(), and may therefore be one
  /// that somebody else has made: the same at every call, and no worse aligned than a cache line.
  [[nodiscard]] bool mayBorrow(const op::Input& input, const TensorView& view) const;
  /// Bytes that ring() takes for these tensors, the borrowed inputs excepted (BORROWED: per input, empty for none).
  [[nodiscard]] uint64_t bytesFor(const op::Graph& graph, const std::vector<TensorView>& views,
                                  const std::vector<bool>& borrowed = {}) const;
  /// Says beforehand for which tensors ring() will be called. A device with memory of its own is then asked for exactly
  /// what the largest takes; without it, for what the first takes. Errors: kResourceExhausted when they exceed the cap.
  [[nodiscard]] Status expect(const op::Graph& graph, const std::vector<std::vector<TensorView>>& points,
                              const std::vector<bool>& borrowed = {});
  /// Sets for these tensors (inputs, then outputs; an output that aliases an input has its address). BORROWED: per
  /// input, an address that every set has, or null; empty for none.
  /// Errors: kResourceExhausted; as Device::copyToDevice.
  [[nodiscard]] Result<BufferRing> ring(const op::Graph& graph, const std::vector<TensorView>& views,
                                        const std::vector<void*>& borrowed = {});
  /// Device::copyBytesPerSecond between two blocks of BYTES, less where the cap asks for it.
  [[nodiscard]] Result<double> copyBytesPerSecond(uint64_t bytes);
  /// Gives the memory of an aliased input its values again: what runs have made of them must not drift into infinities
  /// or denormals, which are slow. Errors: as Device::copyOnDevice.
  [[nodiscard]] Status renew(op::DType type, void* data, size_t bytes);

 private:
  struct Layout;
  Device& device_;
  uint64_t memoryBytes_, coldBytes_, seed_;
  bool manySets_;
  std::map<op::DType, Arena> inputs_;
  Arena outputs_;
  std::map<op::DType, size_t> expectedInputs_;
  size_t expectedOutputs_ = 0;
  std::map<op::DType, Arena> renewal_;

  [[nodiscard]] Layout layOut(const op::Graph& graph, const std::vector<TensorView>& views,
                              const std::vector<bool>& borrowed) const;
  Status ensure(Arena& arena, size_t bytes, size_t expected) const;
};

}  // namespace ktune::runtime
