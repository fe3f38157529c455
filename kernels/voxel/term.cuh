// Terms are the elements of feature reductions. They combine to the same value in any order.
//
// A reduction is `struct Reduction` in reductions/<name>.cuh. It derives from one of the structures here, or has the same
// members. It also has two members for the result:
//
//   COUNTED    `finished` needs the number of points, as one more term that `combined` must add
//   finished   the value of a voxel from the combined terms of its points
//
// The kernels include it as REDUCTION. They are compiled with REDUCTION and with FEATURES, the number of features.
#pragma once
#include "common/atomics.cuh"
#include "voxel/fixed_point.cuh"

namespace robocache {

// Sums of multiples of 1 / scale in 64 bits.
struct FixedPointSum {
  typedef uint64 Term;
  static constexpr Term NONE = 0;          // the term without points
  static constexpr bool SATURATES = true;  // features beyond `limit` are clamped, and counted
  static constexpr int PARTS = 3;          // number of float records that can hold any term

  // The term of one point.
  static HD Term term(float value, float scale, float limit) { return (uint64)fixed_point(value, scale, limit); }
  static HD Term combined(Term a, Term b) { return a + b; }

  // The value of a voxel with a single point; also the record of the point.
  static HD float alone(float value, float scale, float limit, float unit) {
    return mean_of_one(value, scale, limit, unit);
  }
  static HD Term of_record(float record, float scale) { return (uint64)(int64)mul(record, scale); }
  // The inverse. A float holds 24 bits of a sum: this returns record number `part`, of 0..last.
  static HD float record_of(Term term, int part, int last, float unit) {
    constexpr int BITS = 23;
    const int64 above = (int64)term >> part * BITS;
    const float whole = part == last ? (float)above : (float)(uint32)(above & ((1 << BITS) - 1));
    return mul(mul(whole, (float)(1ll << part * BITS)), unit);
  }

  // Combines a term with one in global memory, to which other threads also add.
  static HD void combine_at(Term* at, Term term) { atomicAdd(at, term); }
  // The same, for several terms in shared memory.
  template <int COUNT>
  static HD void combine_at(Term* at, const Term* terms) {
    // Adds 64 bits as two 32-bit halves, which shared memory adds natively. All low halves start before the first carry
    // is used.
    uint32* halves = reinterpret_cast<uint32*>(at);
    uint32 before[COUNT];
    UNROLL
    for (int i = 0; i < COUNT; ++i) before[i] = atomicAdd(halves + 2 * i, (uint32)terms[i]);
    UNROLL
    for (int i = 0; i < COUNT; ++i)
      atomicAdd(halves + 2 * i + 1, (uint32)(terms[i] >> 32) + (before[i] + (uint32)terms[i] < before[i]));
  }
};

// The greatest or the least of integer keys in the order of float32; -0 is less than +0.
template <bool GREATEST>
struct Extreme {
  typedef int Term;
  static constexpr Term NONE = -2147483647 - 1;
  static constexpr bool SATURATES = false;
  static constexpr int PARTS = 1;
  static constexpr bool COUNTED = false;

  // The least value has the greatest complement.
  static HD Term key(float value) { return GREATEST ? key_of(value) : ~key_of(value); }
  static HD float value_of(Term key) { return float_of_key(GREATEST ? key : ~key); }

  static HD Term term(float value, float, float) { return key(value); }
  static HD Term combined(Term a, Term b) { return a < b ? b : a; }
  static HD float alone(float value, float, float, float) { return value; }
  static HD Term of_record(float record, float) { return key(record); }
  static HD float record_of(Term term, int, int, float) { return value_of(term); }
  static HD void combine_at(Term* at, Term term) { atomicMax(at, term); }
  template <int COUNT>
  static HD void combine_at(Term* at, const Term* terms) {
    UNROLL
    for (int i = 0; i < COUNT; ++i) atomicMax(at + i, terms[i]);
  }
  static HD float finished(Term term, int64, double) { return value_of(term); }
};

}  // namespace robocache
