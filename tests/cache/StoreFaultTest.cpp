// The store when processes are killed, disks are full and others own it. Children are this program started again with
// one of the Child tests, since RocksDB does not survive a fork.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>

#include "base/File.h"
#include "base/Log.h"
#include "base/Subprocess.h"
#include "cache/SampleRecords.h"
#include "cache/store/Store.h"

namespace ktune::cache {
namespace {

using namespace testing;

constexpr char kFolderVariable[] = "KTUNE_TEST_STORE_CHILD";
constexpr char kFirstVariable[] = "KTUNE_TEST_STORE_FIRST";

/// Puts records for ever, and says the columns of each on the channel once put() has returned.
TEST(Child, DISABLED_Writer) {
  const char* folder = std::getenv(kFolderVariable);
  const char* first = std::getenv(kFirstVariable);
  ASSERT_TRUE(folder && first);
  FrameChannel channel(UniqueFd(Subprocess::kChannelFd));
  Result<std::unique_ptr<Store>> store = openRocksStore({folder, false, true});
  ASSERT_TRUE(store.has_value()) << store.error().message();
  ASSERT_TRUE(channel.send("open").isOk());
  for (int64_t columns = std::atoll(first);; ++columns) {
    if (!(*store)->put(sampleRecord(columns, 1, 3000)).isOk()) break;
    if (!channel.send(std::to_string(columns)).isOk()) break;
  }
}

/// Opens the store, says so and waits to be killed.
TEST(Child, DISABLED_Owner) {
  const char* folder = std::getenv(kFolderVariable);
  ASSERT_TRUE(folder);
  FrameChannel channel(UniqueFd(Subprocess::kChannelFd));
  Result<std::unique_ptr<Store>> store = openRocksStore({folder, false, true});
  ASSERT_TRUE(store.has_value()) << store.error().message();
  ASSERT_TRUE((*store)->put(sampleRecord()).isOk());
  ASSERT_TRUE(channel.send("open").isOk());
  static_cast<void>(channel.receive());
}

/// Fills a disk or reaches the file size limit.
TEST(Child, DISABLED_Filler) {
  const char* folder = std::getenv(kFolderVariable);
  ASSERT_TRUE(folder);
  ::signal(SIGXFSZ, SIG_IGN);
  FrameChannel channel(UniqueFd(Subprocess::kChannelFd));
  Result<std::unique_ptr<Store>> store = openRocksStore({folder, false, true});
  ASSERT_TRUE(store.has_value()) << store.error().message();
  for (int64_t columns = 1; columns < 1000; ++columns) {
    Status status = (*store)->put(sampleRecord(columns, 1, 100000));
    ASSERT_TRUE(channel.send(status.isOk() ? std::to_string(columns) : status.toString()).isOk());
    if (status.isOk()) continue;
    // What was stored is still served, before and after closing.
    Record record = sampleRecord(1, 1, 100000);
    Result<std::optional<Record>> got = (*store)->get(record.key, record.bucketIndex);
    ASSERT_TRUE(channel.send(got && *got && **got == record ? "served" : "lost").isOk());
    Result<std::string> room = channel.receive();
    ASSERT_TRUE(room.has_value()) << room.error().message();
    if (*room != "grown") return;
    // RocksDB looks for free space every five seconds.
    for (Deadline patience = Deadline::after(20); !(status = (*store)->put(record)).isOk() && !patience.passed();) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    ASSERT_TRUE(channel.send(status.toString()).isOk());
    return;
  }
}

class StoreFault : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::string> made = makeTempDirectory(::testing::TempDir(), "fault");
    ASSERT_TRUE(made.has_value()) << made.error().message();
    folder_ = *made;
    path_ = folder_ + "/cache";
  }
  void TearDown() override { EXPECT_TRUE(removeTree(folder_).isOk()); }

  Result<Subprocess> child(const std::string& test, int64_t first = 1, uint64_t fileBytes = 0) {
    Result<std::string> self = currentProgramPath();
    if (!self) return self.error();
    Subprocess::Options options;
    options.argv = {*self, "--gtest_filter=Child.DISABLED_" + test, "--gtest_also_run_disabled_tests"};
    options.extraEnvironment = {std::string(kFolderVariable) + "=" + path_,
                                std::string(kFirstVariable) + "=" + std::to_string(first)};
    options.limits.fileBytes = fileBytes;
    return Subprocess::spawn(options);
  }

  std::string folder_, path_;
};

constexpr double kPatience = 60;

TEST_F(StoreFault, NothingAcknowledgedIsLostToAKill) {
  std::mt19937_64 random(std::random_device{}());
  int64_t next = 1, acknowledged = 0;
  constexpr int kKills = 20;
  for (int kill = 0; kill < kKills; ++kill) {
    Result<Subprocess> writer = child("Writer", next);
    ASSERT_TRUE(writer.has_value()) << writer.error().message();
    Result<std::string> opened = writer->channel().receive(Deadline::after(kPatience));
    ASSERT_TRUE(opened && *opened == "open") << writer->standardError();
    std::thread killer([&, wait = std::chrono::microseconds(random() % 60000)] {
      std::this_thread::sleep_for(wait);
      ::kill(writer->pid(), SIGKILL);
    });
    int64_t last = next - 1;
    while (Result<std::string> frame = writer->channel().receive(Deadline::after(kPatience))) {
      last = std::atoll(frame->c_str());
      ++acknowledged;
    }
    killer.join();
    writer->kill();

    Result<std::unique_ptr<Store>> store = openRocksStore({path_, false, false});
    ASSERT_TRUE(store.has_value()) << store.error().message();
    for (int64_t columns = 1; columns <= last; ++columns) {
      Record record = sampleRecord(columns, 1, 3000);
      Result<std::optional<Record>> got = (*store)->get(record.key, record.bucketIndex);
      ASSERT_TRUE(got && *got) << "record " << columns << " of " << last << " is lost after kill " << kill;
      ASSERT_EQ(**got, record);
    }
    EXPECT_EQ((*store)->stats().quarantined, 0);
    next = last + 1;
  }
  EXPECT_GT(acknowledged, 0);
  RecordProperty("acknowledged", std::to_string(acknowledged));
}

TEST_F(StoreFault, ASecondOpenerIsToldWhoOwnsIt) {
  Result<Subprocess> owner = child("Owner");
  ASSERT_TRUE(owner.has_value()) << owner.error().message();
  ASSERT_TRUE(owner->channel().receive(Deadline::after(kPatience)).has_value()) << owner->standardError();

  Result<std::unique_ptr<Store>> second = openRocksStore({path_, false, true});
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), StatusCode::kUnavailable) << second.error().toString();
  EXPECT_NE(second.error().message().find("process " + std::to_string(owner->pid()) + " ("), std::string::npos)
      << second.error().message();
  EXPECT_NE(second.error().message().find("wait for it or give another --cache"), std::string::npos);

  Result<std::unique_ptr<Store>> reader = openRocksStore({path_, true, false});
  ASSERT_TRUE(reader.has_value()) << reader.error().message();
  Record record = sampleRecord();
  Result<std::optional<Record>> got = (*reader)->get(record.key, record.bucketIndex);
  EXPECT_TRUE(got && *got && **got == record);
  EXPECT_TRUE((*reader)->close().isOk());

  // A killed owner leaves no lock.
  owner->kill();
  EXPECT_TRUE(openRocksStore({path_, false, true}).has_value());
}

/// A small file system of one's own, where the machine lets us have one.
class TinyDisk {
 public:
  explicit TinyDisk(std::string path) : path_(std::move(path)) {
    mounted_ = makeDirectories(path_).isOk() && ::mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=2m") == 0;
  }
  ~TinyDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  [[nodiscard]] bool mounted() const { return mounted_; }
  [[nodiscard]] bool grow() const { return ::mount("tmpfs", path_.c_str(), "tmpfs", MS_REMOUNT, "size=32m") == 0; }

 private:
  std::string path_;
  bool mounted_ = false;
};

/// Runs Filler until it fails; GROW makes room, where it can.
void fill(Result<Subprocess> filler, const std::string& path, const std::function<bool()>& grow) {
  ASSERT_TRUE(filler.has_value()) << filler.error().message();
  int64_t stored = 0;
  std::string failure;
  while (failure.empty()) {
    Result<std::string> frame = filler->channel().receive(Deadline::after(kPatience));
    ASSERT_TRUE(frame.has_value()) << frame.error().message() << filler->standardError();
    if (*frame == std::to_string(stored + 1)) {
      ++stored;
    } else {
      failure = *frame;
    }
  }
  EXPECT_GT(stored, 2);
  EXPECT_EQ(failure.substr(0, 18), "resource-exhausted") << failure;
  EXPECT_NE(failure.find(path), std::string::npos) << failure;
  EXPECT_NE(failure.find("bytes"), std::string::npos) << failure;
  Result<std::string> served = filler->channel().receive(Deadline::after(kPatience));
  ASSERT_TRUE(served.has_value()) << filler->standardError();
  EXPECT_EQ(*served, "served");
  bool grown = grow();
  ASSERT_TRUE(filler->channel().send(grown ? "grown" : "full").isOk());
  if (grown) {
    Result<std::string> again = filler->channel().receive(Deadline::after(kPatience));
    ASSERT_TRUE(again.has_value()) << filler->standardError();
    EXPECT_EQ(*again, "ok");
  }
  Result<ExitInfo> exit = filler->wait(Deadline::after(kPatience));
  ASSERT_TRUE(exit.has_value()) << exit.error().message();
  EXPECT_TRUE(exit->exited && exit->exitCode == 0) << exit->describe() << filler->standardError();

  Result<std::unique_ptr<Store>> store = openRocksStore({path, false, false});
  ASSERT_TRUE(store.has_value()) << store.error().toString();
  for (int64_t columns = 1; columns <= stored; ++columns) {
    Record record = sampleRecord(columns, 1, 100000);
    Result<std::optional<Record>> got = (*store)->get(record.key, record.bucketIndex);
    ASSERT_TRUE(got && *got && **got == record) << columns;
  }
  EXPECT_TRUE((*store)->close().isOk());
}

TEST_F(StoreFault, AFullDiskIsReportedAndWhatWasStoredSurvives) {
  TinyDisk disk(path_);
  if (!disk.mounted()) GTEST_SKIP() << "this user may not mount a file system of its own";
  fill(child("Filler"), path_, [&] { return disk.grow(); });
}

TEST_F(StoreFault, AFileSizeLimitIsReportedAndWhatWasStoredSurvives) {
  fill(child("Filler", 1, 1 << 20), path_, [] { return false; });
}

TEST_F(StoreFault, AStoreIsNotUsedAfterFork) {
  Result<std::unique_ptr<Store>> store = openRocksStore({path_, false, true});
  ASSERT_TRUE(store.has_value()) << store.error().message();
  pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    StatusCode code = (*store)->put(sampleRecord()).code();
    store->reset();
    ::_exit(code == StatusCode::kUnavailable ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE((*store)->put(sampleRecord()).isOk());
}

}  // namespace
}  // namespace ktune::cache
