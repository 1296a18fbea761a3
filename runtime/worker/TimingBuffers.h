// Private to runtime/worker: the memory that timed runs work on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "ir/op/Operator.h"
#include "runtime/launch/Elements.h"

namespace ktune::runtime {

/// A reserved stretch of address space, of which a growing part is filled and used.
class Arena {
 public:
  Arena() = default;
  Arena(Arena&& o) noexcept;
  Arena& operator=(Arena&& o) noexcept;
  ~Arena();
  /// Errors: kResourceExhausted.
  [[nodiscard]] static Result<Arena> reserve(size_t bytes);
  [[nodiscard]] char* data() const { return data_; }
  [[nodiscard]] size_t filled() const { return filled_; }
  /// Fills up to BYTES with values of TYPE that look random (so that they cost as much power and take as many cache
  /// lines as real ones): a generated block of a few megabytes, then copies of it. Does nothing for what is filled.
  /// REQUIRES: BYTES is at most what was reserved.
  void fill(size_t bytes, op::DType type, uint64_t seed, const op::ParallelFor& parallelFor);
  /// Writes zeros, so that the pages exist.
  void touch(size_t bytes, const op::ParallelFor& parallelFor);

 private:
  char* data_ = nullptr;
  size_t reserved_ = 0;
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
  /// LASTLEVELBYTES: of the cache, 0 unknown. MEMORYBYTES: cap of everything here.
  TimingBuffers(uint64_t lastLevelBytes, uint64_t memoryBytes, uint64_t seed, op::ParallelFor parallelFor);

  /// How much memory lies between two uses of a set: twice the last-level cache, but at most 512 MiB (virtual machines
  /// report the host's whole cache, of which a guest has a part) and at most half of the cap.
  [[nodiscard]] uint64_t coldBytes() const { return coldBytes_; }
  /// True when an input is cold at every use wherever it lies, as it alone fills coldBytes(), and may therefore be one
  /// that somebody else has made: the same at every call, and no worse aligned than a cache line.
  [[nodiscard]] bool mayBorrow(const op::Input& input, const TensorView& view) const;
  /// Bytes that ring() takes for these tensors, the borrowed inputs excepted (BORROWED: per input, empty for none).
  [[nodiscard]] uint64_t bytesFor(const op::Graph& graph, const std::vector<TensorView>& views,
                                  const std::vector<bool>& borrowed = {}) const;
  /// Sets for these tensors (inputs, then outputs; an output that aliases an input has its address). BORROWED: per
  /// input, an address that every set has, or null; empty for none.
  /// Errors: kResourceExhausted.
  [[nodiscard]] Result<BufferRing> ring(const op::Graph& graph, const std::vector<TensorView>& views,
                                        const std::vector<void*>& borrowed = {});
  /// Bytes read and written per second by copies of BYTES on all threads, past the caches; the best of a few.
  [[nodiscard]] Result<double> copyBytesPerSecond(uint64_t bytes);
  /// Gives the memory of an aliased input its values again: what runs have made of them must not drift into infinities
  /// or denormals, which are slow.
  void renew(op::DType type, void* data, size_t bytes);

 private:
  struct Layout;
  uint64_t memoryBytes_, coldBytes_, seed_;
  op::ParallelFor parallelFor_;
  std::map<op::DType, Arena> inputs_;
  Arena outputs_;
  std::map<op::DType, std::vector<char>> renewal_;

  [[nodiscard]] Layout layOut(const op::Graph& graph, const std::vector<TensorView>& views,
                              const std::vector<bool>& borrowed) const;
  Result<Arena*> arenaFor(op::DType type);
  Status reserveOutputs();
};

}  // namespace ktune::runtime
