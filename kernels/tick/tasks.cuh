// The inputs of one tick, which the host copies to device memory. Kernels read them from there, so that one CUDA graph
// serves every tick. ops/tick.py defines the same structures.
#pragma once
#include "image/pixel.cuh"
#include "voxel/cloud.cuh"
#include "voxel/fixed_point.cuh"

namespace robocache {

// How the image or grid of a stream is produced.
enum Action { ZERO, KEEP, MAKE };  // zeros; a copy of the previous tick; computed from the bytes of a sample

struct Target {         // 16-byte aligned, with room up to a multiple of 16 bytes
  void* out;
  const void* before;   // of the previous tick, for KEEP
  int64 bytes;
  int action, unused;
};

struct ImageTask {
  Target target;
  ConvertArguments convert;  // without `out`; the target has it
};

struct ImageArguments {
  const ImageTask* task;
};

struct CloudTask {
  Target target;
  Clouds clouds;
  int64* sums;         // (features + 1, cells) for reduced features: terms of each feature, then number of points
  int64 cells;
  float scale, limit;  // of the fixed point
  double unit;
};

struct CloudArguments {
  const CloudTask* task;
};

#if defined(__CUDACC__)
// Fills a target with zeros or with a copy of the previous tick; all threads of the grid take part.
HD void fill(const Target& target) {
  const int64 step = (int64)gridDim.x * blockDim.x;
  const uint4* before = static_cast<const uint4*>(target.before);
  uint4* out = static_cast<uint4*>(target.out);
  for (int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x; i < (target.bytes + 15) / 16; i += step)
    out[i] = target.action == KEEP ? before[i] : make_uint4(0, 0, 0, 0);
}
#endif

}  // namespace robocache
