// Occupancy: a byte of each voxel, 1 where a point is.
#pragma once
#include "voxel/cell_grid.cuh"

namespace robocache {

struct Reduction {
  // An atomic on an aligned 32-bit word takes less time than a store of one byte; else every writer of a voxel stores the same 1.
  static HD void put(const CellGrid& grid, int cell, int) {
    const int64 at = grid.first + cell;
    if (grid.words) atomicOr(static_cast<uint32*>(grid.data) + at / 4, 1u << at % 4 * 8);
    else static_cast<uint8*>(grid.data)[at] = 1;
  }
};

}  // namespace robocache
