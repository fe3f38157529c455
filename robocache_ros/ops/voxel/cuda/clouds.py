"""Point clouds and depth images in the form that the voxel kernels read: bytes and the offsets of the coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robocache_ros.ops.voxel.cloud_layout import MAX_FEATURES, CloudLayout, PointField
from robocache_ros.ops.voxel.depth_layout import COLORS, DEPTHS, DepthLayout
from robocache_ros.ops.voxel.grid import Voxelization

_UINT8, _FLOAT32 = 2, 7  # PointField's datatypes
_BYTES, _WORDS, _VECTORS, _PIXELS = range(4)  # enum Layout of arguments.cuh

Numbers = tuple[int | float, ...]


@dataclass(frozen=True)
class CloudSource:
    """Where the points are, and the grid that they are placed in."""

    numbers: Numbers  # of Clouds, in order
    device: torch.device
    batch: int
    count: int  # points of each cloud
    defines: tuple[str, ...]  # layouts that the kernels need not support


def of_tensor(points: Tensor, lengths: Tensor | None, voxelization: Voxelization) -> CloudSource:
    """(B, N, 3 + F) float32 as clouds of bytes; the last dimension is contiguous."""
    batch, count, _ = points.shape
    step = 4 * points.stride(1)
    layout = _VECTORS if points.data_ptr() % 16 == 0 and step % 16 == 0 and points.stride(0) % 4 == 0 else _WORDS
    steps = (4 * points.stride(0), 0, step, count, count)
    head = (points.data_ptr(), lengths.data_ptr() if lengths is not None else 0, *steps)
    fields = ((0, 4, 8), (_FLOAT32,) * 3)
    numbers = _cloud_numbers(head, None, voxelization, (layout, 0), fields)
    return CloudSource(numbers, points.device, batch, count, ("DEPTH=0", "ANY_LAYOUT=0", "ANY_FEATURE=0"))


def of_bytes(
    data: Tensor,
    cloud: CloudLayout,
    sources: Sequence[int | PointField],
    matrix: Any,
    voxelization: Voxelization,
) -> CloudSource:
    """One PointCloud2."""
    flat = cloud.height <= 1 or cloud.row_step == cloud.width * cloud.point_step
    head = (
        data.data_ptr(),
        0,
        0,
        cloud.row_step,
        cloud.point_step,
        cloud.points,
        cloud.points if flat else cloud.width,
    )
    offsets = tuple(0 if isinstance(source, int) else source.offset for source in sources)
    types = tuple(-source if isinstance(source, int) else source.datatype for source in sources)
    layout = _BYTES
    x, y, z = offsets[:3]
    alignment = data.data_ptr() | cloud.point_step | (0 if flat else cloud.row_step)
    if types[:3] == (_FLOAT32,) * 3 and not cloud.big_endian and (alignment | x | y | z) % 4 == 0:
        together = (y, z) == (x + 4, x + 8) and (
            alignment | x
        ) % 16 == 0  # a point's step holds the load's last 4 bytes
        layout = _VECTORS if together else _WORDS
    how = (layout, int(cloud.big_endian))
    numbers = _cloud_numbers(head, matrix, voxelization, how, (offsets, types), listed=True)
    defines = ("DEPTH=0", f"ANY_LAYOUT={int(layout == _BYTES)}")
    return CloudSource(numbers, data.device, 1, cloud.points, defines)


def of_depth(data: Tensor, layout: DepthLayout, distance: int, matrix: Any, voxelization: Voxelization) -> CloudSource:
    """One depth image; its colour image begins `distance` + `layout.color.at` bytes after the depth image."""
    name, datatype, unit = DEPTHS[layout.encoding]
    pixel, count = np.dtype(name).itemsize, layout.width * layout.height
    flat = layout.step == layout.width * pixel
    head = (data.data_ptr(), 0, 0, layout.step, pixel, count, count if flat else layout.width)
    # The type of a feature is 0, -1 or -2 for a coordinate of the point, else that of a byte of the pixel's colour.
    offsets = (0, 0, 0, *(max(source - 3, 0) for source in layout.sources))
    types = (datatype,) * 3 + tuple(-source if source < 3 else _UINT8 for source in layout.sources)
    color = layout.color
    over = (COLORS[color.encoding][0], distance + color.at, color.step) if color else (0, 0, 0)
    how = (_PIXELS, int(layout.big_endian))
    numbers = _cloud_numbers(
        head, matrix, voxelization, how, (offsets, types), listed=True, camera=(*layout.camera, unit, *over)
    )
    return CloudSource(numbers, data.device, 1, count, ())


def _cloud_numbers(
    head: Numbers,
    matrix: Any,
    voxelization: Voxelization,
    how: tuple[int, int],
    fields: tuple[tuple[int, ...], tuple[int, ...]],
    listed: bool = False,
    camera: Numbers = (0,) * 8,
) -> Numbers:
    """The numbers of Clouds, in order: the first seven; layout and byte order; the fields' offsets and types."""
    grid, reduction = voxelization.grid, voxelization.reduction
    transform = tuple(matrix.reshape(-1).tolist()) if matrix is not None else (0.0,) * 12
    offsets, types = ((*values, *(0,) * (3 + MAX_FEATURES - len(values))) for values in fields)
    flags = (*how, int(matrix is not None), reduction.features, int(listed), int(reduction.kind.reads_features))
    return (*head, *transform, *grid.minimum, *grid.size, *grid.shape, *flags, *offsets, *types, *camera)
