// Numbers with one rounding per operation, and 16-bit floats, as device code (NVRTC) and as host code (g++).
//
// Host code must be compiled with -ffp-contract=off. The modules in robocache_ros/alignments compute the same
// operations in NumPy.
#pragma once

#if defined(__CUDACC__)
#define HD __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define PRAGMA(TEXT) _Pragma(#TEXT)
#define UNROLL_BY(TIMES) PRAGMA(unroll TIMES)
#define ROLLED _Pragma("unroll 1")
#define NOINLINE __device__ __noinline__
#else
#include <cmath>
#include <cstring>
#define HD inline
#define UNROLL
#define UNROLL_BY(TIMES)
#define ROLLED
#define NOINLINE inline
#endif

namespace robocache {

typedef long long int64;
typedef unsigned char uint8;
typedef unsigned int uint32;

struct bf16 {
  unsigned short bits;
};
struct f16 {
  unsigned short bits;
};

#if defined(__CUDA_ARCH__)
HD float add(float a, float b) { return __fadd_rn(a, b); }
HD float sub(float a, float b) { return __fsub_rn(a, b); }
HD float mul(float a, float b) { return __fmul_rn(a, b); }
HD float div(float a, float b) { return __fdiv_rn(a, b); }
HD float root(float a) { return __fsqrt_rn(a); }
HD float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }  // a * b + c, one rounding
HD double add(double a, double b) { return __dadd_rn(a, b); }
HD double mul(double a, double b) { return __dmul_rn(a, b); }
HD double div(double a, double b) { return __ddiv_rn(a, b); }
HD double root(double a) { return __dsqrt_rn(a); }
HD double ratio(int64 a, int64 b) { return __ddiv_rn((double)a, (double)b); }
HD float nearest_whole(float a) { return rintf(a); }
HD double nearest_whole(double a) { return rint(a); }
HD uint32 bits_of(float a) { return __float_as_uint(a); }
HD float float_of(uint32 bits) { return __uint_as_float(bits); }
#else
HD float add(float a, float b) { return a + b; }
HD float sub(float a, float b) { return a - b; }
HD float mul(float a, float b) { return a * b; }
HD float div(float a, float b) { return a / b; }
HD float root(float a) { return sqrtf(a); }
HD float fused(float a, float b, float c) { return fmaf(a, b, c); }
HD double add(double a, double b) { return a + b; }
HD double mul(double a, double b) { return a * b; }
HD double div(double a, double b) { return a / b; }
HD double root(double a) { return sqrt(a); }
HD double ratio(int64 a, int64 b) { return (double)a / (double)b; }
HD float nearest_whole(float a) { return rintf(a); }
HD double nearest_whole(double a) { return rint(a); }
HD uint32 bits_of(float a) {
  uint32 bits;
  memcpy(&bits, &a, sizeof bits);
  return bits;
}
HD float float_of(uint32 bits) {
  float a;
  memcpy(&a, &bits, sizeof a);
  return a;
}
#endif

HD float to_float(float a) { return a; }
HD float to_float(uint8 a) { return (float)a; }
HD float to_float(bf16 a) { return float_of((uint32)a.bits << 16); }
HD float to_float(f16 a) {
#if defined(__CUDA_ARCH__)
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(a.bits));
  return wide;
#else
  uint32 sign = (uint32)(a.bits & 0x8000) << 16, exponent = (a.bits >> 10) & 31, fraction = a.bits & 0x3ff;
  if (exponent == 31) return float_of(sign | 0x7f800000 | fraction << 13);
  if (exponent) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
  float small = (float)fraction * (1.0f / (1 << 24));
  return sign ? -small : small;
#endif
}

// Splits a register that holds two 16-bit floats.
HD void both_floats(uint32 both, const bf16*, float& low, float& high) {
  low = float_of(both << 16);
  high = float_of(both & 0xffff0000);
}
HD void both_floats(uint32 both, const f16*, float& low, float& high) {
  low = to_float(f16{(unsigned short)both});
  high = to_float(f16{(unsigned short)(both >> 16)});
}

// Rounds to nearest even. Every NaN becomes the canonical NaN, because processors produce different NaNs.
template <class T>
struct Rounded;

template <>
struct Rounded<float> {
  static HD float of(float a) { return a == a ? a : float_of(0x7fc00000); }
};

template <>
struct Rounded<bf16> {
  static HD bf16 of(float a) {
    uint32 bits = bits_of(a);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return bf16{(unsigned short)(a == a ? bits : 0x7fc0)};
  }
};

template <>
struct Rounded<f16> {
  static HD f16 of(float a) {
    if (!(a == a)) return f16{0x7e00};
#if defined(__CUDA_ARCH__)
    f16 narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(a));
    return narrow;
#else
    uint32 sign = bits_of(a) >> 16 & 0x8000, size = bits_of(a) & 0x7fffffff;
    if (size >= 0x47800000) return f16{(unsigned short)(sign | 0x7c00)};  // 65536 and above
    if (size < 0x38800000) {  // below the smallest normal half: adding 0.5 rounds at the last place of a subnormal half
      return f16{(unsigned short)(sign | (bits_of(float_of(size) + 0.5f) - 0x3f000000))};
    }
    size += 0xc8000fff + (size >> 13 & 1);  // the new bias of the exponent, plus half a unit in the last place less one, to even
    return f16{(unsigned short)(sign | size >> 13)};
#endif
  }
};

// Rounds the result of arithmetic with the GPU's conversions: 16-bit types two at a time. As in these conversions,
// every NaN becomes all ones except the sign.
template <class T>
struct Narrowed;

#if defined(__CUDA_ARCH__)
#define NARROWED(TYPE, SINGLE, PAIR)                                              \
  template <>                                                                     \
  struct Narrowed<TYPE> {                                                         \
    static HD TYPE of(float a) {                                                  \
      TYPE narrow;                                                                \
      asm(SINGLE " %0, %1;" : "=h"(narrow.bits) : "f"(a));                        \
      return narrow;                                                              \
    }                                                                             \
    static HD uint32 pair(float low, float high) {                                \
      uint32 both;                                                                \
      asm(PAIR " %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));                \
      return both;                                                                \
    }                                                                             \
  };
NARROWED(f16, "cvt.rn.f16.f32", "cvt.rn.f16x2.f32")
NARROWED(bf16, "cvt.rn.bf16.f32", "cvt.rn.bf16x2.f32")
#undef NARROWED
#else
template <class T>
struct Narrowed {
  static HD T of(float a) { return a == a ? Rounded<T>::of(a) : T{0x7fff}; }
  static HD uint32 pair(float low, float high) { return of(low).bits | (uint32)of(high).bits << 16; }
};
#endif

template <>
struct Narrowed<float> {
  static HD float of(float a) { return Rounded<float>::of(a); }
};

template <>
struct Rounded<uint8> {
  static HD uint8 of(float a) { return (uint8)a; }  // the value is a whole number in 0..255
};

template <>
struct Narrowed<uint8> {
  static HD uint8 of(float a) { return Rounded<uint8>::of(a); }
};

// n / d where n * d < 2^32. `magic` is 2^32 / d, rounded up, from the host.
HD int divided(int n, int d, uint32 magic) {
#if defined(__CUDA_ARCH__)
  return d == 1 ? n : (int)__umulhi((uint32)n, magic);
#else
  return d == 1 ? n : (int)((unsigned long long)(uint32)n * magic >> 32);
#endif
}

}  // namespace robocache
