// Count: 32-bit number of points in each voxel.
#pragma once
#include "voxel/cell_grid.cuh"

namespace robocache {

struct Reduction {
  static HD void put(const CellGrid& grid, int cell, int points) {
    atomicAdd(static_cast<int*>(grid.data) + grid.first + cell, points);
  }
};

}  // namespace robocache
