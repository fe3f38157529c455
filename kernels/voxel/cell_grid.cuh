// The dense grid of a reduction that reads no features.
//
// Such a reduction is `struct Reduction` in reductions/<name>.cuh. Its function `put` adds `points` neighbouring points
// of a voxel to the grid. The kernels include it as REDUCTION, with which they are compiled.
#pragma once
#include "common/atomics.cuh"
#include "voxel/arguments.cuh"

namespace robocache {

struct CellGrid {
  void* data;    // of all clouds, cleared
  int64 first;   // index of the first element of the cloud's grid
  int depth;     // voxels along z
  bool words;    // the grid consists of aligned 32-bit words
};

}  // namespace robocache
