// robocache_ros/alignments/angle_deg.py in CUDA.
#pragma once
#include "common/number.cuh"

namespace robocache::alignments {

// An angle in deg minus full turns, in [-180, 180]. 360 has six bits, so that turns * 360 is exact.
HD float fold_deg(float angle) {
  return sub(angle, mul(nearest_whole(mul(angle, 0.00277777785f)), 360.0f));
}

HD void angle_deg(const float* before, const float* after, float weight, float* out) {
  float moved = add(*before, mul(weight, fold_deg(sub(*after, *before))));
  bool heading = *before >= 0.0f && *before <= 360.0f && *after >= 0.0f && *after <= 360.0f;
  bool within = fabsf(*before) <= 180.0f && fabsf(*after) <= 180.0f && fabsf(moved) > 180.0f;
  if (heading) {
    *out = moved < 0.0f ? add(moved, 360.0f) : moved > 360.0f ? sub(moved, 360.0f) : moved;
  } else {
    *out = within ? fold_deg(moved) : moved;
  }
}

}  // namespace robocache::alignments
