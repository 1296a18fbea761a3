#include "tools/Lookup.h"

#include <algorithm>
#include <map>

#include "tools/RecordText.h"

namespace ktune::tools {

Result<std::vector<cache::Record>> findRecords(cache::Store& store, const std::string& prefix) {
  constexpr size_t kKeyDigits = 32;
  std::string lower = prefix;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower.empty() || lower.size() > kKeyDigits || lower.find_first_not_of("0123456789abcdef") != std::string::npos)
    return invalidArgument("\"" + prefix + "\" is no key; give the first hex digits of one that `ktune list` shows");

  std::map<op::Key, std::string> keys;  // With a label for the message.
  std::vector<cache::Record> records;
  KTUNE_TRY(store.forEach([&](const cache::Record& record) {
    if (!record.key.hex().starts_with(lower)) return true;
    keys.emplace(record.key, labelOf(record));
    if (keys.size() == 1) records.push_back(record);
    return true;
  }));
  if (keys.empty()) return notFound("no key in " + store.location() + " begins with " + lower + "; see `ktune list`");
  if (keys.size() > 1) {
    std::string list;
    for (const auto& [key, label] : keys) list += (list.empty() ? "" : ", ") + key.hex() + " (" + label + ")";
    return invalidArgument(std::to_string(keys.size()) + " keys begin with " + lower + ": " + list +
                           "; give more digits");
  }
  std::sort(records.begin(), records.end(),
            [](const cache::Record& a, const cache::Record& b) { return a.bucketIndex < b.bucketIndex; });
  return records;
}

}  // namespace ktune::tools
