// Private to cache/store: what every store checks of a value before it believes it.
#pragma once

#include <string>
#include <string_view>

#include "cache/format/Record.h"

namespace ktune::cache {

/// "r/<32 hex digits>/<8 hex digits>": ordered like (key, bucket).
[[nodiscard]] std::string storeKey(const op::Key& key, int32_t bucketIndex);
/// The prefixes of records and of quarantined values.
inline constexpr std::string_view kRecordPrefix = "r/", kQuarantinePrefix = "q/";

/// The record in BYTES, which lie under STOREKEY. Errors: kCorrupt when they do not decode, or when the description and
/// hardware inside do not give the key that they lie under; kUnsupported for a newer record version.
[[nodiscard]] Result<Record> decodeStored(std::string_view storeKey, std::string_view bytes);

/// The bytes of a record that is fit to be stored. Errors: kInvalidArgument when decodeStored() would not accept them.
[[nodiscard]] Result<std::string> encodeForStore(const Record& record);

}  // namespace ktune::cache
