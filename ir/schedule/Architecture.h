// GPU architectures: what the rules and the generators need to know of each. One line of Architecture.cpp adds one.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace ktune::schedule {

struct Architecture {
  std::string_view name;    ///< What the compiler is told: "sm_90a".
  int capability = 80;      ///< Compute capability, times ten.
  int64_t sharedBytes = 0;  ///< Most shared memory of one block (opt-in).
  int threadsPerMultiprocessor = 2048;
};

/// All of them, ascending by capability.
[[nodiscard]] std::span<const Architecture> architectures();
/// nullptr when there is none of that name.
[[nodiscard]] const Architecture* findArchitecture(std::string_view name);

}  // namespace ktune::schedule
