#include "cache/store/Store.h"

#include "cache/store/StoredValue.h"

namespace ktune::cache {

std::string storeKey(const op::Key& key, int32_t bucketIndex) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = std::string(kRecordPrefix) + key.hex() + "/";
  for (int shift = 28; shift >= 0; shift -= 4) text += kDigits[(static_cast<uint32_t>(bucketIndex) >> shift) & 15];
  return text;
}

Result<Record> decodeStored(std::string_view storedUnder, std::string_view bytes) {
  KTUNE_ASSIGN(Record record, Record::fromBytes(bytes));
  if (storeKey(record.key, record.bucketIndex) != storedUnder) return corrupt("the record is another key's");
  Result<op::Graph> graph = op::fromCanonicalBytes(record.canonical);
  if (!graph) return corrupt("the description does not decode: " + graph.error().message());
  if (op::keyOf(*graph, record.hardware) != record.key) {
    return corrupt("the description and hardware inside do not give the key");
  }
  std::vector<op::Bucket> buckets = op::bucketsOf(*graph);
  auto index = static_cast<size_t>(record.bucketIndex);
  if (index >= buckets.size() || !(buckets[index] == record.bucket)) {
    return corrupt("the bucket is not the description's");
  }
  return record;
}

Result<std::string> encodeForStore(const Record& record) {
  std::string bytes = record.bytes();
  Result<Record> again = decodeStored(storeKey(record.key, record.bucketIndex), bytes);
  if (!again) return invalidArgument("not fit to be stored: " + again.error().message());
  return bytes;
}

}  // namespace ktune::cache
