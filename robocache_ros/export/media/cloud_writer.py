"""Writes voxel grids into a piece as point clouds of a fixed size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from robocache_ros.export.media.picture_writer import ArrayWriter, Used
from robocache_ros.ops.voxel.fixed_size import fixed_size_cloud
from robocache_ros.spec import StreamSpec


def has_points(stream: StreamSpec) -> bool:
    """Return whether the voxels of a stream contain the coordinates of points."""
    return stream.voxels is not None and stream.voxels.features[:3] == ("x", "y", "z")


class CloudWriter(ArrayWriter):
    """Writes each distinct grid of one stream as a (points, F) float32 array: see `ops.fixed_size_cloud`."""

    def __init__(self, folder: Path, stream: StreamSpec, points: int) -> None:
        super().__init__(folder, stream)
        self._points = points

    def write(self, arrays: NDArray[Any], used: Used) -> None:
        """Write the (T, F, X, Y, Z) grids of the next T rows."""
        super().write(fixed_size_cloud(torch.from_numpy(arrays), self._points).points.numpy(), used)
