// Occupancy in bits: (X * Y, words) 32-bit, bit z % 32 of word z / 32.
#pragma once
#include "voxel/cell_grid.cuh"

namespace robocache {

struct Reduction {
  static HD void put(const CellGrid& grid, int cell, int) {
    const int words = (grid.depth + 31) / 32, column = cell / grid.depth, z = cell - column * grid.depth;
    atomicOr(static_cast<uint32*>(grid.data) + grid.first + (int64)column * words + z / 32, 1u << z % 32);
  }
};

}  // namespace robocache
