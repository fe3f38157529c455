// The terms of a sum or a maximum, which do not depend on their order: 64-bit fixed point for means, keys for maxima.
#pragma once
#include "voxel/cloud.cuh"
#include "voxel/fixed_point.cuh"

#ifndef FEATURES
#define FEATURES 1
#define MAXIMUM 0
#endif

namespace robocache {

#if MAXIMUM
typedef int Term;
HD Term term(float value, float, float) { return key_of(value); }
HD Term combined(Term a, Term b) { return a < b ? b : a; }
HD float reduced(Term key, int64, double) { return float_of_key(key); }
HD float reduced_alone(float value, float, float, float) { return value; }
#else
typedef uint64 Term;
HD Term term(float value, float scale, float limit) { return (uint64)fixed_point(value, scale, limit); }
HD Term combined(Term a, Term b) { return a + b; }
HD float reduced(Term sum, int64 points, double unit) { return mean_of((int64)sum, points, unit); }
HD float reduced_alone(float value, float scale, float limit, float unit) {
  return mean_of_one(value, scale, limit, unit);
}
#endif

}  // namespace robocache
