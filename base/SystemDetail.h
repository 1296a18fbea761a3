// Internal to base: the parsers behind System.h and File.h, which take their input as text or folders, so that tests
// can feed them samples of other machines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/System.h"

namespace ktune::detail {

/// Where this process stands in the control groups.
struct CgroupSource {
  std::string procSelfCgroup;  ///< text of /proc/self/cgroup
  std::string procMountinfo;   ///< text of /proc/self/mountinfo
  std::string root;            ///< put before every mount point; empty outside tests
};
[[nodiscard]] CgroupSource readCgroupSource();

/// The tightest cpu quota of the process's group and its ancestors, in cores (v2 cpu.max, v1 cpu.cfs_*); nothing when
/// unlimited.
[[nodiscard]] std::optional<double> cgroupCpuQuota(const CgroupSource& source);

/// The fewest bytes that the process's group and its ancestors have left; nothing when unlimited. Inactive page cache
/// counts as left: the kernel gives it back before it refuses memory, and a group that has read many files would
/// otherwise look full.
[[nodiscard]] std::optional<uint64_t> cgroupMemoryLeft(const CgroupSource& source);

/// MemAvailable of a /proc/meminfo text in bytes; 0 when the text has none.
[[nodiscard]] uint64_t parseMemAvailable(std::string_view meminfo);

/// The first processor of a /proc/cpuinfo text (x86 or arm64); logicalCores and cache sizes stay 0.
[[nodiscard]] CpuIdentity parseCpuInfo(std::string_view cpuinfo);

/// Fills the cache sizes from a folder like /sys/devices/system/cpu/cpu0/cache.
void readCacheSizes(const std::string& folder, CpuIdentity& identity);

/// Whether statfs(2)'s f_type is a file system that may be remote or has remote-like locking.
[[nodiscard]] bool isNetworkFilesystemMagic(uint64_t magic);

}  // namespace ktune::detail
