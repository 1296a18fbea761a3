#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/File.h"
#include "base/Subprocess.h"
#include "base/SystemDetail.h"

namespace ktune {
namespace {

class FileTest : public testing::Test {
 protected:
  const std::string dir_ = *makeTempDirectory(testing::TempDir(), "ktune-file-test");
  void TearDown() override {
    EXPECT_TRUE(removeTree(dir_).isOk());
    EXPECT_FALSE(std::filesystem::exists(dir_));
  }
  [[nodiscard]] size_t entries() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(dir_), {}));
  }
};

TEST_F(FileTest, WritesAndReadsBack) {
  const std::string path = dir_ + "/f";
  for (const std::string& bytes : {std::string(), std::string("a\0b", 3), std::string(3 << 20, 'x')}) {
    ASSERT_TRUE(writeFileAtomically(path, bytes).isOk());
    const Result<std::string> read = readFile(path);
    ASSERT_TRUE(read) << read.error().toString();
    EXPECT_EQ(*read, bytes);
    EXPECT_EQ(entries(), 1u);  // No temporary file stays.
  }
}

TEST_F(FileTest, ReadErrors) {
  ASSERT_TRUE(writeFileAtomically(dir_ + "/f", "12345").isOk());
  struct Case {
    std::string path;
    size_t maxBytes;
    StatusCode code;
  };
  const Case kTable[] = {{dir_ + "/absent", 100, StatusCode::kNotFound},
                         {dir_ + "/f/below", 100, StatusCode::kNotFound},
                         {dir_, 100, StatusCode::kInvalidArgument},
                         {dir_ + "/f", 4, StatusCode::kResourceExhausted},
                         {dir_ + "/f", 0, StatusCode::kResourceExhausted},
                         {"/proc/self/status", 10, StatusCode::kResourceExhausted},
                         {"/dev/zero", 100000, StatusCode::kResourceExhausted}};
  for (const Case& c : kTable) {
    const Result<std::string> read = readFile(c.path, c.maxBytes);
    ASSERT_FALSE(read) << c.path;
    EXPECT_EQ(read.error().code(), c.code) << read.error().toString();
    EXPECT_NE(read.error().message().find(c.path), std::string::npos);
  }
  EXPECT_EQ(readFile(dir_ + "/f", 5).value(), "12345");
  EXPECT_EQ(readFile("/dev/null", 0).value(), "");
  EXPECT_NE(readFile("/proc/self/status")->find("Pid:"), std::string::npos);  // States a size of 0.
}

TEST_F(FileTest, PermissionDenied) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  ASSERT_TRUE(writeFileAtomically(dir_ + "/f", "x").isOk());
  ::chmod((dir_ + "/f").c_str(), 0);
  EXPECT_EQ(readFile(dir_ + "/f").error().code(), StatusCode::kPermissionDenied);
}

TEST_F(FileTest, WriteErrorsLeaveNothing) {
  EXPECT_EQ(writeFileAtomically(dir_ + "/absent/f", "x").code(), StatusCode::kNotFound);
  ASSERT_TRUE(makeDirectories(dir_ + "/folder").isOk());
  EXPECT_EQ(writeFileAtomically(dir_ + "/folder", "x").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FileTest, AFailedWriteKeepsTheOldFile) {
  ASSERT_TRUE(writeFileAtomically(dir_ + "/f", "old").isOk());
  // A full disk, by means of the file size limit.
  Subprocess::Options options;
  options.argv = {*currentProgramPath(), "--child", "overwrite", dir_ + "/f"};
  options.limits.fileBytes = 1000;
  Result<Subprocess> child = Subprocess::spawn(options);
  ASSERT_TRUE(child) << child.error().toString();
  EXPECT_EQ(child->channel().receive(Deadline::after(60)).value(), "resource-exhausted");
  EXPECT_EQ(child->wait(Deadline::after(60))->exitCode, 0);
  EXPECT_EQ(readFile(dir_ + "/f").value(), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FileTest, ReadersSeeTheOldOrTheNewBytes) {
  const std::string path = dir_ + "/f";
  const std::string versions[2] = {std::string(100000, 'a'), std::string(50000, 'b')};
  ASSERT_TRUE(writeFileAtomically(path, versions[0]).isOk());
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(writeFileAtomically(path, versions[i % 2]).isOk());
    done = true;
  });
  while (!done) {
    const Result<std::string> read = readFile(path);
    ASSERT_TRUE(read);
    EXPECT_TRUE(*read == versions[0] || *read == versions[1]);
  }
  writer.join();
}

TEST_F(FileTest, MakeDirectories) {
  ASSERT_TRUE(makeDirectories(dir_ + "/a/b//c/").isOk());
  ASSERT_TRUE(makeDirectories(dir_ + "/a/b/c").isOk());
  ASSERT_TRUE(makeDirectories("/").isOk());
  for (const char* part : {"/a", "/a/b", "/a/b/c"}) {
    struct stat info {};
    ASSERT_EQ(::stat((dir_ + part).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
  }
  ASSERT_TRUE(writeFileAtomically(dir_ + "/file", "x").isOk());
  EXPECT_EQ(makeDirectories(dir_ + "/file").code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(makeDirectories(dir_ + "/file/below").isOk());
  EXPECT_EQ(makeDirectories("").code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(makeDirectories("/proc/ktune").isOk());
}

TEST_F(FileTest, RemoveTree) {
  ASSERT_TRUE(makeDirectories(dir_ + "/t/u").isOk());
  ASSERT_TRUE(writeFileAtomically(dir_ + "/t/u/f", "x").isOk());
  ASSERT_TRUE(writeFileAtomically(dir_ + "/outside", "x").isOk());
  ASSERT_EQ(::symlink((dir_ + "/outside").c_str(), (dir_ + "/t/link").c_str()), 0);
  EXPECT_TRUE(removeTree(dir_ + "/t").isOk());
  EXPECT_TRUE(removeTree(dir_ + "/t").isOk());
  EXPECT_EQ(readFile(dir_ + "/outside").value(), "x");
}

TEST_F(FileTest, TempDirectories) {
  const Result<std::string> a = makeTempDirectory(dir_, "work");
  const Result<std::string> b = makeTempDirectory(dir_, "work");
  ASSERT_TRUE(a && b);
  EXPECT_NE(*a, *b);
  EXPECT_TRUE(a->starts_with(dir_ + "/work-"));
  struct stat info {};
  ASSERT_EQ(::stat(a->c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_EQ(makeTempDirectory(dir_ + "/absent", "x").error().code(), StatusCode::kNotFound);
}

TEST_F(FileTest, Filesystems) {
  EXPECT_FALSE(isNetworkFilesystem("/proc"));
  EXPECT_FALSE(isNetworkFilesystem("/proc/no/such/thing"));
  struct statvfs info {};
  ASSERT_EQ(::statvfs(dir_.c_str(), &info), 0);
  if (info.f_bavail > 0) {
    EXPECT_GT(freeDiskBytes(dir_), 0u);
    EXPECT_GT(freeDiskBytes(dir_ + "/not/yet/there"), 0u);
  }
  const std::pair<uint64_t, bool> kTable[] = {
      {0x6969, true},      {0x517B, true},      {0xFF534D42, true},  {0xFE534D42, true}, {0x0BD00BD0, true},
      {0x47504653, true},  {0x00C36400, true},  {0x65735546, true},  {0x01021997, true}, {0xEF53, false},
      {0x58465342, false}, {0x9123683E, false}, {0x01021994, false}, {0x794C7630, false}};
  for (const auto& [magic, network] : kTable) EXPECT_EQ(detail::isNetworkFilesystemMagic(magic), network) << magic;
}

}  // namespace
}  // namespace ktune
