// Records by what a person types: the beginning of a key.
#pragma once

#include <string>
#include <vector>

#include "cache/store/Store.h"

namespace ktune::tools {

/// The records of the one key that begins with PREFIX (hex digits, any case), in bucket order.
/// Errors: kInvalidArgument (no hex digits; several keys begin so: lists them), kNotFound, those of the store.
[[nodiscard]] Result<std::vector<cache::Record>> findRecords(cache::Store& store, const std::string& prefix);

}  // namespace ktune::tools
