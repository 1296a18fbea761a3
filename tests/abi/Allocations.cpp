#include "abi/Allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};
std::atomic<int64_t> untilFailure{-1};
}  // namespace

#ifndef KTUNE_SANITIZED
void* operator new(size_t bytes) {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
  if (untilFailure.load(std::memory_order_relaxed) >= 0 && untilFailure.fetch_sub(1) == 0) throw std::bad_alloc();
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
#endif

namespace ktune::abi {

void startCounting() {
  allocations = 0;
  counting = true;
}

int64_t stopCounting() {
  counting = false;
  return allocations;
}

void failAllocation(int64_t n) {
  untilFailure = n;
}

}  // namespace ktune::abi
