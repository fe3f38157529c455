// Sums in fixed point and extremes of ordered keys, which do not depend on the order of the values.
//
// The arithmetic of robocache_ros/reductions/, one rounding per operation.
#pragma once
#include "voxel/arguments.cuh"

namespace robocache {

// 1 / count, for a count that is a power of two.
HD double inverse_of_power(int64 count) {
  const double value = (double)count;
#if defined(__CUDA_ARCH__)
  return __longlong_as_double((2046ll << 52) - __double_as_longlong(value));
#else
  return 1 / value;
#endif
}

// A feature as a multiple of 1 / scale, rounded to nearest even, saturating at `limit`; limit * scale is 2**40.
HD float whole_steps(float value, float scale, float limit) {
  return nearest_whole(mul(fminf(fmaxf(value, -limit), limit), scale));
}

HD int64 fixed_point(float value, float scale, float limit) { return (int64)whole_steps(value, scale, limit); }

HD bool saturates(float value, float limit) { return fabsf(value) > limit; }

// Division by a power of two is replaced by multiplication, which is also exact and takes a tenth of the time.
HD float mean_of(int64 sum, int64 count, double unit) {
  if ((count & (count - 1)) == 0) return (float)((double)sum * inverse_of_power(count) * unit);
  return (float)(ratio(sum, count) * unit);
}

// The mean of one value, without integer conversions, which are slow on a GPU. Integers have no -0: adding 0 removes
// it.
HD float mean_of_one(float value, float scale, float limit, float unit) {
  return mul(add(whole_steps(value, scale, limit), 0.0f), unit);
}

// float32 -> int32 in the same order, -0 before +0; on the bits, it is its own inverse.
HD int key_of(float value) {
  const int bits = (int)bits_of(value);
  return bits ^ (bits >> 31 & 0x7fffffff);
}

HD float float_of_key(int key) { return float_of((uint32)(key ^ (key >> 31 & 0x7fffffff))); }

}  // namespace robocache
