// CUDA C++ on the CPU, for tests: included before a generated kernel and compiled by the host's compiler. One block at
// a time; its threads are coroutines that take turns, so that barriers and warp-wide instructions mean what they mean
// on a GPU. Covered: indexing, bounds, barriers, shuffles, shared memory, ldmatrix and mma.sync as the PTX ISA defines
// their fragments, conversions. Not covered: the asynchrony of cp.async (copies are done at once), races that need real
// concurrency, alignment faults, and the rounding inside mma.sync (here: f32 sums in order of k).
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <vector>

#define KTUNE_EMULATION 1
#define __global__ __attribute__((visibility("default")))
#define __device__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};
inline Dim3 threadIdx, blockIdx, blockDim, gridDim;

template <typename T>
T __ldcs(const T* p) {
  return *p;
}
template <typename T>
void __stcs(T* p, T v) {
  *p = v;
}
inline float __uint_as_float(unsigned x) {
  float y;
  memcpy(&y, &x, 4);
  return y;
}
inline unsigned __float_as_uint(float x) {
  unsigned y;
  memcpy(&y, &x, 4);
  return y;
}
inline float __int_as_float(int x) {
  return __uint_as_float(static_cast<unsigned>(x));
}
inline long long __double_as_longlong(double x) {
  long long y;
  memcpy(&y, &x, 8);
  return y;
}
inline double __longlong_as_double(long long x) {
  double y;
  memcpy(&y, &x, 8);
  return y;
}

namespace emulation {

constexpr size_t kStackBytes = 256 << 10;

// Switching between coroutines: a block switches hundreds of thousands of times, and swapcontext() calls the system
// each time.
#if defined(__x86_64__)
asm(R"(
.text
.type emulation_switch, @function
emulation_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size emulation_switch, .-emulation_switch
)");
extern "C" void emulation_switch(void** save, void* next) __attribute__((visibility("hidden")));
struct Context {
  void* stackPointer = nullptr;
  void start(char* stack, size_t bytes, void (*entry)()) {
    auto top = reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t{15};
    auto* words = reinterpret_cast<uintptr_t*>(top);
    words[-1] = 0;  // Where entry() would return to: it never does.
    words[-2] = reinterpret_cast<uintptr_t>(entry);
    for (int i = 3; i <= 8; ++i) words[-i] = 0;
    stackPointer = words - 8;
  }
  void switchTo(Context& next) { emulation_switch(&stackPointer, next.stackPointer); }
};
#else
struct Context {
  ucontext_t context;
  void start(char* stack, size_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
  }
  void switchTo(Context& next) { swapcontext(&context, &next.context); }
};
#endif

struct Thread {
  Context context;
  std::vector<char> stack;
  bool waiting = false;  ///< At a barrier.
  bool done = false;
};
/// Threads that meet at barriers: the block's, or one warp's.
struct Group {
  unsigned first = 0, last = 0;
  unsigned live = 0, arrived = 0;
};
inline std::vector<Thread> threads;
inline Group wholeBlock;
inline std::vector<Group> warps;
inline Context scheduler;
inline unsigned current = 0;
inline const uint64_t* arguments = nullptr;
inline void (*kernel)() = nullptr;
inline int argumentCount = 0;
alignas(128) inline char dynamicShared[256 << 10];
inline size_t dynamicSharedBytes = sizeof dynamicShared;
struct alignas(16) Slot {
  char bytes[64];
};
inline Slot slots[1024];

inline void yield() {
  threads[current].context.switchTo(scheduler);
}
inline void release(Group& group) {
  group.arrived = 0;
  for (unsigned t = group.first; t < group.last; ++t) threads[t].waiting = false;
}
/// Waits for every thread of the group that has not ended.
inline void barrier(Group& group) {
  if (++group.arrived == group.live) return release(group);
  threads[current].waiting = true;
  yield();
}
inline void leave(Group& group) {
  if (--group.live > 0 && group.arrived == group.live) release(group);
}
inline void warpBarrier() {
  barrier(warps[current / 32]);
}

inline void callKernel() {
  const uint64_t* a = arguments;
  using A = uint64_t;
  switch (argumentCount) {
    case 1:
      return reinterpret_cast<void (*)(A)>(kernel)(a[0]);
    case 2:
      return reinterpret_cast<void (*)(A, A)>(kernel)(a[0], a[1]);
    case 3:
      return reinterpret_cast<void (*)(A, A, A)>(kernel)(a[0], a[1], a[2]);
    case 4:
      return reinterpret_cast<void (*)(A, A, A, A)>(kernel)(a[0], a[1], a[2], a[3]);
    case 5:
      return reinterpret_cast<void (*)(A, A, A, A, A)>(kernel)(a[0], a[1], a[2], a[3], a[4]);
    case 6:
      return reinterpret_cast<void (*)(A, A, A, A, A, A)>(kernel)(a[0], a[1], a[2], a[3], a[4], a[5]);
    case 7:
      return reinterpret_cast<void (*)(A, A, A, A, A, A, A)>(kernel)(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
    case 8:
      return reinterpret_cast<void (*)(A, A, A, A, A, A, A, A)>(kernel)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    default:
      abort();
  }
}
inline void threadMain() {
  callKernel();
  const unsigned self = current;
  threads[self].done = true;
  leave(warps[self / 32]);
  leave(wholeBlock);
  yield();  // For good.
}

}  // namespace emulation

inline void __syncthreads() {
  emulation::barrier(emulation::wholeBlock);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int offset) {
  memcpy(emulation::slots[emulation::current].bytes, &value, sizeof value);
  emulation::warpBarrier();
  T other;
  memcpy(&other, emulation::slots[emulation::current ^ static_cast<unsigned>(offset)].bytes, sizeof other);
  emulation::warpBarrier();
  return other;
}

namespace ktune::device {

inline char* emulatedDynamicShared() {
  return emulation::dynamicShared;
}
inline float emulatedFromHalf(unsigned short bits) {
  _Float16 h;
  memcpy(&h, &bits, 2);
  return static_cast<float>(h);
}
inline unsigned short emulatedToHalf(float value) {
  const _Float16 h = static_cast<_Float16>(value);
  unsigned short bits;
  memcpy(&bits, &h, 2);
  return bits;
}
inline float emulatedElement(const struct bf16*, unsigned short bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}
inline float emulatedElement(const struct f16*, unsigned short bits) {
  return emulatedFromHalf(bits);
}
inline void emulatedLoadMatrices(unsigned (&r)[4], const void* row) {
  using namespace emulation;
  memcpy(slots[current].bytes, &row, sizeof row);
  warpBarrier();
  const unsigned lane = current % 32, warp = current - lane;
  for (unsigned m = 0; m < 4; ++m) {
    const char* from;
    memcpy(&from, slots[warp + m * 8 + lane / 4].bytes, sizeof from);
    memcpy(&r[m], from + lane % 4 * 4, 4);
  }
  warpBarrier();
}
template <typename T>
void emulatedMultiplyAdd(float& d0, float& d1, float& d2, float& d3, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  using namespace emulation;
  const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  memcpy(slots[current].bytes, mine, sizeof mine);
  warpBarrier();
  const unsigned lane = current % 32, warp = current - lane;
  auto part = [&](unsigned fromLane, unsigned word, unsigned half) {
    unsigned short bits;
    memcpy(&bits, slots[warp + fromLane].bytes + word * 4 + half * 2, 2);
    return emulatedElement(static_cast<const T*>(nullptr), bits);
  };
  float* d[4] = {&d0, &d1, &d2, &d3};
  for (unsigned e = 0; e < 4; ++e) {
    const unsigned high = e / 2, n = lane % 4 * 2 + e % 2;
    for (unsigned k = 0; k < 16; ++k) {
      const float x = part(lane / 4 * 4 + k % 8 / 2, (k / 8) * 2 + high, k % 2);
      const float w = part(n * 4 + k % 8 / 2, 4 + k / 8, k % 2);
      *d[e] += x * w;
    }
  }
  warpBarrier();
}

}  // namespace ktune::device

/// Runs KERNEL (a function of COUNT 64-bit arguments) for every block of the grid, one after the other.
extern "C" __attribute__((visibility("default"))) void emulated_launch(void (*kernel)(), const uint64_t* arguments,
                                                                       int count, const unsigned* grid, unsigned block,
                                                                       unsigned sharedBytes) {
  using namespace emulation;
  emulation::kernel = kernel;
  emulation::arguments = arguments;
  argumentCount = count;
  if (sharedBytes > sizeof dynamicShared) abort();
  dynamicSharedBytes = sharedBytes;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block, 1, 1};
  threads.resize(block);
  for (Thread& t : threads) t.stack.resize(kStackBytes);
  for (unsigned z = 0; z < grid[2]; ++z) {
    for (unsigned y = 0; y < grid[1]; ++y) {
      for (unsigned x = 0; x < grid[0]; ++x) {
        blockIdx = {x, y, z};
        memset(dynamicShared, 0xff, dynamicSharedBytes);  // NaNs: what nobody wrote must not be used.
        for (Thread& t : threads) {
          t.context.start(t.stack.data(), t.stack.size(), threadMain);
          t.waiting = t.done = false;
        }
        wholeBlock = {0, block, block, 0};
        warps.clear();
        for (unsigned first = 0; first < block; first += 32) {
          const unsigned size = block - first < 32 ? block - first : 32;
          warps.push_back({first, first + size, size, 0});
        }
        while (wholeBlock.live > 0) {
          bool ran = false;
          for (unsigned t = 0; t < block; ++t) {
            if (threads[t].done || threads[t].waiting) continue;
            ran = true;
            current = t;
            threadIdx = {t, 0, 0};
            scheduler.switchTo(threads[t].context);
          }
          if (!ran) abort();  // Threads wait at different barriers: a GPU would hang.
        }
      }
    }
  }
}
