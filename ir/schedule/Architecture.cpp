#include "ir/schedule/Architecture.h"

namespace ktune::schedule {

namespace {

// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
constexpr Architecture kArchitectures[] = {
    {"sm_80", 80, 166912, 2048},   {"sm_86", 86, 101376, 1536},    {"sm_89", 89, 101376, 1536},
    {"sm_90a", 90, 232448, 2048},  {"sm_100a", 100, 232448, 2048}, {"sm_103a", 103, 232448, 2048},
    {"sm_120", 120, 101376, 1536}, {"sm_121", 121, 101376, 1536},
};

}  // namespace

std::span<const Architecture> architectures() {
  return kArchitectures;
}

const Architecture* findArchitecture(std::string_view name) {
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return &architecture;
  }
  return nullptr;
}

}  // namespace ktune::schedule
