"""Occupancy: 1 if a voxel contains a point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from robocache_ros.reductions.kind import CellReduction

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Occupancy(CellReduction):
    """(X, Y, Z) uint8, 1 if the voxel contains a point."""

    summary = "1 where a point is"
    dtype = "uint8"
    is_flag = True

    def fill(self, out: NDArray[Any], cell: NDArray[Any], shape: tuple[int, int, int]) -> None:
        """Write 0 and 1."""
        out[...] = 0
        out.reshape(-1)[cell] = 1

    def oracle(self, points: Sequence[Sequence[float]]) -> list[float]:
        """1 for any points."""
        return [1.0]


REDUCTION = Occupancy()
