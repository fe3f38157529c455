"""The occupied voxels of a grid as points, as in the messages of the node and in exported recordings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.spec import VoxelSpec

CENTRE = ("x", "y", "z")


def value_names(grid: VoxelSpec) -> tuple[str, ...]:
    """The fields of a voxel cloud after x, y, z, which are the voxels' centres; the feature `z` is thus `mean_z`."""
    if not grid.features:
        return () if grid.reduction.is_flag else (grid.reduce,)
    return tuple([f"{grid.reduce}_{name}" if name in CENTRE else name for name in grid.features])


def voxel_points(voxels: NDArray[Any], grid: VoxelSpec) -> tuple[tuple[str, ...], NDArray[np.float32]]:
    """The names of the fields, and the (N, F) occupied voxels of an (X, Y, Z) or (F, X, Y, Z) grid at their centres."""
    values = voxels if voxels.ndim == 4 else voxels[None]
    cells = np.argwhere(values.any(axis=0))
    names = (*CENTRE, *value_names(grid))
    points = np.empty((len(cells), len(names)), np.float32)
    points[:, :3] = np.array(grid.origin_m) + (cells + 0.5) * np.array(grid.size_m)
    if len(names) > 3:
        points[:, 3:] = values[:, cells[:, 0], cells[:, 1], cells[:, 2]].T
    return names, points
