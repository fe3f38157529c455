"""Count: the number of points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from robocache_ros.reductions.kind import CellReduction

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Count(CellReduction):
    """(X, Y, Z) int32 number of points."""

    summary = "the number of points"
    dtype = "int32"

    def fill(self, out: NDArray[Any], cell: NDArray[Any], shape: tuple[int, int, int]) -> None:
        """Write the number of points of each voxel."""
        import numpy as np

        out.reshape(-1)[:] = np.bincount(cell, minlength=out.size)

    def oracle(self, points: Sequence[Sequence[float]]) -> list[float]:
        """The number of points."""
        return [float(len(points))]


REDUCTION = Count()
