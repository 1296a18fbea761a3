// Element types, their conversions, and memory accesses of 1 to 16 bytes. Everything here is plain CUDA C++ without the
// toolkit's headers, so that NVRTC has little to parse.
#pragma once

namespace ktune::device {

using int64 = long long;
using uint32 = unsigned int;
using uint16 = unsigned short;

struct bf16 {
  uint16 bits;
};
struct f16 {
  uint16 bits;
};
using f32 = float;
using f64 = double;

/// The shared memory whose size the launch states.
#if defined(KTUNE_EMULATION)
#define KTUNE_DYNAMIC_SHARED(name) char* const name = emulatedDynamicShared()
#else
#define KTUNE_DYNAMIC_SHARED(name) extern __shared__ __align__(128) char name[]
#endif

#if defined(KTUNE_EMULATION)
// Off the GPU (tests): the same functions in portable C++, see tests/conformance/emulation.
float emulatedFromHalf(uint16 bits);
uint16 emulatedToHalf(float value);
char* emulatedDynamicShared();
void emulatedLoadMatrices(uint32 (&r)[4], const void* row);
template <typename T>
void emulatedMultiplyAdd(float& d0, float& d1, float& d2, float& d3, const uint32 (&a)[4], uint32 b0, uint32 b1);
#endif

// ---- Conversions. Arithmetic is done in f32 (f64 for f64); narrower types exist in memory only.

__device__ inline float widen(bf16 x) {
  return __uint_as_float(uint32(x.bits) << 16);
}
__device__ inline float widen(f16 x) {
#if defined(KTUNE_EMULATION)
  return emulatedFromHalf(x.bits);
#else
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#endif
}
__device__ inline float widen(float x) {
  return x;
}
__device__ inline double widen(double x) {
  return x;
}

template <typename T>
struct Narrow;
template <>
struct Narrow<bf16> {
  __device__ static bf16 from(float x) {
#if defined(KTUNE_EMULATION)
    const uint32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {uint16((bits >> 16) | 0x40u)};
    return {uint16((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
#else
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
#endif
  }
};
template <>
struct Narrow<f16> {
  __device__ static f16 from(float x) {
#if defined(KTUNE_EMULATION)
    return {emulatedToHalf(x)};
#else
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
#endif
  }
};
template <>
struct Narrow<float> {
  __device__ static float from(float x) { return x; }
};
template <>
struct Narrow<double> {
  __device__ static double from(double x) { return x; }
};

// ---- Memory. Words<B> is what one instruction moves.

template <int BYTES>
struct Words;
template <>
struct Words<2> {
  uint16 w[1];
};
template <>
struct Words<4> {
  uint32 w[1];
};
template <>
struct Words<8> {
  uint2 v;
};
template <>
struct Words<16> {
  uint4 v;
};

/// Reads BYTES bytes from an address that is a multiple of BYTES. STREAM: they are not wanted again.
template <int BYTES, bool STREAM>
__device__ inline void readWords(void* to, const void* from) {
  if constexpr (BYTES == 16) {
    *static_cast<uint4*>(to) = STREAM ? __ldcs(static_cast<const uint4*>(from)) : *static_cast<const uint4*>(from);
  } else if constexpr (BYTES == 8) {
    *static_cast<uint2*>(to) = STREAM ? __ldcs(static_cast<const uint2*>(from)) : *static_cast<const uint2*>(from);
  } else if constexpr (BYTES == 4) {
    *static_cast<uint32*>(to) = STREAM ? __ldcs(static_cast<const uint32*>(from)) : *static_cast<const uint32*>(from);
  } else {
    *static_cast<uint16*>(to) = *static_cast<const uint16*>(from);
  }
}
template <int BYTES, bool STREAM>
__device__ inline void writeWords(void* to, const void* from) {
  if constexpr (BYTES == 16) {
    if (STREAM)
      __stcs(static_cast<uint4*>(to), *static_cast<const uint4*>(from));
    else
      *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
  } else if constexpr (BYTES == 8) {
    if (STREAM)
      __stcs(static_cast<uint2*>(to), *static_cast<const uint2*>(from));
    else
      *static_cast<uint2*>(to) = *static_cast<const uint2*>(from);
  } else if constexpr (BYTES == 4) {
    if (STREAM)
      __stcs(static_cast<uint32*>(to), *static_cast<const uint32*>(from));
    else
      *static_cast<uint32*>(to) = *static_cast<const uint32*>(from);
  } else {
    *static_cast<uint16*>(to) = *static_cast<const uint16*>(from);
  }
}

/// The widest access of at most 16 bytes for N elements of T at addresses that are multiples of ALIGNMENT.
template <typename T, int N, int ALIGNMENT>
struct Access {
  static constexpr int kTotal = N * int(sizeof(T));
  static constexpr int kLimit = ALIGNMENT < 16 ? ALIGNMENT : 16;
  static constexpr int kBytes = kTotal < kLimit ? kTotal : (kLimit < int(sizeof(T)) ? int(sizeof(T)) : kLimit);
  static constexpr int kCount = kTotal / kBytes;
};

/// N neighbouring elements.
template <int N, int ALIGNMENT, bool STREAM, typename T, typename V>
__device__ inline void readElements(V* values, const T* from) {
  using A = Access<T, N, ALIGNMENT>;
  alignas(16) T raw[N];
#pragma unroll
  for (int i = 0; i < A::kCount; ++i)
    readWords<A::kBytes, STREAM>(reinterpret_cast<char*>(raw) + i * A::kBytes,
                                 reinterpret_cast<const char*>(from) + i * A::kBytes);
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = widen(raw[i]);
}
template <int N, int ALIGNMENT, bool STREAM, typename T, typename V>
__device__ inline void writeElements(T* to, const V* values) {
  using A = Access<T, N, ALIGNMENT>;
  alignas(16) T raw[N];
#pragma unroll
  for (int i = 0; i < N; ++i) raw[i] = Narrow<T>::from(values[i]);
#pragma unroll
  for (int i = 0; i < A::kCount; ++i)
    writeWords<A::kBytes, STREAM>(reinterpret_cast<char*>(to) + i * A::kBytes,
                                  reinterpret_cast<const char*>(raw) + i * A::kBytes);
}

// ---- Functions that generated kernels call by these names, for both widths.

__device__ inline float inverseRoot(float x) {
  return 1.0f / sqrtf(x);
}
__device__ inline double inverseRoot(double x) {
  return 1.0 / ::sqrt(x);
}
__device__ inline float squareRoot(float x) {
  return sqrtf(x);
}
__device__ inline double squareRoot(double x) {
  return ::sqrt(x);
}
__device__ inline float magnitude(float x) {
  return fabsf(x);
}
__device__ inline double magnitude(double x) {
  return ::fabs(x);
}
__device__ inline float exponential(float x) {
  return expf(x);
}
__device__ inline double exponential(double x) {
  return ::exp(x);
}
__device__ inline float logarithm(float x) {
  return logf(x);
}
__device__ inline double logarithm(double x) {
  return ::log(x);
}
__device__ inline float hyperbolicTangent(float x) {
  return tanhf(x);
}
__device__ inline double hyperbolicTangent(double x) {
  return ::tanh(x);
}
__device__ inline float errorFunction(float x) {
  return erff(x);
}
__device__ inline double errorFunction(double x) {
  return ::erf(x);
}
template <typename V>
__device__ inline V infinity();
template <>
__device__ inline float infinity<float>() {
  return __int_as_float(0x7f800000);
}
template <>
__device__ inline double infinity<double>() {
  return __longlong_as_double(0x7ff0000000000000ll);
}
/// NaN when either operand is.
template <typename V>
__device__ inline V maximum(V a, V b) {
  return a != a ? a : b != b ? b : (a < b ? b : a);
}
template <typename V>
__device__ inline V minimum(V a, V b) {
  return a != a ? a : b != b ? b : (b < a ? b : a);
}
__device__ inline int64 least(int64 a, int64 b) {
  return a < b ? a : b;
}

}  // namespace ktune::device
