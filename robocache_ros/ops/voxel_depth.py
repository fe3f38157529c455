"""Depth images to voxel grids in one pass: pixels projected as they are read, then placed like a cloud's points.

A pinhole camera looks along z, x to the right and y down (REP 103's optical frame). Each operation is rounded to
float32: z = depth / unit, x = (u - cx) * z / fx, y = (v - cy) * z / fy. The image must be a rectified one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops import voxel, voxel_cpu
from robocache_ros.ops.checks import (
    check_bytes,
    check_choice,
    check_names,
    checked_floats,
    checked_sizes,
    checked_whole,
)
from robocache_ros.ops.cloud import MAX_FEATURES
from robocache_ros.ops.depth_layout import COLORS, DEPTHS, Color, DepthLayout
from robocache_ros.ops.voxel_grid import FRACTION_BITS, Voxels, checked_grid, checked_reduction

AXES, RGB = ("x", "y", "z"), ("r", "g", "b")
MAX_BYTES = 2**31 - 1


def voxelize_depth(
    data: Tensor,
    *,
    encoding: str,
    width: int,
    height: int,
    step: int,
    big_endian: bool = False,
    camera: Sequence[float],
    color: Tensor | None = None,
    color_encoding: str = "rgb8",
    color_step: int = 0,
    transform: Tensor | None = None,
    grid_min: Sequence[float],
    voxel_size: float | Sequence[float],
    grid_size: Sequence[int],
    mode: str = "occupancy",
    features: Sequence[str] = (),
    sparse: bool = False,
    max_points: int | None = None,
    fraction_bits: int = FRACTION_BITS,
    out: Tensor | None = None,
) -> Voxels:
    """Voxelize a depth image straight from its bytes: project, transform, crop and place, no cloud between.

    A pixel without a depth (0, NaN, infinite or negative) is counted in `nonfinite` and not placed.

    Args:
        data: (nbytes,) uint8, contiguous, on the CPU or a CUDA device, at any alignment.
        encoding: 16UC1 or mono16, millimetres; 32FC1, metres.
        width: pixels in a row.
        height: rows.
        step: bytes from a row to the next.
        big_endian: byte order of the depths.
        camera: fx, fy, cx, cy of the rectified image in pixels, rounded to float32.
        color: (nbytes,) uint8 of an image of the same size, registered to the depth, on the same device; for features
            r, g and b, which are 0..255.
        color_encoding: rgb8, bgr8, rgba8, bgra8 or mono8.
        color_step: bytes from a row of it to the next; 0: rows without padding.
        transform: as in `voxelize_cloud_bytes`, T_grid_camera (optical frame), like the rest.
        grid_min: corner of the grid with the smallest coordinates.
        voxel_size: edge of a voxel.
        grid_size: voxels along x, y and z.
        mode: what a voxel holds.
        features: of x, y, z (in the grid's frame), r, g, b.
        sparse: give the occupied voxels alone.
        max_points: K of `first`.
        fraction_bits: resolution of `mean`.
        out: the dense grid to write.

    Returns:
        Voxels.

    Raises:
        RoboCacheError: bytes too few for the layout, an encoding, feature or camera that cannot be, and as in
            `voxelize_cloud_bytes`.
    """
    grid = checked_grid(grid_min, voxel_size, grid_size)
    check_names("features", features)
    reduction = checked_reduction(mode, len(features), max_points, fraction_bits)
    check_bytes("data", data)
    if color is not None:
        check_bytes("color", color)
        if color.device != data.device:
            raise RoboCacheError(f"color: is on {color.device} and data on {data.device}; both must be on one device")
    width, height, step = checked_sizes(width=width, height=height, step=step)
    color_step = checked_whole("color_step", color_step)
    over = None if color is None else checked_color(color.numel(), color_encoding, width, height, color_step, 0)
    layout = check_depth(data.numel(), encoding, width, height, step, big_endian, camera, over, features)
    matrix = voxel.checked_transform(transform)
    if data.is_cuda:
        from robocache_ros.ops.voxel_depth_cuda import of_depth

        distance = 0 if color is None else color.data_ptr() - data.data_ptr()
        source = of_depth(data, layout, distance, matrix, grid, reduction)
        return voxel.voxelize_source(source, grid, reduction, None, sparse, out)
    columns = depth_columns(data.numpy(), None if color is None else color.numpy(), layout, matrix)
    return voxel.voxelize_columns(columns, grid, reduction, None, None, sparse, out)


def check_depth(
    nbytes: int,
    encoding: str,
    width: int,
    height: int,
    step: int,
    big_endian: bool,
    camera: Sequence[float],
    color: Color | None,
    features: Sequence[str],
) -> DepthLayout:
    """The layout of a depth image of `nbytes` bytes; raises RoboCacheError where a pixel would lie outside them."""
    if not isinstance(encoding, str) or encoding not in DEPTHS:
        raise RoboCacheError(f"encoding: {encoding!r} is no depth; it is one of {', '.join(DEPTHS)}")
    step = _checked_step("data", nbytes, width, height, step, np.dtype(DEPTHS[encoding][0]).itemsize)
    with np.errstate(over="ignore"):
        rounded = [float(np.float32(value)) for value in checked_floats("camera", camera, ("fx", "fy", "cx", "cy"))]
    if not all(map(math.isfinite, rounded)) or min(rounded[:2]) <= 0:
        raise RoboCacheError(f"camera: {tuple(camera)} is not fx, fy, cx, cy, finite and the first two above 0")
    if len(features) > MAX_FEATURES:
        raise RoboCacheError(f"features: {len(features)} are given; at most {MAX_FEATURES} can be")
    known = (*AXES, *RGB) if color else AXES
    unknown = [name for name in features if name not in known]
    if unknown:
        why = "" if color or unknown[0] not in RGB else "; give the colour image"
        raise RoboCacheError(f"features: {unknown[0]!r} is not one of {', '.join(known)}{why}")
    bytes_of = dict(zip(RGB, COLORS[color.encoding][1], strict=True)) if color else {}
    sources = tuple([AXES.index(name) if name in AXES else 3 + bytes_of[name] for name in features])
    fx, fy, cx, cy = rounded
    return DepthLayout(encoding, width, height, step, big_endian, (fx, fy, cx, cy), color, sources)


def checked_color(nbytes: int, encoding: str, width: int, height: int, step: int, at: int) -> Color:
    """A colour image of `nbytes` bytes; raises RoboCacheError where a pixel would lie outside them."""
    check_choice("color_encoding", encoding, COLORS)
    pixel = COLORS[encoding][0]
    return Color(at, _checked_step("color", nbytes, width, height, step or width * pixel, pixel), encoding)


def _checked_step(name: str, nbytes: int, width: int, height: int, step: int, pixel: int) -> int:
    """The step, where every pixel lies inside the bytes; of a single row, which may claim any, the row's bytes."""
    if width < 1 or height < 1 or step < width * pixel:
        raise RoboCacheError(f"{name}: {height} rows of {width} pixels of {pixel} bytes do not fit a step of {step}")
    needed = (height - 1) * step + width * pixel
    if needed > nbytes:
        raise RoboCacheError(f"{name}: {nbytes} bytes, but {height} rows of {width} pixels need {needed}")
    if nbytes > MAX_BYTES:
        raise RoboCacheError(f"{name}: {nbytes} bytes; an image has {MAX_BYTES} at most")
    return step if height > 1 else width * pixel


def depth_columns(
    data: NDArray[np.uint8], color: NDArray[np.uint8] | None, layout: DepthLayout, matrix: Any
) -> list[NDArray[np.float32]]:
    """x, y, z in the grid's frame and the features, each (height * width,) float32; NaN where there is no depth."""
    name, _, unit = DEPTHS[layout.encoding]
    kind = np.dtype(name).newbyteorder(">" if layout.big_endian else "<")
    shape = (layout.height, layout.width)
    fx, fy, cx, cy = (np.float32(value) for value in layout.camera)
    raw: NDArray[Any] = np.ndarray(shape, kind, data, 0, (layout.step, kind.itemsize))
    u, v = np.arange(layout.width, dtype=np.float32), np.arange(layout.height, dtype=np.float32)[:, None]
    with np.errstate(all="ignore"):
        z = raw.astype(np.float32) / np.float32(unit)
        z = np.where((z > 0) & np.isfinite(z), z, np.float32(np.nan))
        columns = [((u - cx) * z / fx).reshape(-1), ((v - cy) * z / fy).reshape(-1), z.reshape(-1)]
    if matrix is not None:
        columns = voxel_cpu.transform(columns, matrix)
    for source in layout.sources:
        if source < 3:
            columns.append(columns[source])
        else:
            assert layout.color is not None
            assert color is not None
            strides = (layout.color.step, COLORS[layout.color.encoding][0])
            one: NDArray[np.uint8] = np.ndarray(shape, np.uint8, color, layout.color.at + source - 3, strides)
            columns.append(one.astype(np.float32).reshape(-1))
    return columns
