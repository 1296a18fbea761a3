// What a check does with memory that candidates write: fill it with patterns, look for other bytes, compare it with
// what it should be. On the host, or on a device, whose memory then need not come back to be looked at.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/Status.h"
#include "ir/op/Reference.h"
#include "runtime/launch/Elements.h"

namespace ktune::runtime {

/// Two bytes that alternate from the start of a block on: poison, or zeros.
using BytePair = std::array<unsigned char, 2>;

/// Leaves what resize() adds as it is: gigabytes are first touched by the threads that write them.
template <typename T>
struct UninitializedAllocator : std::allocator<T> {
  template <typename U>
  struct rebind {                             // NOLINT(readability-identifier-naming): the standard's names.
    using other = UninitializedAllocator<U>;  // NOLINT(readability-identifier-naming)
  };
  template <typename U>
  void construct(U* at) noexcept {
    ::new (static_cast<void*>(at)) U;
  }
  template <typename U, typename... Arguments>
  void construct(U* at, Arguments&&... arguments) {
    ::new (static_cast<void*>(at)) U(std::forward<Arguments>(arguments)...);
  }
};
using ReferenceValues = std::vector<double, UninitializedAllocator<double>>;

/// The reference of one output, dense row-major.
struct Expected {
  ReferenceValues values;
  ReferenceValues bounds;  ///< What the result may be off by; infinite where the reference can't judge.
};

/// How a tensor compares with its reference.
struct Comparison {
  double worstShare = 0;   ///< The largest error as a share of what is allowed (errorShare()): right up to 1.
  int64_t worstIndex = 0;  ///< Row-major position of the first element that has it, when it is more than 0.
  double got = 0, want = 0;
  int64_t judged = 0;  ///< Elements whose bound is finite.
  [[nodiscard]] bool right() const { return worstShare <= 1; }
};

/// Where two runs of a plan on equal inputs differ: row-major positions of the first such elements.
struct RunDifferences {
  std::optional<int64_t> unwritten;  ///< Holds the patterns that were there before.
  std::optional<int64_t> different;
};

/// A reference in an inspector's keeping.
class KeptReference {
 public:
  virtual ~KeptReference() = default;
  /// What the inspector's memory holds of it.
  [[nodiscard]] virtual uint64_t bytes() const = 0;
};

/// Addresses are those that kernels of the inspector's device get. Not thread-safe.
/// Errors of all: as Device::copyToDevice.
class Inspector {
 public:
  virtual ~Inspector() = default;
  /// Makes BYTES from DATA on alternate between the pair. May only queue the work.
  virtual Status fill(char* data, size_t bytes, BytePair pair) = 0;
  /// The offset of the first byte that is not the pair's.
  virtual Result<std::optional<size_t>> firstOther(const char* data, size_t bytes, BytePair pair) = 0;
  /// Depends on every byte and its place. Another inspector's may be another.
  virtual Result<uint64_t> checksum(const char* data, size_t bytes) = 0;
  /// FIRST and SECOND hold results of two runs, a tensor with VIEW's extents and strides each; where POISON is given
  /// their blocks were filled with its pairs before. Gaps between elements are not looked at.
  virtual Result<RunDifferences> compareRuns(const TensorView& view, const char* first, const char* second,
                                             const BytePair* poison) = 0;
  /// Takes a reference in, in a form that a kernel of the device which reads it learns nothing from. May take
  /// EXPECTED's memory; what it leaves can be used for the next one. Errors: also kResourceExhausted.
  virtual Result<std::unique_ptr<KeptReference>> keep(Expected& expected) = 0;
  /// GOT.data holds a tensor as large as EXPECTED, which this inspector keeps. Errors: also kCorrupt, when EXPECTED is
  /// no longer what was kept: something has written over it.
  virtual Result<Comparison> compare(const TensorView& got, const KeptReference& expected) = 0;
};

/// Results that are too small for a normal number may be flushed to zero, as vector units and most exp() do: what a
/// result of TYPE may be off by on top of its bound. f16 and narrower have so few exponents that their subnormals
/// matter.
[[nodiscard]] double flushAllowance(op::DType type);

/// |got - want| as a share of what is allowed, BOUND and ALLOWANCE together: at most 1 when right, 0 where the
/// reference can't judge (an infinite bound). NaN equals NaN only, an infinity only itself.
[[nodiscard]] double errorShare(double got, double want, double bound, double allowance);

/// The inspector of memory that the host can address, working on PARALLELFOR's threads.
[[nodiscard]] std::unique_ptr<Inspector> makeHostInspector(op::ParallelFor parallelFor);

}  // namespace ktune::runtime
