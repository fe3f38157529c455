// Mean of each feature: a sum in fixed point, divided by the number of points.
#pragma once
#include "voxel/term.cuh"

namespace robocache {

struct Reduction : FixedPointSum {
  static constexpr bool COUNTED = true;
  static HD float finished(Term sum, int64 points, double unit) { return mean_of((int64)sum, points, unit); }
};

}  // namespace robocache
