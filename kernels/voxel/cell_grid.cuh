// The dense grid of a reduction that reads no features.
//
// Such a reduction is `struct Reduction` in reductions/<name>.cuh, with `put`: what `points` neighbouring points of a voxel do
// to it. The kernels include it as REDUCTION, which they are compiled with.
#pragma once
#include "common/atomics.cuh"
#include "voxel/arguments.cuh"

namespace robocache {

struct CellGrid {
  void* data;    // of all clouds, cleared
  int64 first;   // element of the cloud's grid in it
  int depth;     // voxels along z
  bool words;    // all of it consists of aligned 32-bit words
};

}  // namespace robocache
