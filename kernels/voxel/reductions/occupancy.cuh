// Occupancy: one byte per voxel, 1 if it contains a point.
#pragma once
#include "voxel/cell_grid.cuh"

namespace robocache {

struct Reduction {
  // An atomic on an aligned 32-bit word is faster than a store of one byte. Else, every writer of a voxel stores the
  // same 1.
  static HD void put(const CellGrid& grid, int cell, int) {
    const int64 at = grid.first + cell;
    if (grid.words) atomicOr(static_cast<uint32*>(grid.data) + at / 4, 1u << at % 4 * 8);
    else static_cast<uint8*>(grid.data)[at] = 1;
  }
};

}  // namespace robocache
