// robocache_ros/alignments/linear.py in CUDA.
#pragma once
#include "common/number.cuh"

namespace robocache::alignments {

HD void linear(const float* before, const float* after, float weight, float* out) {
  *out = add(*before, mul(weight, sub(*after, *before)));
}

}  // namespace robocache::alignments
