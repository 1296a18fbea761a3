#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "base/File.h"
#include "base/Log.h"
#include "cache/SampleRecords.h"
#include "cache/store/Store.h"

namespace ktune::cache {
namespace {

using namespace testing;
namespace fs = std::filesystem;

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::string> made = makeTempDirectory(::testing::TempDir(), "store");
    ASSERT_TRUE(made.has_value()) << made.error().message();
    folder_ = *made;
    path_ = folder_ + "/cache";
    setLogSink([this](LogLevel level, std::string_view message) {
      if (level >= LogLevel::kWarning) warnings_.emplace_back(message);
    });
  }
  void TearDown() override {
    setLogSink({});
    EXPECT_TRUE(removeTree(folder_).isOk());
  }
  std::unique_ptr<Store> open(bool readOnly = false) {
    Result<std::unique_ptr<Store>> store = openRocksStore({path_, readOnly, true});
    EXPECT_TRUE(store.has_value()) << (store ? "" : store.error().toString());
    return store ? std::move(*store) : nullptr;
  }
  Status openError(StoreOptions options) {
    Result<std::unique_ptr<Store>> store = openRocksStore(options);
    return store.status();
  }
  /// Runs BODY on the database itself.
  template <typename Body>
  void raw(Body body) {
    rocksdb::DB* db = nullptr;
    rocksdb::Status s = rocksdb::DB::Open(rocksdb::Options(), path_ + "/db", &db);
    ASSERT_TRUE(s.ok()) << s.ToString();
    std::unique_ptr<rocksdb::DB> owned(db);
    body(*owned);
  }
  static std::string under(const Record& r) {
    char bucket[9];
    std::snprintf(bucket, sizeof bucket, "%08x", static_cast<unsigned>(r.bucketIndex));
    return "r/" + r.key.hex() + "/" + bucket;
  }

  std::string folder_, path_;
  std::vector<std::string> warnings_;
};

void expectHolds(Store& store, const Record& record) {
  Result<std::optional<Record>> got = store.get(record.key, record.bucketIndex);
  ASSERT_TRUE(got.has_value()) << got.error().message();
  ASSERT_TRUE(got->has_value());
  EXPECT_EQ(**got, record);
}

void expectMisses(Store& store, const Record& record) {
  Result<std::optional<Record>> got = store.get(record.key, record.bucketIndex);
  ASSERT_TRUE(got.has_value()) << got.error().message();
  EXPECT_FALSE(got->has_value());
}

/// What every store does.
void exercise(Store& store) {
  Record a = sampleRecord(4096, 0), b = sampleRecord(4096, 2), c = sampleRecord(512, 1);
  expectMisses(store, a);
  for (const Record* r : {&a, &b, &c}) ASSERT_TRUE(store.put(*r).isOk()) << store.put(*r).message();
  for (const Record* r : {&a, &b, &c}) expectHolds(store, *r);
  a.decision = Decision::kDefault;
  ASSERT_TRUE(store.put(a).isOk());
  expectHolds(store, a);
  EXPECT_EQ(store.stats().records, 3);
  EXPECT_EQ(store.stats().bytes, static_cast<int64_t>(a.bytes().size() + b.bytes().size() + c.bytes().size()));

  std::vector<std::pair<op::Key, int32_t>> seen;
  ASSERT_TRUE(store
                  .forEach([&](const Record& r) {
                    seen.emplace_back(r.key, r.bucketIndex);
                    // A visitor may use the store.
                    expectHolds(store, r);
                    return true;
                  })
                  .isOk());
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  int visits = 0;
  ASSERT_TRUE(store.forEach([&](const Record&) { return ++visits < 2; }).isOk());
  EXPECT_EQ(visits, 2);

  ASSERT_TRUE(store.remove(b.key, b.bucketIndex).isOk());
  ASSERT_TRUE(store.remove(b.key, b.bucketIndex).isOk()) << "removing nothing is fine";
  expectMisses(store, b);
  expectHolds(store, a);

  Record wrong = sampleRecord();
  wrong.hardware = "another device";
  EXPECT_EQ(store.put(wrong).code(), StatusCode::kInvalidArgument);
  wrong = sampleRecord();
  wrong.bucket.high[0] += 1;
  EXPECT_EQ(store.put(wrong).code(), StatusCode::kInvalidArgument);

  ASSERT_TRUE(store.close().isOk());
  ASSERT_TRUE(store.close().isOk());
  EXPECT_EQ(store.put(a).code(), StatusCode::kUnavailable);
  EXPECT_EQ(store.get(a.key, 0).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store.forEach([](const Record&) { return true; }).code(), StatusCode::kUnavailable);
}

TEST_F(StoreTest, MemoryStore) {
  std::unique_ptr<Store> store = makeMemoryStore();
  EXPECT_EQ(store->location(), "memory");
  exercise(*store);
}

TEST_F(StoreTest, RocksStore) {
  std::unique_ptr<Store> store = open();
  ASSERT_TRUE(store);
  EXPECT_EQ(store->location(), path_);
  exercise(*store);
  EXPECT_TRUE(warnings_.empty()) << warnings_[0];
}

TEST_F(StoreTest, RecordsSurviveReopening) {
  for (int64_t n = 1; n <= 3; ++n) {
    std::unique_ptr<Store> store = open();
    ASSERT_TRUE(store);
    ASSERT_TRUE(store->put(sampleRecord(n * 128)).isOk());
    for (int64_t k = 1; k <= n; ++k) expectHolds(*store, sampleRecord(k * 128));
  }
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(::stat((path_ + "/db").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  for (const fs::directory_entry& entry : fs::directory_iterator(path_ + "/db")) {
    EXPECT_NE(entry.path().filename().string().substr(0, 3), "LOG") << "an information log was written";
  }
}

TEST_F(StoreTest, OpeningIsFast) {
  { ASSERT_TRUE(open()->put(sampleRecord()).isOk()); }
  auto start = std::chrono::steady_clock::now();
  {
    std::unique_ptr<Store> store = open();
    ASSERT_TRUE(store);
    expectHolds(*store, sampleRecord());
  }
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  RecordProperty("seconds", std::to_string(seconds));
  EXPECT_LT(seconds, 0.5);
}

TEST_F(StoreTest, ManyRecordsAreVisitedInBatches) {
  std::unique_ptr<Store> store = open();
  ASSERT_TRUE(store);
  std::set<std::string> keys;
  for (int64_t n = 1; n <= 150; ++n) {
    Record r = sampleRecord(n);
    ASSERT_TRUE(store->put(r).isOk());
    keys.insert(r.key.hex());
  }
  std::vector<std::string> seen;
  ASSERT_TRUE(store
                  ->forEach([&](const Record& r) {
                    seen.push_back(r.key.hex());
                    return true;
                  })
                  .isOk());
  EXPECT_EQ(seen, std::vector<std::string>(keys.begin(), keys.end()));
}

TEST_F(StoreTest, ACorruptValueIsAMissAndQuarantined) {
  Record good = sampleRecord(128), flipped = sampleRecord(256), misplaced = sampleRecord(512);
  {
    std::unique_ptr<Store> store = open();
    for (const Record* r : {&good, &flipped, &misplaced}) ASSERT_TRUE(store->put(*r).isOk());
  }
  raw([&](rocksdb::DB& db) {
    std::string bytes = flipped.bytes();
    bytes[bytes.size() / 2] ^= 4;
    ASSERT_TRUE(db.Put({}, under(flipped), bytes).ok());
    ASSERT_TRUE(db.Put({}, under(misplaced), good.bytes()).ok());
  });
  {
    std::unique_ptr<Store> reader = open(/*readOnly=*/true);
    expectMisses(*reader, flipped);
    expectMisses(*reader, flipped);
    EXPECT_EQ(warnings_.size(), 1u);
    EXPECT_EQ(reader->stats().quarantined, 1);
    EXPECT_EQ(reader->stats().records, 2);
  }
  warnings_.clear();
  std::unique_ptr<Store> store = open();
  expectMisses(*store, flipped);
  expectMisses(*store, flipped);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find(flipped.key.hex()), std::string::npos) << warnings_[0];
  int visits = 0;
  ASSERT_TRUE(store->forEach([&](const Record&) { return ++visits > 0; }).isOk());
  EXPECT_EQ(visits, 1);
  EXPECT_EQ(warnings_.size(), 2u) << "the misplaced one was found on the way";
  EXPECT_EQ(store->stats().records, 1);
  EXPECT_EQ(store->stats().quarantined, 2);
  expectHolds(*store, good);
  ASSERT_TRUE(store->put(flipped).isOk());
  expectHolds(*store, flipped);
  ASSERT_TRUE(store->close().isOk());
  raw([&](rocksdb::DB& db) {
    std::string kept;
    EXPECT_TRUE(db.Get({}, "q/" + under(misplaced).substr(2), &kept).ok());
    EXPECT_EQ(kept, good.bytes());
  });
}

TEST_F(StoreTest, ANewerRecordIsAMissAndKept) {
  Record record = sampleRecord();
  std::string bytes = record.bytes();
  bytes[8] = 9;
  bytes.resize(bytes.size() - 8);
  ByteWriter w;
  w.raw(bytes);
  w.u64(checksumOf(bytes));
  { open(); }
  raw([&](rocksdb::DB& db) { ASSERT_TRUE(db.Put({}, under(record), w.bytes()).ok()); });
  std::unique_ptr<Store> store = open();
  expectMisses(*store, record);
  EXPECT_EQ(store->stats().records, 1);
  EXPECT_EQ(store->stats().quarantined, 0);
}

TEST_F(StoreTest, ANewerSchemaIsRefused) {
  { open(); }
  raw([](rocksdb::DB& db) { ASSERT_TRUE(db.Put({}, "m/version", "2").ok()); });
  for (bool readOnly : {false, true}) {
    Status status = openError({path_, readOnly, true});
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find("newer ktune"), std::string::npos) << status.message();
  }
}

TEST_F(StoreTest, ThisProcessOpensItOnce) {
  std::unique_ptr<Store> store = open();
  ASSERT_TRUE(store);
  Status status = openError({path_, false, true});
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.toString();
  EXPECT_NE(status.message().find("open in this process already"), std::string::npos) << status.message();
  EXPECT_TRUE(store->put(sampleRecord()).isOk());
  ASSERT_TRUE(store->close().isOk());
  EXPECT_TRUE(open()->put(sampleRecord()).isOk());
}

TEST_F(StoreTest, ReadersNeedNoLockAndNeverWrite) {
  std::unique_ptr<Store> owner = open();
  ASSERT_TRUE(owner->put(sampleRecord()).isOk());
  std::unique_ptr<Store> reader = open(/*readOnly=*/true);
  ASSERT_TRUE(reader);
  expectHolds(*reader, sampleRecord());
  EXPECT_EQ(reader->put(sampleRecord()).code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(reader->remove(sampleRecord().key, 1).code(), StatusCode::kPermissionDenied);
  EXPECT_TRUE(reader->close().isOk());
  EXPECT_TRUE(owner->put(sampleRecord(512)).isOk());
}

TEST_F(StoreTest, WhatIsNotThereIsNotFound) {
  EXPECT_EQ(openError({path_, true, true}).code(), StatusCode::kNotFound);
  EXPECT_EQ(openError({path_, false, false}).code(), StatusCode::kNotFound);
  EXPECT_FALSE(fs::exists(path_)) << "nothing was made";
  { open(); }
  EXPECT_TRUE(openError({path_, false, false}).isOk());
}

TEST_F(StoreTest, FilesAndUnwritableFolders) {
  EXPECT_EQ(openError({"", false, true}).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(writeFileAtomically(folder_ + "/file", "x").isOk());
  EXPECT_EQ(openError({folder_ + "/file", false, true}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(openError({folder_ + "/file/cache", false, true}).code(), StatusCode::kInvalidArgument);
  if (::geteuid() == 0) {
    // Permissions do not stop root; /proc lets nobody make a folder.
    Status status = openError({"/proc/ktune-cache", false, true});
    EXPECT_FALSE(status.isOk());
    EXPECT_NE(status.message().find("/proc/ktune-cache"), std::string::npos) << status.message();
    return;
  }
  ASSERT_TRUE(makeDirectories(folder_ + "/locked").isOk());
  ASSERT_EQ(::chmod((folder_ + "/locked").c_str(), 0500), 0);
  Status status = openError({folder_ + "/locked/cache", false, true});
  EXPECT_EQ(status.code(), StatusCode::kPermissionDenied) << status.toString();
  ASSERT_EQ(::chmod((folder_ + "/locked").c_str(), 0700), 0);
}

TEST_F(StoreTest, ADamagedDatabaseIsRepairedAndKeptAside) {
  struct {
    const char* what;
    std::function<void(const fs::path&)> damage;
    bool recordsSurvive;
  } cases[] = {
      {"CURRENT is garbage", [](const fs::path& db) { std::ofstream(db / "CURRENT") << "nonsense"; }, true},
      {"CURRENT is missing", [](const fs::path& db) { fs::remove(db / "CURRENT"); }, true},
      {"the manifest is cut",
       [](const fs::path& db) {
         for (const fs::directory_entry& e : fs::directory_iterator(db)) {
           if (e.path().filename().string().starts_with("MANIFEST")) fs::resize_file(e.path(), 10);
         }
       },
       true},
      {"the manifest is missing",
       [](const fs::path& db) {
         for (const fs::directory_entry& e : fs::directory_iterator(db)) {
           if (e.path().filename().string().starts_with("MANIFEST")) fs::remove(e.path());
         }
       },
       true},
      {"the tables are missing",
       [](const fs::path& db) {
         for (const fs::directory_entry& e : fs::directory_iterator(db)) {
           if (e.path().extension() == ".sst") fs::remove(e.path());
         }
       },
       false},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    ASSERT_TRUE(removeTree(path_).isOk());
    { ASSERT_TRUE(open()->put(sampleRecord()).isOk()); }
    c.damage(path_ + "/db");
    if (fs::exists(path_ + "/db/CURRENT")) {
      EXPECT_EQ(openError({path_, true, true}).code(), StatusCode::kCorrupt);
    }
    warnings_.clear();
    std::unique_ptr<Store> store = open();
    ASSERT_TRUE(store);
    ASSERT_EQ(warnings_.size(), 1u);
    EXPECT_NE(warnings_[0].find("db.damaged"), std::string::npos) << warnings_[0];
    EXPECT_TRUE(fs::exists(path_ + "/db.damaged"));
    if (c.recordsSurvive) {
      expectHolds(*store, sampleRecord());
    } else {
      expectMisses(*store, sampleRecord());
    }
    ASSERT_TRUE(store->put(sampleRecord(64)).isOk());
    ASSERT_TRUE(store->close().isOk());
    warnings_.clear();
    expectHolds(*open(), sampleRecord(64));
    EXPECT_TRUE(warnings_.empty());
  }
}

TEST_F(StoreTest, ADamagedBlockIsAMiss) {
  Record record = sampleRecord(4096, 1, 1 << 16);
  { ASSERT_TRUE(open()->put(record).isOk()); }
  for (const fs::directory_entry& e : fs::directory_iterator(path_ + "/db")) {
    if (e.path().extension() != ".sst") continue;
    std::fstream table(e.path(), std::ios::in | std::ios::out | std::ios::binary);
    table.seekp(2000);
    table.put('#').put('#').put('#');
  }
  std::unique_ptr<Store> store = open();
  ASSERT_TRUE(store);
  expectMisses(*store, record);
  ASSERT_FALSE(warnings_.empty());
  EXPECT_TRUE(store->forEach([](const Record&) { return true; }).isOk());
  ASSERT_TRUE(store->put(record).isOk());
  expectHolds(*store, record);
}

TEST_F(StoreTest, ManyThreads) {
  std::unique_ptr<Store> store = open();
  ASSERT_TRUE(store);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < 10; ++i) {
        Record r = sampleRecord(1 + t * 100 + i);
        EXPECT_TRUE(store->put(r).isOk());
        expectHolds(*store, r);
        EXPECT_TRUE(store->forEach([](const Record&) { return true; }).isOk());
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(store->stats().records, 40);
}

}  // namespace
}  // namespace ktune::cache
