// The persistent cache behind an interface: RocksDB for real, memory for tests and as the last resort.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/format/Record.h"

namespace ktune::cache {

struct StoreStats {
  int64_t records = 0;
  int64_t bytes = 0;
  int64_t quarantined = 0;
};

/// Thread-safe. One process writes a given cache at a time.
class Store {
 public:
  virtual ~Store() = default;
  /// The record of one bucket of a key, or nothing. A value that fails its checksum, or whose contents do not match
  /// the key it lies under, is moved to quarantine, reported once by a warning that names the key, and is a miss.
  [[nodiscard]] virtual Result<std::optional<Record>> get(const op::Key& key, int32_t bucketIndex) = 0;
  /// Durable (fsynced) when it returns. Errors: kResourceExhausted (disk full: the message says how much is needed and
  /// where), kPermissionDenied, kInternal.
  [[nodiscard]] virtual Status put(const Record& record) = 0;
  [[nodiscard]] virtual Status remove(const op::Key& key, int32_t bucketIndex) = 0;
  /// Calls VISIT with every readable record in key order (corrupt ones are quarantined on the way) until it returns
  /// false.
  [[nodiscard]] virtual Status forEach(const std::function<bool(const Record&)>& visit) = 0;
  [[nodiscard]] virtual StoreStats stats() = 0;
  /// Flushes and closes; later calls fail. The destructor closes too.
  virtual Status close() = 0;
  /// Where it lies, for messages.
  [[nodiscard]] virtual const std::string& location() const = 0;
};

struct StoreOptions {
  std::string path;       ///< The cache folder; RocksDB lives in PATH/db.
  bool readOnly = false;  ///< Never writes, needs no lock; put() fails with kPermissionDenied.
  bool createIfMissing = true;
};

/// Opens (creating it) the RocksDB cache at OPTIONS.path.
/// Errors: kUnavailable when another process owns it (names its pid when known: "the cache at P is in use by process
/// 123 (ktune warm-cache); wait for it or give another --cache"), kPermissionDenied, kResourceExhausted, kNotFound
/// (readOnly or !createIfMissing and there is none), kCorrupt (the database itself is damaged: says how to rebuild it,
/// after trying RocksDB's own repair once into the same folder and keeping the damaged files aside), kInvalidArgument
/// when PATH is a file. A network file system gets one warning (RocksDB locks do not work everywhere there).
[[nodiscard]] Result<std::unique_ptr<Store>> openRocksStore(const StoreOptions& options);
[[nodiscard]] std::unique_ptr<Store> makeMemoryStore();

}  // namespace ktune::cache
