// The persistent store. The only file that includes RocksDB.
#include <fcntl.h>
#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <thread>

#include "base/Deadline.h"
#include "base/File.h"
#include "base/Log.h"
#include "base/Subprocess.h"
#include "base/ThreadSanitizer.h"
#include "cache/store/Store.h"
#include "cache/store/StoredValue.h"

namespace ktune::cache {

namespace {

constexpr int kSchemaVersion = 1;
constexpr char kVersionKey[] = "m/version";

/// RocksDB's own messages are of interest to nobody but a developer; without a logger it writes LOG files.
class QuietLogger final : public rocksdb::Logger {
 public:
  QuietLogger() : rocksdb::Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}
  using rocksdb::Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    if (logLevel() > LogLevel::kDebug) return;
    char line[1024];
    std::vsnprintf(line, sizeof line, format, arguments);
    logDebug(std::string("rocksdb: ") + line);
  }
};

bool contains(const std::string& text, std::string_view piece) {
  return text.find(piece) != std::string::npos;
}

bool isOutOfSpace(const rocksdb::Status& s) {
  if (s.IsNoSpace() || s.subcode() == rocksdb::Status::SubCode::kSpaceLimit) return true;
  std::string text = s.ToString();
  return contains(text, "No space left") || contains(text, "Disk quota exceeded") || contains(text, "File too large");
}

Status toStatus(const rocksdb::Status& s, const std::string& what) {
  if (s.ok()) return Status::ok();
  std::string text = what + ": " + s.ToString();
  if (isOutOfSpace(s) || s.IsMemoryLimit() || contains(text, "Too many open files")) return resourceExhausted(text);
  if (contains(text, "Permission denied") || contains(text, "Read-only file system") ||
      contains(text, "Operation not permitted")) {
    return permissionDenied(text);
  }
  if (s.IsCorruption()) return corrupt(text);
  if (s.IsBusy() || s.IsTimedOut() || s.IsShutdownInProgress()) return unavailable(text);
  if (s.IsNotSupported()) return unsupported(text);
  if (s.IsNotFound() || s.IsPathNotFound()) return notFound(text);
  return internalError(text);
}

/// Small and fast to open: most processes read a few records and end.
rocksdb::Options makeOptions(bool createIfMissing) {
  rocksdb::Options options;
  options.create_if_missing = createIfMissing;
  options.info_log = std::make_shared<QuietLogger>();
  options.keep_log_file_num = 1;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.max_open_files = 64;
  options.max_background_jobs = 2;
  options.max_subcompactions = 1;
  options.write_buffer_size = size_t{8} << 20;
  options.max_total_wal_size = uint64_t{32} << 20;
  options.max_manifest_file_size = size_t{1} << 20;
  options.target_file_size_base = uint64_t{32} << 20;
  // Preallocating would take disk that a nearly full one does not have.
  options.allow_fallocate = false;
  options.skip_stats_update_on_db_open = true;
  // What put() acknowledged was synced; only a torn tail, which nobody was promised, may be dropped.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  std::vector<rocksdb::CompressionType> compressions = rocksdb::GetSupportedCompressions();
  bool zstd = std::find(compressions.begin(), compressions.end(), rocksdb::kZSTD) != compressions.end();
  options.compression = zstd ? rocksdb::kZSTD : rocksdb::kNoCompression;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(size_t{8} << 20, 0);
  table.checksum = rocksdb::kXXH3;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

rocksdb::Slice slice(std::string_view s) {
  return {s.data(), s.size()};
}
std::string_view view(const rocksdb::Slice& s) {
  return {s.data(), s.size()};
}

std::string quarantineKey(std::string_view key) {
  return std::string(kQuarantinePrefix) + std::string(key.substr(kRecordPrefix.size()));
}

class RocksStore final : public Store {
 public:
  RocksStore(std::unique_ptr<rocksdb::DB> db, StoreOptions options)
      : db_(std::move(db)), options_(std::move(options)), pid_(::getpid()) {}
  ~RocksStore() override {
    // In a forked child RocksDB's threads do not exist and closing would wait for them: leave it to the parent.
    if (::getpid() != pid_) {
      static_cast<void>(db_.release());
      return;
    }
    static_cast<void>(close());
  }

  Result<std::optional<Record>> get(const op::Key& key, int32_t bucketIndex) override {
    std::shared_lock lock(mutex_);
    KTUNE_TRY(checkUsable());
    std::string under = storeKey(key, bucketIndex);
    std::string bytes;
    rocksdb::Status s = db_->Get(rocksdb::ReadOptions(), under, &bytes);
    if (s.IsNotFound()) return std::optional<Record>();
    if (s.IsCorruption()) {
      quarantine(under, {}, s.ToString());
      return std::optional<Record>();
    }
    if (!s.ok()) return toStatus(s, "reading the cache at " + options_.path);
    return believe(under, bytes);
  }

  Status put(const Record& record) override {
    KTUNE_ASSIGN(std::string bytes, encodeForStore(record));
    std::unique_lock lock(mutex_);  // One writer at a time: a write waits for the disk anyway.
    KTUNE_TRY(checkWritable());
    rocksdb::WriteBatch batch;
    batch.Put(storeKey(record.key, record.bucketIndex), bytes);
    return write(batch, bytes.size());
  }

  Status remove(const op::Key& key, int32_t bucketIndex) override {
    std::unique_lock lock(mutex_);
    KTUNE_TRY(checkWritable());
    rocksdb::WriteBatch batch;
    batch.Delete(storeKey(key, bucketIndex));
    return write(batch, 0);
  }

  Status forEach(const std::function<bool(const Record&)>& visit) override {
    // Records are read in batches and visited without the lock, so that VISIT may call the store.
    std::string next(kRecordPrefix);
    while (!next.empty()) {
      std::vector<Record> batch;
      {
        std::shared_lock lock(mutex_);
        KTUNE_TRY(checkUsable());
        next = readBatch(next, batch);
      }
      for (const Record& record : batch) {
        if (!visit(record)) return Status::ok();
      }
    }
    return Status::ok();
  }

  StoreStats stats() override {
    std::shared_lock lock(mutex_);
    StoreStats stats;
    if (!checkUsable().isOk()) return stats;
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(scanOptions()));
    for (it->Seek(slice(kRecordPrefix)); it->Valid() && it->key().starts_with(slice(kRecordPrefix)); it->Next()) {
      ++stats.records;
      stats.bytes += static_cast<int64_t>(it->value().size());
    }
    for (it->Seek(slice(kQuarantinePrefix)); it->Valid() && it->key().starts_with(slice(kQuarantinePrefix));
         it->Next()) {
      ++stats.quarantined;
    }
    if (options_.readOnly) {
      // Nothing can be moved there: what was found bad is still among the records.
      std::lock_guard reportLock(reportMutex_);
      stats.quarantined += static_cast<int64_t>(reported_.size());
      stats.records -= static_cast<int64_t>(reported_.size());
    }
    return stats;
  }

  Status close() override {
    std::unique_lock lock(mutex_);
    if (!db_) return Status::ok();
    if (::getpid() != pid_) return usedAfterFork();
    if (!options_.readOnly) {
      // Saves the next process the replay of the log. What cannot be flushed (a full disk) stays in the log.
      db_->Flush(rocksdb::FlushOptions()).PermitUncheckedError();
      // Only a hint for messages; gone before the lock is, so that it is never a later owner's.
      ::unlink((options_.path + "/owner").c_str());
    }
    rocksdb::Status s = db_->Close();
    db_.reset();
    return toStatus(s, "closing the cache at " + options_.path);
  }

  const std::string& location() const override { return options_.path; }

  Status checkVersion() {
    std::string text;
    rocksdb::Status s = db_->Get(rocksdb::ReadOptions(), kVersionKey, &text);
    if (s.ok()) {
      int version = 0;
      auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), version);
      bool isNumber = problem == std::errc() && end == text.data() + text.size();
      if (isNumber && version == kSchemaVersion) return Status::ok();
      if (isNumber && version > kSchemaVersion) {
        return unsupported("the cache at " + options_.path + " was made by a newer ktune (format " + text +
                           "; this one reads up to " + std::to_string(kSchemaVersion) +
                           "); update ktune or give another --cache");
      }
    } else if (!s.IsNotFound() && !s.IsCorruption()) {
      return toStatus(s, "opening the cache at " + options_.path);
    }
    if (options_.readOnly) return Status::ok();
    rocksdb::WriteBatch batch;
    batch.Put(kVersionKey, std::to_string(kSchemaVersion));
    return write(batch, 0);
  }

 private:
  static rocksdb::ReadOptions scanOptions() {
    rocksdb::ReadOptions options;
    options.fill_cache = false;
    return options;
  }

  Status usedAfterFork() const {
    return unavailable("the cache at " + options_.path + " was opened before fork(); open it again in the child");
  }
  Status checkUsable() const {
    if (!db_) return unavailable("the cache at " + options_.path + " is closed");
    return ::getpid() == pid_ ? Status::ok() : usedAfterFork();
  }
  Status checkWritable() const {
    KTUNE_TRY(checkUsable());
    if (options_.readOnly) return permissionDenied("the cache at " + options_.path + " is open read-only");
    return Status::ok();
  }

  /// Durable when it returns. REQUIRES: mutex_ held.
  Status write(rocksdb::WriteBatch& batch, size_t bytes) {
    rocksdb::WriteOptions sync;
    sync.sync = true;
    if (stopped_.load()) {
      // After a failed write RocksDB takes no more until the cause may be gone. It looks for free space by itself every
      // five seconds (until then Resume() is refused as busy); of other causes it has to be told.
      if (db_->Resume().ok()) stopped_ = false;
    }
    rocksdb::Status s = db_->Write(sync, &batch);
    if (s.ok()) return Status::ok();
    stopped_ = true;
    if (isOutOfSpace(s)) {
      return resourceExhausted("no space left in " + options_.path + " for a record of " + std::to_string(bytes) +
                               " bytes (" + std::to_string(freeDiskBytes(options_.path)) +
                               " bytes free there); free some or give another --cache");
    }
    return toStatus(s, "writing to the cache at " + options_.path);
  }

  /// The record, or a miss for what cannot be believed. REQUIRES: mutex_ held.
  std::optional<Record> believe(const std::string& under, std::string_view bytes) {
    Result<Record> record = decodeStored(under, bytes);
    if (record) return std::move(*record);
    if (record.error().code() == StatusCode::kUnsupported) {
      logDebug("cache " + options_.path + ": skipping " + under + ": " + record.error().message());
    } else {
      quarantine(under, bytes, record.error().message());
    }
    return std::nullopt;
  }

  /// REQUIRES: mutex_ held.
  void quarantine(const std::string& under, std::string_view bytes, const std::string& why) {
    {
      std::lock_guard lock(reportMutex_);
      if (reported_.insert(under).second) {
        logWarning("cache " + options_.path + ": the record under " + under +
                   " is damaged and treated as a miss: " + why);
      }
    }
    if (options_.readOnly) return;
    rocksdb::WriteBatch batch;
    batch.Put(quarantineKey(under), slice(bytes));
    batch.Delete(under);
    if (Status s = write(batch, bytes.size()); !s.isOk()) logDebug("quarantine: " + s.message());
  }

  /// Appends records from key START on; returns where to go on, empty at the end. REQUIRES: mutex_ held.
  std::string readBatch(const std::string& start, std::vector<Record>& batch) {
    constexpr size_t kMostRecords = 64, kMostBytes = size_t{4} << 20;
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(scanOptions()));
    std::string at = start;
    size_t bytes = 0;
    for (it->Seek(start); it->Valid() && it->key().starts_with(slice(kRecordPrefix)); it->Next()) {
      at = it->key().ToString();
      if (batch.size() >= kMostRecords || bytes >= kMostBytes) return at;
      bytes += it->value().size();
      if (std::optional<Record> record = believe(at, view(it->value()))) batch.push_back(std::move(*record));
    }
    if (it->status().ok()) return {};
    // A damaged block hides the keys behind it. Go on at the next prefix of 16 bits: a block rarely spans two.
    logWarning("cache " + options_.path + ": some records after " + at + " cannot be read: " + it->status().ToString());
    constexpr size_t kPrefixDigits = 4;
    std::string prefix = at.substr(kRecordPrefix.size(), kPrefixDigits);
    prefix.resize(kPrefixDigits, '0');
    unsigned number = 0;
    std::from_chars(prefix.data(), prefix.data() + kPrefixDigits, number, 16);
    if (number >= 0xffff) return {};
    char next[kPrefixDigits + 1];
    std::snprintf(next, sizeof next, "%04x", number + 1);
    return std::string(kRecordPrefix) + next;
  }

  std::shared_mutex mutex_;  // Held exclusively by close() only.
  std::unique_ptr<rocksdb::DB> db_;
  const StoreOptions options_;
  const pid_t pid_;
  std::atomic<bool> stopped_{false};
  std::mutex reportMutex_;
  std::set<std::string> reported_;
};

std::string ownerText() {
  std::string command;
  if (Result<std::string> read = readFile("/proc/self/cmdline", 4096)) command = *read;
  std::replace(command.begin(), command.end(), '\0', ' ');
  while (!command.empty() && command.back() == ' ') command.pop_back();
  constexpr size_t kMostCommand = 120;
  if (command.size() > kMostCommand) command = command.substr(0, kMostCommand) + "...";
  return std::to_string(::getpid()) + "\n" + command + "\n";
}

Status inUse(const std::string& path) {
  std::string who = "another process";
  if (Result<std::string> owner = readFile(path + "/owner", 4096)) {
    size_t line = owner->find('\n');
    std::string pid = owner->substr(0, line);
    std::string command = line == std::string::npos ? "" : owner->substr(line + 1);
    while (!command.empty() && command.back() == '\n') command.pop_back();
    if (!pid.empty()) who = "process " + pid + (command.empty() ? "" : " (" + command + ")");
  }
  return unavailable("the cache at " + path + " is in use by " + who + "; wait for it or give another --cache");
}

bool fileExists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

/// Holds PATH/open.lock while a database is opened, created or repaired: RocksDB's own lock is released in between.
Result<UniqueFd> lockForOpening(const std::string& path) {
  std::string file = path + "/open.lock";
  UniqueFd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return errnoStatus(errno, file);
  constexpr double kMostSeconds = 10;
  for (Deadline deadline = Deadline::after(kMostSeconds); ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0;) {
    if (errno != EWOULDBLOCK && errno != EINTR) break;  // No flock here: go on without, as on some network mounts.
    if (deadline.passed()) return inUse(path);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return fd;
}

bool isLockFailure(const rocksdb::Status& s) {
  std::string text = s.ToString();
  return s.IsIOError() && (contains(text, "lock hold by current process") || contains(text, "While lock file"));
}

bool isDamage(const rocksdb::Status& s) {
  return s.IsCorruption() || s.IsPathNotFound() || (s.IsIOError() && contains(s.ToString(), "No such file")) ||
         s.IsNotFound();
}

/// A folder with tables or a manifest but without CURRENT: RocksDB would start an empty database over them.
bool lostItsHead(const std::string& database) {
  if (fileExists(database + "/CURRENT")) return false;
  std::error_code error;
  for (std::filesystem::directory_iterator it(database, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".sst") return true;
  }
  return false;
}

/// RocksDB's repair, in place; the damaged files stay in PATH/db.damaged.
Status repairDatabase(const std::string& path, const rocksdb::Options& options) {
  std::string database = path + "/db", aside = path + "/db.damaged";
  KTUNE_TRY(removeTree(aside));
  std::error_code error;
  // Links suffice: neither the repair nor RocksDB changes a file in place once it has been given up.
  std::filesystem::copy(database, aside,
                        std::filesystem::copy_options::recursive | std::filesystem::copy_options::create_hard_links,
                        error);
  if (error) return errnoStatus(error.value(), aside);
  rocksdb::Status s = rocksdb::RepairDB(database, options);
  if (!s.ok()) return toStatus(s, "repair");
  return removeTree(database + "/lost");
}

}  // namespace

Result<std::unique_ptr<Store>> openRocksStore(const StoreOptions& options) {
  const std::string& path = options.path;
  const std::string database = path + "/db";
  if (path.empty()) return invalidArgument("the cache needs a folder");
  struct stat info {};
  bool exists = ::stat(path.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) {
    if (errno == ENOTDIR) return invalidArgument("the cache folder " + path + " lies under a file");
    return errnoStatus(errno, "the cache at " + path);
  }
  if (exists && !S_ISDIR(info.st_mode)) return invalidArgument("the cache at " + path + " is a file, not a folder");
  bool create = options.createIfMissing && !options.readOnly;
  if (!create && !fileExists(database + "/CURRENT") && !lostItsHead(database)) {
    return notFound("there is no cache at " + path);
  }

  rocksdb::Options rocks = makeOptions(create);
  rocksdb::DB* raw = nullptr;
  if (options.readOnly) {
    // Its owner may replace files while we open them: try again.
    rocksdb::Status s;
    constexpr int kAttempts = 5;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20 * attempt));
      s = rocksdb::DB::OpenForReadOnly(rocks, database, &raw);
      if (s.ok() || !isDamage(s)) break;
    }
    if (isDamage(s)) {
      return corrupt("the database in " + database + " is damaged (" + s.ToString() +
                     "); a command that may write to it repairs it");
    }
    if (!s.ok()) return toStatus(s, "opening the cache at " + path);
    auto store = std::make_unique<RocksStore>(std::unique_ptr<rocksdb::DB>(raw), options);
    KTUNE_TRY(store->checkVersion());
    return std::unique_ptr<Store>(std::move(store));
  }

  KTUNE_TRY(makeDirectories(database).withPrefix("the cache at " + path));
  if (isNetworkFilesystem(path)) {
    logWarning("the cache at " + path +
               " is on a network file system, where locks may not hold; keep it on a local disk and share bundles");
  }
  KTUNE_ASSIGN(UniqueFd openLock, lockForOpening(path));
  bool headless = lostItsHead(database);
  rocksdb::Status s =
      headless ? rocksdb::Status::Corruption("CURRENT is missing") : rocksdb::DB::Open(rocks, database, &raw);
  if (isLockFailure(s)) {
    if (contains(s.ToString(), "current process")) {
      return unavailable("the cache at " + path + " is open in this process already");
    }
    return inUse(path);
  }
  if (isDamage(s)) {
    std::string why = s.ToString();
    logWarning("the database in " + database + " is damaged (" + why +
               "); repairing it, the damaged files are kept in " + path + "/db.damaged");
    Status repaired = repairDatabase(path, rocks);
    if (repaired.isOk()) s = rocksdb::DB::Open(rocks, database, &raw);
    if (!repaired.isOk() || !s.ok()) {
      if (repaired.code() == StatusCode::kResourceExhausted || isOutOfSpace(s)) {
        return resourceExhausted("no space left in " + path + " to repair the damaged database");
      }
      return corrupt("the database in " + database + " is damaged (" + why + ") and could not be repaired (" +
                     (repaired.isOk() ? s.ToString() : repaired.message()) + "); delete it to start afresh: rm -r " +
                     database);
    }
  }
  if (!s.ok()) return toStatus(s, "opening the cache at " + path);
  auto store = std::make_unique<RocksStore>(std::unique_ptr<rocksdb::DB>(raw), options);
  KTUNE_TRY(store->checkVersion());
  if (Status owner = writeFileAtomically(path + "/owner", ownerText()); !owner.isOk()) {
    logDebug("cache " + path + ": no owner file: " + owner.message());
  }
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace ktune::cache
