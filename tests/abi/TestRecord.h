// Records for the tests of libktune: an add over 1024 columns, with the kernels of Kernel.c.
#pragma once

#include <functional>
#include <string>

#include "cache/format/Record.h"

namespace ktune::abi {

/// {"op": "add"} over [M, 1024] f32 with M = 1..16 in buckets 1 and 2..16.
[[nodiscard]] std::string addJson();
[[nodiscard]] op::Graph addGraph();
/// The record of its bucket BUCKETINDEX for the cpu device of this machine; CHANGE may spoil it before digests are
/// made.
[[nodiscard]] cache::Record addRecord(int bucketIndex, const std::string& symbol = "ktune_test_add",
                                      const std::function<void(cache::Record&)>& change = {});

}  // namespace ktune::abi
