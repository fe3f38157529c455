"""The reference for voxels, in plain float64, one point at a time.

It is written to be read and rounds nothing, so backends differ from it by the rounding of the coordinates.
"""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from robocache_ros.reductions import REDUCTIONS

Array = NDArray[Any]


def voxels(
    points: Array, grid_min: tuple[float, ...], size: tuple[float, ...], shape: tuple[int, ...]
) -> tuple[dict[tuple[int, ...], list[int]], int, int]:
    """Rows of (N, 3 + F) points by their voxel, in order; and how many points are not finite, and outside."""
    inside: dict[tuple[int, ...], list[int]] = {}
    nonfinite = outside = 0
    for number, point in enumerate(points):
        if not all(math.isfinite(value) for value in point):
            nonfinite += 1
            continue
        index = tuple(
            math.floor((float(value) - low) / edge) for value, low, edge in zip(point, grid_min, size, strict=False)
        )
        if all(0 <= i < n for i, n in zip(index, shape, strict=True)):
            inside.setdefault(index, []).append(number)
        else:
            outside += 1
    return inside, nonfinite, outside


def reduced(points: Array, inside: dict[tuple[int, ...], list[int]], mode: str) -> dict[tuple[int, ...], list[float]]:
    """What each voxel that has points holds."""
    return {index: REDUCTIONS[mode].oracle(points[rows].tolist()) for index, rows in inside.items()}
