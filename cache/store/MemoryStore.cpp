#include <map>
#include <mutex>

#include "base/Log.h"
#include "cache/store/Store.h"
#include "cache/store/StoredValue.h"

namespace ktune::cache {

namespace {

/// Keeps the bytes, not the records, so that it refuses and returns exactly what the persistent store does.
class MemoryStore final : public Store {
 public:
  Result<std::optional<Record>> get(const op::Key& key, int32_t bucketIndex) override {
    std::lock_guard lock(mutex_);
    KTUNE_TRY(checkOpen());
    auto found = values_.find(storeKey(key, bucketIndex));
    if (found == values_.end()) return std::optional<Record>();
    KTUNE_ASSIGN(Record record, decodeStored(found->first, found->second));
    return std::optional<Record>(std::move(record));
  }

  Status put(const Record& record) override {
    KTUNE_ASSIGN(std::string bytes, encodeForStore(record));
    std::lock_guard lock(mutex_);
    KTUNE_TRY(checkOpen());
    values_[storeKey(record.key, record.bucketIndex)] = std::move(bytes);
    return Status::ok();
  }

  Status remove(const op::Key& key, int32_t bucketIndex) override {
    std::lock_guard lock(mutex_);
    KTUNE_TRY(checkOpen());
    values_.erase(storeKey(key, bucketIndex));
    return Status::ok();
  }

  Status forEach(const std::function<bool(const Record&)>& visit) override {
    // VISIT runs on a copy, without the lock, so that it may call the store.
    std::map<std::string, std::string> values;
    {
      std::lock_guard lock(mutex_);
      KTUNE_TRY(checkOpen());
      values = values_;
    }
    for (const auto& [key, bytes] : values) {
      KTUNE_ASSIGN(Record record, decodeStored(key, bytes));
      if (!visit(record)) break;
    }
    return Status::ok();
  }

  StoreStats stats() override {
    std::lock_guard lock(mutex_);
    StoreStats stats;
    for (const auto& [key, bytes] : values_) {
      ++stats.records;
      stats.bytes += static_cast<int64_t>(bytes.size());
    }
    return stats;
  }

  Status close() override {
    std::lock_guard lock(mutex_);
    open_ = false;
    values_.clear();
    return Status::ok();
  }

  const std::string& location() const override { return location_; }

 private:
  Status checkOpen() const { return open_ ? Status::ok() : unavailable("the cache in memory is closed"); }

  std::mutex mutex_;
  bool open_ = true;
  std::map<std::string, std::string> values_;
  const std::string location_ = "memory";
};

}  // namespace

std::unique_ptr<Store> makeMemoryStore() {
  return std::make_unique<MemoryStore>();
}

}  // namespace ktune::cache
