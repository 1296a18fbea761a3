// What this machine has: cores, memory (control groups count) and the processor's identity.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ktune {

/// Cores this process may use: the affinity mask, reduced by the control group's cpu quota (v2 cpu.max, v1 cfs),
/// at least 1.
[[nodiscard]] int usableCores();
/// Bytes this process may still allocate: MemAvailable, reduced by what the control group has left (v2 memory.max
/// minus memory.current, v1 likewise; inactive page cache counts as left). 0 when unknown.
[[nodiscard]] uint64_t availableMemoryBytes();

/// The processor as it enters a cpu device's key.
struct CpuIdentity {
  std::string vendor;  ///< "GenuineIntel"
  std::string model;   ///< brand string, blanks folded
  int family = 0, modelNumber = 0, stepping = 0;
  std::vector<std::string> features;  ///< /proc/cpuinfo flags that change generated code (SSE4 to AMX), sorted
  int logicalCores = 0;               ///< usableCores()
  uint64_t l1Bytes = 0, l2Bytes = 0, l3Bytes = 0;  ///< per instance, data caches; 0 when unknown
  [[nodiscard]] bool has(const char* feature) const;
};
[[nodiscard]] CpuIdentity readCpuIdentity();

}  // namespace ktune
