// Assigns the cells of a grid to bins. A bin consists of pieces of neighbouring cells; the pieces are far from each
// other, so that points that are crowded in one place spread over the bins.
//
// Compiled with PIECE, the number of cells of a piece.
#pragma once
#include "common/number.cuh"

namespace robocache {

// Pieces form rows of 1 << bits, one piece for each bin. Each row is rotated against the previous one by the golden ratio.
HD uint32 turn_of(uint32 row, int bits) { return row * (0x9e3779b9u >> (32 - bits) | 1); }

HD uint32 bin_of(uint32 cell, int bits) {
  const uint32 piece = cell / PIECE;
  return (piece + turn_of(piece >> bits, bits)) & ((1u << bits) - 1);
}

// The place of a cell in its bin.
HD uint32 place_of(uint32 cell, int bits) { return (cell / PIECE >> bits) * PIECE + cell % PIECE; }

// The cell at a place of a bin; the last row may extend beyond the grid.
HD uint32 cell_at(uint32 bin, uint32 place, int bits) {
  const uint32 row = place / PIECE;
  return (row << bits | ((bin - turn_of(row, bits)) & ((1u << bits) - 1))) * PIECE + place % PIECE;
}

}  // namespace robocache
