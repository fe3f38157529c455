// Pixels of a depth image -> points in the camera's frame: a pinhole camera, z ahead, x right, y down.
//
// The arithmetic of robocache_ros/ops/voxel_depth.py, one rounding per operation.
#pragma once
#include "number.cuh"

namespace robocache {

// A rectified camera, and the colour image of the same size that may lie over its depth.
struct Camera {
  float fx, fy, cx, cy;  // pixels
  float unit;            // of depth, to the metre: 1000 of millimetres
  int color_step;        // bytes from a pixel's colour to the next
  int64 color;           // bytes from the depth image to the colour image
  int64 color_row;       // bytes from a row of colours to the next
};

// What was not measured is 0, NaN, or lies behind the camera or endlessly far: NaN all of it.
HD void project(const Camera& camera, float depth, int u, int v, float& x, float& y, float& z) {
  const float metres = div(depth, camera.unit);
  z = metres > 0 && metres <= 3.402823466e38f ? metres : float_of(0x7fc00000);
  x = div(mul(sub((float)u, camera.cx), z), camera.fx);
  y = div(mul(sub((float)v, camera.cy), z), camera.fy);
}

}  // namespace robocache
