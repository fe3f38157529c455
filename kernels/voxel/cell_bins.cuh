// Which cells of a grid form a bin: pieces of neighbouring cells that are far from each other, so that points which crowd in one
// place spread over the bins.
//
// Compiled with PIECE, the cells of a piece.
#pragma once
#include "common/number.cuh"

namespace robocache {

// Pieces form rows of 1 << bits, one piece for each bin. Each row is rotated against the previous one by the golden ratio.
HD uint32 turn_of(uint32 row, int bits) { return row * (0x9e3779b9u >> (32 - bits) | 1); }

HD uint32 bin_of(uint32 cell, int bits) {
  const uint32 piece = cell / PIECE;
  return (piece + turn_of(piece >> bits, bits)) & ((1u << bits) - 1);
}

// Where in its bin a cell is.
HD uint32 place_of(uint32 cell, int bits) { return (cell / PIECE >> bits) * PIECE + cell % PIECE; }

// The cell there; the last row may reach past the grid.
HD uint32 cell_at(uint32 bin, uint32 place, int bits) {
  const uint32 row = place / PIECE;
  return (row << bits | ((bin - turn_of(row, bits)) & ((1u << bits) - 1))) * PIECE + place % PIECE;
}

}  // namespace robocache
