// What the search and the generators need to know of the device they work for. Plain data, filled by
// runtime/launch (Device::target()); no call to a device happens here.
#pragma once

#include <cstdint>
#include <string>

#include "base/Bytes.h"
#include "ir/schedule/Schedule.h"

namespace ktune::schedule {

enum class DeviceKind : uint8_t { kCpu = 0, kCuda = 1, kFake = 2 };

struct Target {
  DeviceKind kind = DeviceKind::kCpu;
  std::string hardware;        ///< The device's identity text: part of every key.
  std::string architecture;    ///< "x86-64-v4", "sm_90a".
  int cores = 1;               ///< Cores (cpu) or SMs (cuda) that a plan runs on.
  int vectorBytes = 16;        ///< cpu: widest vector register.
  int vectorRegisters = 16;    ///< cpu: how many of them.
  uint64_t l1Bytes = 32768;    ///< Per core.
  uint64_t l2Bytes = 1 << 20;  ///< Per core (cpu), whole (cuda).
  uint64_t l3Bytes = 0;        ///< Shared last level; 0 when there is none.
  uint64_t memoryBytes = 0;    ///< What one problem's buffers may take together.
  bool operator==(const Target&) const = default;
  void encode(ByteWriter& writer) const;
  [[nodiscard]] static Target decode(ByteReader& reader);
};

[[nodiscard]] inline DeviceFamily familyOf(const Target& target) {
  return target.kind == DeviceKind::kCuda ? DeviceFamily::kCuda : DeviceFamily::kHost;
}

/// The target of an H200-like GPU of ARCHITECTURE (132 multiprocessors, 60 MB of cache), for tests and for compiling
/// without a device.
[[nodiscard]] Target cudaTarget(const std::string& architecture);

/// The target of the fake device: a 2-core machine with 64-byte vectors. For tests.
[[nodiscard]] Target fakeTarget();

}  // namespace ktune::schedule
