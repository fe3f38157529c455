"""Launches of kernels/image/area.cu: area means of packed images whose rows are aligned.

convert.cu computes area means of all other images. This kernel exists for its speed: 1080p rgb8 to 224 x 224 takes
3.8 us in L2, about the time that a copy of the image's bytes takes (docs/explanation/performance_spatial.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from robocache_ros.ops.cuda.dependent_launch import launch_captured_dependent
from robocache_ros.ops.cuda.loader import kernel
from robocache_ros.ops.cuda.structures import packer
from robocache_ros.ops.image.conversion import Conversion
from robocache_ros.ops.image.cuda.arguments import AreaArguments
from robocache_ros.ops.image.formats import PACKED

Numbers = tuple[int | float, ...]

THREADS = 96  # of a block
_ROW_SHARES = 65535 // 255  # of an output row, so that area.cuh can sum its bytes in 16 bits


def convert_area(arguments: Numbers, data: Tensor, conversion: Conversion, out: Tensor) -> bool:
    """Launch area.cu if it supports the image; `arguments` are those of ConvertArguments."""
    fmt, step, (_, _, rows, columns) = conversion.format, conversion.layout.step, conversion.crop
    out_height, out_width = out.shape[1:]
    if fmt.family != PACKED or (data.data_ptr() | step) % 16 or data.numel() >= 2**32:
        return False
    tiles = area_tiles(fmt.pixel_bytes, rows, columns, out_height, out_width)
    if tiles is None:
        return False
    grid, element = (-(-out_width // tiles.per_block), out_height, 1), int(arguments[-1])
    defines = area_defines(fmt.pixel_bytes, element)
    launchable = kernel("image/area.cu", "area_packed", packer(AreaArguments), data.device.index, defines)
    axes = (*tiles.across, *tiles.down)
    launch_captured_dependent(launchable, grid, THREADS, 0, *arguments, *axes, tiles.per_block)
    return True


def area_defines(pixel_bytes: int, element: int) -> tuple[str, ...]:
    """The constants that area.cu is compiled with."""
    return (f"PIXEL_BYTES={pixel_bytes}", f"ELEMENT={element}", f"THREADS={THREADS}")


@dataclass(frozen=True)
class AreaTiles:
    """How area.cu divides an image."""

    across: tuple[int, int, int, int]  # Axis of arguments.cuh
    down: tuple[int, int, int, int]
    per_block: int  # output columns that a block computes


@lru_cache(maxsize=256)
def area_tiles(pixel_bytes: int, rows: int, columns: int, out_height: int, out_width: int) -> AreaTiles | None:
    """The tiles for the sides of a source and of the result, in pixels; None if area.cu does not support them."""
    across, down = _axis(columns, out_width), _axis(rows, out_height)
    if across is None or down is None or down[0] > _ROW_SHARES or across[0] * down[0] > 2**24:
        return None
    widest = (16 * THREADS - 15) // pixel_bytes - 2  # source columns whose sums fit a block
    most = min(out_width, 2 * THREADS // (3 if pixel_bytes > 1 else 1), widest * out_width // columns)
    if most < 1:
        return None
    blocks = -(-out_width // most)
    return AreaTiles(across, down, -(-out_width // blocks))


def _axis(source: int, out: int) -> tuple[int, int, int, int] | None:
    """Axis of arguments.cuh; None if its divisions exceed 32 bits."""
    common = math.gcd(source, out)
    shares, pixel = source // common, out // common
    if out * shares * pixel >= 2**32:
        return None
    return shares, pixel, -(-(2**32) // pixel) % 2**32, -(-shares // pixel)
