#include "base/System.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <string_view>

#include "base/File.h"
#include "base/SystemDetail.h"

namespace ktune {

namespace detail {

namespace {

constexpr std::string_view kBlanks = " \t\r\n";

// Instruction set extensions that a compiler may be told to use, under the kernel's names. Flags that generated code
// does not depend on (virtualisation, mitigations) are left out: they would split cache keys for nothing.
constexpr std::string_view kCodegenFeatures[] = {
    // x86
    "sse4_1", "sse4_2", "sse4a", "popcnt", "movbe", "aes", "pclmulqdq", "xsave", "avx", "f16c", "fma", "fma4", "xop",
    "bmi1", "bmi2", "abm", "adx", "avx2", "gfni", "vaes", "vpclmulqdq", "avx_vnni", "avx_vnni_int8", "avx_vnni_int16",
    "avx_ifma", "avx_ne_convert", "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512er", "avx512pf",
    "avx512ifma", "avx512vbmi", "avx512_vbmi2", "avx512_vnni", "avx512_bitalg", "avx512_vpopcntdq", "avx512_bf16",
    "avx512_fp16", "avx512_vp2intersect", "avx512_4vnniw", "avx512_4fmaps", "avx10_1", "avx10_2", "amx_tile",
    "amx_int8", "amx_bf16", "amx_fp16", "amx_complex", "amx_avx512", "amx_fp8", "amx_movrs", "amx_tf32", "apx_f",
    // arm64
    "asimd", "asimdhp", "asimdrdm", "asimddp", "asimdfhm", "fphp", "fcma", "atomics", "sve", "sve2", "svei8mm",
    "svef32mm", "svef64mm", "svebf16", "i8mm", "bf16", "sme", "sme2", "smef16f32", "smeb16f32", "smei8i32"};

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// Calls VISIT with every line until it returns false.
void forEachLine(std::string_view text, const std::function<bool(std::string_view)>& visit) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (!visit(text.substr(0, end))) return;
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
}

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> found;
  while (true) {
    const size_t first = text.find_first_not_of(kBlanks);
    if (first == std::string_view::npos) return found;
    text.remove_prefix(first);
    const size_t length = std::min(text.find_first_of(kBlanks), text.size());
    found.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
}

template <typename T>
std::optional<T> parseNumber(std::string_view text, int base = 10) {
  T value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

// The text of a small kernel file; empty when it can't be read (another kernel, another version of control groups).
std::string kernelFile(const std::string& path) {
  Result<std::string> text = readFile(path, size_t{1} << 26);
  return text ? *std::move(text) : std::string();
}

std::optional<uint64_t> numberInFile(const std::string& path) {
  return parseNumber<uint64_t>(trim(kernelFile(path)));
}

// Mount points in mountinfo write blanks and backslashes as \ooo.
std::string unescapeMountPath(std::string_view text) {
  std::string path;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      if (const auto code = parseNumber<unsigned>(text.substr(i + 1, 3), 8); code && *code < 256) {
        path.push_back(static_cast<char>(*code));
        i += 3;
        continue;
      }
    }
    path.push_back(text[i]);
  }
  return path;
}

bool listHas(std::string_view commaList, std::string_view item) {
  while (true) {
    const size_t comma = commaList.find(',');
    if (commaList.substr(0, comma) == item) return true;
    if (comma == std::string_view::npos) return false;
    commaList.remove_prefix(comma + 1);
  }
}

// The folders of the process's group and its ancestors in one hierarchy, leaf first: limits of all of them apply.
// CONTROLLER is a v1 controller ("memory"), or empty for the v2 hierarchy.
std::vector<std::string> groupFolders(const CgroupSource& source, std::string_view controller) {
  // hierarchy-ID:controllers:path; the v2 hierarchy is 0 and has no controllers.
  std::string group;
  bool member = false;
  forEachLine(source.procSelfCgroup, [&](std::string_view line) {
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) return true;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    member = controller.empty() ? controllers.empty() : listHas(controllers, controller);
    if (member) group = line.substr(second + 1);
    return !member;
  });
  if (!member) return {};

  // ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [TAGS...] - TYPE DEVICE SUPEROPTIONS
  std::vector<std::string> folders;
  forEachLine(source.procMountinfo, [&](std::string_view line) {
    const std::vector<std::string_view> fields = words(line);
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 6 || fields.end() - dash < 4) return true;
    const bool matches =
        controller.empty() ? dash[1] == "cgroup2" : dash[1] == "cgroup" && listHas(dash[3], controller);
    if (!matches) return true;
    const std::string mountRoot = unescapeMountPath(fields[3]);
    const std::string mountPoint = source.root + unescapeMountPath(fields[4]);
    // The mount shows the hierarchy from its root on: in a container this is often the container's own group, while
    // /proc/self/cgroup tells the path from the host's root. Where the two do not fit (a namespace writes "/.."),
    // the mount point is the nearest that can be seen.
    std::string below;
    if (mountRoot == "/") {
      below = group;
    } else if (group.starts_with(mountRoot) && (group.size() == mountRoot.size() || group[mountRoot.size()] == '/')) {
      below = group.substr(mountRoot.size());
    }
    if (below.find("/..") != std::string::npos) below.clear();
    while (!below.empty() && below != "/") {
      folders.push_back(mountPoint + below);
      below.erase(below.rfind('/'));
    }
    folders.push_back(mountPoint);
    return false;
  });
  return folders;
}

template <typename T>
void lower(std::optional<T>& least, std::optional<T> value) {
  if (value && (!least || *value < *least)) least = value;
}

std::optional<double> quotaV2(const std::string& folder) {
  const std::string text = kernelFile(folder + "/cpu.max");  // "QUOTA PERIOD" or "max PERIOD"
  const std::vector<std::string_view> fields = words(text);
  if (fields.size() != 2) return std::nullopt;
  const auto quota = parseNumber<uint64_t>(fields[0]);
  const auto period = parseNumber<uint64_t>(fields[1]);
  if (!quota || !period || *period == 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

std::optional<double> quotaV1(const std::string& folder) {
  const auto quota = numberInFile(folder + "/cpu.cfs_quota_us");  // -1, so no number here: unlimited
  const auto period = numberInFile(folder + "/cpu.cfs_period_us");
  if (!quota || !period || *quota == 0 || *period == 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

struct MemoryFiles {
  const char* limit;
  const char* used;
  const char* inactiveFile;  // its name in memory.stat
};
constexpr MemoryFiles kMemoryV2 = {"/memory.max", "/memory.current", "inactive_file"};
constexpr MemoryFiles kMemoryV1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"};
// v1 writes "unlimited" as the largest number of pages; nothing of this size is a real limit.
constexpr uint64_t kUnlimitedBytes = uint64_t{1} << 60;

std::optional<uint64_t> memoryLeft(const std::string& folder, const MemoryFiles& files) {
  const auto limit = numberInFile(folder + files.limit);  // v2's "max" is no number: unlimited
  const auto used = numberInFile(folder + files.used);
  if (!limit || !used || *limit >= kUnlimitedBytes) return std::nullopt;
  uint64_t reclaimable = 0;
  forEachLine(kernelFile(folder + "/memory.stat"), [&](std::string_view line) {
    const std::vector<std::string_view> fields = words(line);
    if (fields.size() != 2 || fields[0] != files.inactiveFile) return true;
    reclaimable = parseNumber<uint64_t>(fields[1]).value_or(0);
    return false;
  });
  const uint64_t held = *used - std::min(*used, reclaimable);
  return *limit - std::min(*limit, held);
}

}  // namespace

CgroupSource readCgroupSource() {
  return {kernelFile("/proc/self/cgroup"), kernelFile("/proc/self/mountinfo"), ""};
}

std::optional<double> cgroupCpuQuota(const CgroupSource& source) {
  std::optional<double> least;
  for (const std::string& folder : groupFolders(source, "")) lower(least, quotaV2(folder));
  for (const std::string& folder : groupFolders(source, "cpu")) lower(least, quotaV1(folder));
  return least;
}

std::optional<uint64_t> cgroupMemoryLeft(const CgroupSource& source) {
  std::optional<uint64_t> least;
  for (const std::string& folder : groupFolders(source, "")) lower(least, memoryLeft(folder, kMemoryV2));
  for (const std::string& folder : groupFolders(source, "memory")) lower(least, memoryLeft(folder, kMemoryV1));
  return least;
}

uint64_t parseMemAvailable(std::string_view meminfo) {
  uint64_t bytes = 0;
  forEachLine(meminfo, [&](std::string_view line) {
    const std::vector<std::string_view> fields = words(line);
    if (fields.size() < 2 || fields[0] != "MemAvailable:") return true;
    bytes = parseNumber<uint64_t>(fields[1]).value_or(0) * 1024;  // its "kB" are KiB
    return false;
  });
  return bytes;
}

CpuIdentity parseCpuInfo(std::string_view cpuinfo) {
  CpuIdentity identity;
  const auto toInt = [](std::string_view text) {
    const bool hex = text.starts_with("0x");
    return parseNumber<int>(hex ? text.substr(2) : text, hex ? 16 : 10).value_or(0);
  };
  bool any = false;
  forEachLine(cpuinfo, [&](std::string_view line) {
    const size_t colon = line.find(':');
    // A blank line ends the first processor.
    if (colon == std::string_view::npos) return !(any && trim(line).empty());
    any = true;
    const std::string_view name = trim(line.substr(0, colon));
    const std::string_view value = trim(line.substr(colon + 1));
    if (name == "vendor_id" || name == "CPU implementer") {
      identity.vendor = value;
    } else if (name == "model name") {
      for (const std::string_view word : words(value)) {
        if (!identity.model.empty()) identity.model.push_back(' ');
        identity.model.append(word);
      }
    } else if (name == "cpu family" || name == "CPU architecture") {
      identity.family = toInt(value);
    } else if (name == "model" || name == "CPU part") {
      identity.modelNumber = toInt(value);
    } else if (name == "stepping" || name == "CPU revision") {
      identity.stepping = toInt(value);
    } else if (name == "flags" || name == "Features") {
      for (const std::string_view flag : words(value)) {
        if (std::find(std::begin(kCodegenFeatures), std::end(kCodegenFeatures), flag) != std::end(kCodegenFeatures))
          identity.features.emplace_back(flag);
      }
    }
    return true;
  });
  std::sort(identity.features.begin(), identity.features.end());
  identity.features.erase(std::unique(identity.features.begin(), identity.features.end()), identity.features.end());
  return identity;
}

void readCacheSizes(const std::string& folder, CpuIdentity& identity) {
  for (int index = 0;; ++index) {
    const std::string cache = folder + "/index" + std::to_string(index);
    const auto level = numberInFile(cache + "/level");
    if (!level) return;
    if (trim(kernelFile(cache + "/type")) == "Instruction") continue;
    const std::string text = kernelFile(cache + "/size");  // "48K"
    std::string_view size = trim(text);
    uint64_t unit = 1;
    if (size.ends_with('K')) unit = uint64_t{1} << 10;
    if (size.ends_with('M')) unit = uint64_t{1} << 20;
    if (unit != 1) size.remove_suffix(1);
    const uint64_t bytes = parseNumber<uint64_t>(size).value_or(0) * unit;
    if (*level == 1) identity.l1Bytes = bytes;
    if (*level == 2) identity.l2Bytes = bytes;
    if (*level == 3) identity.l3Bytes = bytes;
  }
}

bool isNetworkFilesystemMagic(uint64_t magic) {
  // linux/magic.h, and the file systems' own sources where it lacks them.
  switch (magic) {
    case 0x6969:      // NFS
    case 0x517B:      // SMB
    case 0xFF534D42:  // CIFS
    case 0xFE534D42:  // SMB2
    case 0x0BD00BD0:  // Lustre
    case 0x47504653:  // GPFS
    case 0x00C36400:  // Ceph
    case 0x65735546:  // FUSE
    case 0x01021997:  // 9p
      return true;
    default:
      return false;
  }
}

}  // namespace detail

int usableCores() {
  // Kernels with more processors than the mask holds say EINVAL; 1 << 16 is beyond any.
  constexpr int kMaxCpus = 1 << 16;
  int cores = 1;
  std::vector<unsigned char> mask(CPU_ALLOC_SIZE(kMaxCpus));
  auto* const set = reinterpret_cast<cpu_set_t*>(mask.data());
  if (::sched_getaffinity(0, mask.size(), set) == 0) {
    cores = CPU_COUNT_S(mask.size(), set);
  } else if (const long online = ::sysconf(_SC_NPROCESSORS_ONLN); online > 0) {
    cores = static_cast<int>(online);
  }
  // Rounded up: a quota of 1.5 cores keeps two threads busy better than one.
  if (const auto quota = detail::cgroupCpuQuota(detail::readCgroupSource()); quota && *quota < cores)
    cores = static_cast<int>(std::ceil(*quota));
  return std::max(cores, 1);
}

uint64_t availableMemoryBytes() {
  const uint64_t machine = detail::parseMemAvailable(detail::kernelFile("/proc/meminfo"));
  const auto group = detail::cgroupMemoryLeft(detail::readCgroupSource());
  if (!group) return machine;
  return machine == 0 ? *group : std::min(machine, *group);
}

bool CpuIdentity::has(const char* feature) const {
  return std::binary_search(features.begin(), features.end(), std::string_view(feature));
}

CpuIdentity readCpuIdentity() {
  CpuIdentity identity = detail::parseCpuInfo(detail::kernelFile("/proc/cpuinfo"));
  identity.logicalCores = usableCores();
  detail::readCacheSizes("/sys/devices/system/cpu/cpu0/cache", identity);
  // Some virtual machines hide sysfs' caches; the C library asks the processor itself.
  const auto fallback = [](uint64_t& bytes, int name) {
    if (const long value = bytes == 0 ? ::sysconf(name) : 0; value > 0) bytes = static_cast<uint64_t>(value);
  };
  fallback(identity.l1Bytes, _SC_LEVEL1_DCACHE_SIZE);
  fallback(identity.l2Bytes, _SC_LEVEL2_CACHE_SIZE);
  fallback(identity.l3Bytes, _SC_LEVEL3_CACHE_SIZE);
  return identity;
}

}  // namespace ktune
