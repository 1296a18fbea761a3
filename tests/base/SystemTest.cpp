#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/File.h"
#include "base/System.h"
#include "base/SystemDetail.h"

namespace ktune {
namespace {

using Files = std::map<std::string, std::string>;

class CgroupTest : public testing::Test {
 protected:
  // A file system of control groups as it looks under /sys/fs/cgroup.
  const std::string root_ = *makeTempDirectory(testing::TempDir(), "ktune-cgroup-test");
  void TearDown() override { EXPECT_TRUE(removeTree(root_).isOk()); }

  void put(const Files& files) {
    ASSERT_TRUE(removeTree(root_).isOk());
    for (const auto& [path, text] : files) {
      ASSERT_TRUE(makeDirectories(root_ + path.substr(0, path.rfind('/'))).isOk());
      ASSERT_TRUE(writeFileAtomically(root_ + path, text).isOk());
    }
  }
};

// A systemd machine with the unified hierarchy.
const char kMountV2[] =
    "24 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    "31 24 0:27 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
// Docker on a v1 host: each controller is mounted from the container's own group.
const char kMountV1Docker[] =
    "721 720 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro,nosuid master:11 - cgroup cgroup rw,cpu,cpuacct\n"
    "722 720 0:33 /docker/abc /sys/fs/cgroup/memory ro,nosuid master:15 - cgroup cgroup rw,memory\n";
// Both versions side by side, v2 without controllers.
const char kMountHybrid[] =
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

TEST_F(CgroupTest, Samples) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  struct Case {
    const char* name;
    const char* cgroup;
    const char* mounts;
    Files files;
    std::optional<double> cores;
    std::optional<uint64_t> memory;
  };
  const Case kTable[] = {
      {"v2, no limits",
       "0::/user.slice/user-1000.slice\n",
       kMountV2,
       {{"/sys/fs/cgroup/user.slice/user-1000.slice/cpu.max", "max 100000\n"},
        {"/sys/fs/cgroup/user.slice/user-1000.slice/memory.max", "max\n"},
        {"/sys/fs/cgroup/user.slice/user-1000.slice/memory.current", "1048576\n"}},
       {},
       {}},
      {"v2, own limits",
       "0::/job\n",
       kMountV2,
       {{"/sys/fs/cgroup/job/cpu.max", "150000 100000\n"},
        {"/sys/fs/cgroup/job/memory.max", "104857600\n"},
        {"/sys/fs/cgroup/job/memory.current", "41943040\n"}},
       1.5,
       60 * kMiB},
      {"v2, the tightest ancestor counts",
       "0::/pod/a/b\n",
       kMountV2,
       {{"/sys/fs/cgroup/pod/cpu.max", "200000 100000\n"},
        {"/sys/fs/cgroup/pod/a/cpu.max", "max 100000\n"},
        {"/sys/fs/cgroup/pod/a/b/cpu.max", "800000 100000\n"},
        {"/sys/fs/cgroup/pod/memory.max", "10485760\n"},
        {"/sys/fs/cgroup/pod/memory.current", "9437184\n"},
        {"/sys/fs/cgroup/pod/a/b/memory.max", "104857600\n"},
        {"/sys/fs/cgroup/pod/a/b/memory.current", "0\n"}},
       2.0,
       1 * kMiB},
      {"v2, inactive page cache counts as left",
       "0::/job\n",
       kMountV2,
       {{"/sys/fs/cgroup/job/memory.max", "104857600\n"},
        {"/sys/fs/cgroup/job/memory.current", "104857600\n"},
        {"/sys/fs/cgroup/job/memory.stat", "anon 52428800\nfile 52428800\ninactive_file 41943040\nactive_file 1\n"}},
       {},
       40 * kMiB},
      {"v2, container with a cgroup namespace",
       "0::/\n",
       kMountV2,
       {{"/sys/fs/cgroup/cpu.max", "50000 100000\n"},
        {"/sys/fs/cgroup/memory.max", "1048576\n"},
        {"/sys/fs/cgroup/memory.current", "2097152\n"}},
       0.5,
       0},
      {"v1, docker: paths are the host's, mounts the container's",
       "12:memory:/docker/abc\n11:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/system.slice\n",
       kMountV1Docker,
       {{"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "400000\n"},
        {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600\n"},
        {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "94371840\n"},
        {"/sys/fs/cgroup/memory/memory.stat", "inactive_file 0\ntotal_inactive_file 1048576\n"}},
       4.0,
       11 * kMiB},
      {"v1, no limits",
       "4:memory:/\n1:cpu:/\n",
       kMountHybrid,
       {{"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
        {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
        {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "94371840\n"}},
       {},
       {}},
      {"hybrid: v1 below, v2 without controllers",
       "4:memory:/api/x\n1:cpu:/\n0::/\n",
       kMountHybrid,
       {{"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n"},
        {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"},
        {"/sys/fs/cgroup/memory/api/x/memory.limit_in_bytes", "3145728\n"},
        {"/sys/fs/cgroup/memory/api/x/memory.usage_in_bytes", "1048576\n"},
        {"/sys/fs/cgroup/unified/cgroup.procs", ""}},
       3.0,
       2 * kMiB},
      {"a path outside the mount falls back to the mount point",
       "0::/../other\n",
       kMountV2,
       {{"/sys/fs/cgroup/cpu.max", "100000 100000\n"}},
       1.0,
       {}},
      {"a mount point with a blank",
       "0::/job\n",
       "31 24 0:27 / /my\\040groups rw - cgroup2 cgroup2 rw\n",
       {{"/my groups/job/cpu.max", "700000 100000\n"}},
       7.0,
       {}},
      {"nothing there", "", "", {}, {}, {}},
      {"garbage", "0:\nx\n::\n", "a b c\n1 2 3 4 5 6 - cgroup2\n- - -\n", {}, {}, {}},
      {"garbage in the files",
       "0::/job\n",
       kMountV2,
       {{"/sys/fs/cgroup/job/cpu.max", "1 0\n"},
        {"/sys/fs/cgroup/job/memory.max", "\n"},
        {"/sys/fs/cgroup/job/memory.current", "x\n"}},
       {},
       {}},
  };
  for (const Case& c : kTable) {
    put(c.files);
    const detail::CgroupSource source{c.cgroup, c.mounts, root_};
    EXPECT_EQ(detail::cgroupCpuQuota(source), c.cores) << c.name;
    EXPECT_EQ(detail::cgroupMemoryLeft(source), c.memory) << c.name;
  }
}

TEST(System, MemAvailable) {
  EXPECT_EQ(detail::parseMemAvailable("MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:    8192 kB\n"),
            8192u << 10);
  EXPECT_EQ(detail::parseMemAvailable("MemTotal:       16384 kB\n"), 0u);
  EXPECT_EQ(detail::parseMemAvailable(""), 0u);
}

TEST(System, CpuInfoX86) {
  const CpuIdentity id = detail::parseCpuInfo(
      "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
      "model name\t: Intel(R)  Xeon(R) Platinum   8480+ \nstepping\t: 8\n"
      "flags\t\t: fpu vme sse sse2 ht syscall ssse3 fma sse4_1 sse4_2 avx avx2 avx512f amx_bf16 amx_tile vmx fma\n"
      "bugs\t\t: spectre_v1\n\n"
      "processor\t: 1\nvendor_id\t: Other\nmodel name\t: Other\nflags\t\t: avx512_fp16\n");
  EXPECT_EQ(id.vendor, "GenuineIntel");
  EXPECT_EQ(id.model, "Intel(R) Xeon(R) Platinum 8480+");
  EXPECT_EQ(id.family, 6);
  EXPECT_EQ(id.modelNumber, 143);
  EXPECT_EQ(id.stepping, 8);
  EXPECT_EQ(id.features,
            (std::vector<std::string>{"amx_bf16", "amx_tile", "avx", "avx2", "avx512f", "fma", "sse4_1", "sse4_2"}));
  EXPECT_TRUE(id.has("avx2"));
  EXPECT_FALSE(id.has("avx512_fp16"));
  EXPECT_FALSE(id.has("vmx"));
}

TEST(System, CpuInfoArm) {
  const CpuIdentity id = detail::parseCpuInfo(
      "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd evtstrm aes sve bf16 i8mm\n"
      "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\nCPU revision\t: 1\n");
  EXPECT_EQ(id.vendor, "0x41");
  EXPECT_EQ(id.family, 8);
  EXPECT_EQ(id.modelNumber, 0xd4f);
  EXPECT_EQ(id.stepping, 1);
  EXPECT_EQ(id.features, (std::vector<std::string>{"aes", "asimd", "bf16", "i8mm", "sve"}));
}

TEST(System, CacheSizes) {
  const std::string folder = *makeTempDirectory(testing::TempDir(), "ktune-cache-test");
  const char* const kIndexes[][3] = {
      {"1", "Data", "48K"}, {"1", "Instruction", "32K"}, {"2", "Unified", "2048K"}, {"3", "Unified", "105M"}};
  for (int i = 0; i < 4; ++i) {
    const std::string index = folder + "/index" + std::to_string(i);
    ASSERT_TRUE(makeDirectories(index).isOk());
    ASSERT_TRUE(writeFileAtomically(index + "/level", std::string(kIndexes[i][0]) + "\n").isOk());
    ASSERT_TRUE(writeFileAtomically(index + "/type", std::string(kIndexes[i][1]) + "\n").isOk());
    ASSERT_TRUE(writeFileAtomically(index + "/size", std::string(kIndexes[i][2]) + "\n").isOk());
  }
  CpuIdentity id;
  detail::readCacheSizes(folder, id);
  EXPECT_EQ(id.l1Bytes, 48u << 10);
  EXPECT_EQ(id.l2Bytes, 2u << 20);
  EXPECT_EQ(id.l3Bytes, 105u << 20);
  EXPECT_TRUE(removeTree(folder).isOk());
}

TEST(System, ThisMachine) {
  EXPECT_GE(usableCores(), 1);
  EXPECT_GT(availableMemoryBytes(), 0u);
  const CpuIdentity id = readCpuIdentity();
  EXPECT_FALSE(id.vendor.empty());
  EXPECT_EQ(id.logicalCores, usableCores());
  EXPECT_TRUE(std::is_sorted(id.features.begin(), id.features.end()));
}

}  // namespace
}  // namespace ktune
