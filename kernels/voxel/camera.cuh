// Projects the pixels of a depth image to points in the camera's frame: a pinhole camera, z ahead, x right, y down.
//
// The arithmetic of depth_columns in robocache_ros/ops/voxel/voxelize.py, one rounding per operation.
#pragma once
#include "voxel/arguments.cuh"

namespace robocache {

// A depth of 0, NaN, infinity or below 0 was not measured; x, y and z are then NaN.
HD void project(const Camera& camera, float depth, int u, int v, float& x, float& y, float& z) {
  const float metres = div(depth, camera.unit);
  z = metres > 0 && metres <= 3.402823466e38f ? metres : float_of(0x7fc00000);
  x = div(mul(sub((float)u, camera.cx), z), camera.fx);
  y = div(mul(sub((float)v, camera.cy), z), camera.fy);
}

}  // namespace robocache
