// Records: rows of features, each of a point, or of what points of one voxel add up to or are at most. Device code only.
#pragma once
#include "voxel/term.cuh"

namespace robocache {

constexpr int TERMS = FEATURES + !MAXIMUM;  // of a voxel: its sums and how many points, or its maxima
constexpr Term NONE = MAXIMUM ? -2147483647 - 1 : 0;

struct alignas(FEATURES % 4 == 0 ? 16 : FEATURES % 2 == 0 ? 8 : 4) Row {
  float of[FEATURES];
};

// A record's feature as a term.
__device__ __forceinline__ Term term_of(float feature, float scale) {
#if MAXIMUM
  return key_of(feature);
#else
  return (uint64)(int64)mul(feature, scale);
#endif
}

// The other way round. A sum takes several records, for a float holds 24 bits of it: this is number `part`, of 0..last.
__device__ __forceinline__ float part_of(Term term, int part, int last, float unit) {
#if MAXIMUM
  return float_of_key(term);
#else
  constexpr int BITS = 23;
  const int64 above = (int64)term >> part * BITS;
  const float whole = part == last ? (float)above : (float)(uint32)(above & ((1 << BITS) - 1));
  return mul(mul(whole, (float)(1ll << part * BITS)), unit);
#endif
}

// Combines terms of many threads in shared memory.
__device__ __forceinline__ void combine_into(Term* sums, const Term* terms) {
#if MAXIMUM
#pragma unroll
  for (int i = 0; i < TERMS; ++i) atomicMax(sums + i, terms[i]);
#else  // 64 bits as twice 32, which shared memory adds natively; the low ones first, all on their way before a carry is used
  uint32* halves = reinterpret_cast<uint32*>(sums);
  uint32 before[TERMS];
#pragma unroll
  for (int i = 0; i < TERMS; ++i) before[i] = atomicAdd(halves + 2 * i, (uint32)terms[i]);
#pragma unroll
  for (int i = 0; i < TERMS; ++i)
    atomicAdd(halves + 2 * i + 1, (uint32)(terms[i] >> 32) + (before[i] + (uint32)terms[i] < before[i]));
#endif
}

// Each lane's terms become those of its run, from this lane to the run's end.
__device__ __forceinline__ void combine_run(Term* terms, int length) {
  for (int d = 1; __any_sync(~0u, d < length); d *= 2) {
#pragma unroll
    for (int i = 0; i < TERMS; ++i) {
      const Term other = __shfl_down_sync(~0u, terms[i], d);
      if (d < length) terms[i] = combined(terms[i], other);
    }
  }
}

}  // namespace robocache
