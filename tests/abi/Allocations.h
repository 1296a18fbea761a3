// Counts the allocations of the whole process, and lets one fail. libktune's are included: its calls of operator new
// reach this program's.
#pragma once

#include <cstdint>

namespace ktune::abi {

void startCounting();
/// Allocations by any thread since startCounting(). Always 0 in sanitizer builds, which have allocators of their own.
[[nodiscard]] int64_t stopCounting();

/// The next allocation but N fails, once. A negative number: none does. Does nothing in sanitizer builds.
void failAllocation(int64_t n);

}  // namespace ktune::abi
