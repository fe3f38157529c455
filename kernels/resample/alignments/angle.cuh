// robocache_ros/alignments/angle.py in CUDA.
#pragma once
#include "common/number.cuh"

namespace robocache::alignments {

// An angle minus full turns, in [-pi, pi]. The high part of 2 pi has nine bits, so that turns * high is exact.
HD float fold(float angle) {
  float turns = nearest_whole(mul(angle, 0.159154937f));
  return sub(sub(angle, mul(turns, 6.28125f)), mul(turns, 0.00193530717f));
}

HD void angle(const float* before, const float* after, float weight, float* out) {
  const float pi = 3.14159274f;
  float moved = add(*before, mul(weight, fold(sub(*after, *before))));
  bool wrapped = fabsf(*before) <= pi && fabsf(*after) <= pi && fabsf(moved) > pi;
  *out = wrapped ? fold(moved) : moved;
}

}  // namespace robocache::alignments
