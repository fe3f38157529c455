"""Occupancy in bits: bit z % 32 of word z // 32 is 1 if the voxel contains a point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from robocache_ros.reductions.kind import CellReduction

if TYPE_CHECKING:
    from numpy.typing import NDArray


class OccupancyBits(CellReduction):
    """(X, Y, ceil(Z / 32)) int32; bit z % 32 of word z // 32 is voxel z."""

    summary = "occupancy in bits: bit z % 32 of word z // 32"
    dtype = "int32"
    in_spec = False  # messages and datasets store voxels, not words

    def dense_shape(self, shape: tuple[int, int, int], features: int, max_points: int) -> tuple[int, ...]:
        """(X, Y, words)."""
        return (*shape[:2], (shape[2] + 31) // 32)

    def fill(self, out: NDArray[Any], cell: NDArray[Any], shape: tuple[int, int, int]) -> None:
        """Write the words."""
        import numpy as np

        occupied = np.zeros((len(out), *shape), np.uint8)
        occupied.reshape(-1)[cell] = 1
        packed = np.zeros((*out.shape[:-1], out.shape[-1] * 4), np.uint8)
        bits = np.packbits(occupied, axis=-1, bitorder="little")
        packed[..., : bits.shape[-1]] = bits
        out[...] = packed.view("<u4").astype(np.uint32).view(np.int32)

    def oracle(self, points: Sequence[Sequence[float]]) -> list[float]:
        """1 for any points."""
        return [1.0]


REDUCTION = OccupancyBits()
