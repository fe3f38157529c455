"""The CUDA backend of depth images: a layout of clouds whose points are projected as they are read."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from robocache_ros.ops.depth_layout import COLORS, DEPTHS, DepthLayout
from robocache_ros.ops.voxel_cuda import PIXELS, Clouds, pack_clouds
from robocache_ros.ops.voxel_grid import Grid, Reduction

_UINT8 = 2


def of_depth(data: Tensor, layout: DepthLayout, distance: int, matrix: Any, grid: Grid, reduction: Reduction) -> Clouds:
    """One depth image; its colour image begins `distance` + `layout.color.at` bytes after it."""
    name, datatype, unit = DEPTHS[layout.encoding]
    pixel, count = np.dtype(name).itemsize, layout.width * layout.height
    flat = layout.step == layout.width * pixel
    head = (data.data_ptr(), 0, 0, layout.step, pixel, count, count if flat else layout.width)
    # A feature's type is 0, -1, -2 where it is a coordinate of the point, else that of a byte of the pixel's colour.
    offsets = (0, 0, 0, *(max(source - 3, 0) for source in layout.sources))
    types = (datatype,) * 3 + tuple(-source if source < 3 else _UINT8 for source in layout.sources)
    color = layout.color
    over = (COLORS[color.encoding][0], distance + color.at, color.step) if color else (0, 0, 0)
    how = (PIXELS, int(layout.big_endian))
    packed = pack_clouds(
        head, matrix, grid, reduction, how, (offsets, types), listed=True, camera=(*layout.camera, unit, *over)
    )
    return Clouds(packed, data.device, 1, count, ())
