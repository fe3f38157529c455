// Records: rows of features, of one point or of several combined points of one voxel. Device code only.
//
// Compiled with REDUCTION and FEATURES; see term.cuh.
#pragma once
#include REDUCTION

namespace robocache {

typedef Reduction::Term Term;

constexpr int TERMS = FEATURES + Reduction::COUNTED;  // terms of a voxel: one per feature, and the number of points
constexpr Term NONE = Reduction::NONE;

struct alignas(FEATURES % 4 == 0 ? 16 : FEATURES % 2 == 0 ? 8 : 4) Row {
  float of[FEATURES];
};

// Replaces the terms of each lane by the terms of its run, from this lane to the end of the run.
__device__ __forceinline__ void combine_run(Term* terms, int length) {
  for (int d = 1; __any_sync(~0u, d < length); d *= 2) {
#pragma unroll
    for (int i = 0; i < TERMS; ++i) {
      const Term other = __shfl_down_sync(~0u, terms[i], d);
      if (d < length) terms[i] = Reduction::combined(terms[i], other);
    }
  }
}

}  // namespace robocache
