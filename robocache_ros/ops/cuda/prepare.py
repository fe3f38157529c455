"""Images and clouds made ready for a tick: the checks of `convert_image` and `voxelize_cloud_bytes`, no launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robocache_ros.ops import image, image_cuda, voxel, voxel_cuda
from robocache_ros.ops.cloud import check_cloud, column_sources
from robocache_ros.ops.image_formats import check_image, image_format
from robocache_ros.ops.voxel_depth import check_depth, checked_color
from robocache_ros.ops.voxel_depth_cuda import of_depth
from robocache_ros.ops.voxel_grid import FIXED_BITS, FRACTION_BITS, Grid, Reduction, checked_grid, checked_reduction

Numbers = tuple[int | float, ...]
MODES = ("occupancy", "count", "mean", "max")  # as tick_cloud.cu numbers them


@dataclass(frozen=True)
class Prepared:
    """What becomes of one sample's bytes.

    A stream's kernels are captured once for each `variant`; what else differs from sample to sample is in `numbers`.
    """

    shape: tuple[int, ...]  # of the result
    dtype: torch.dtype
    variant: tuple[int, ...]  # images: family, resize, pixels; clouds: mode, features, cells, whether of depth
    numbers: Numbers  # the task behind its target, the address of the bytes first


def prepare_image(
    nbytes: int,
    *,
    encoding: str,
    width: int,
    height: int,
    step: int,
    big_endian: bool,
    size: tuple[int, int] | None,
    crop: tuple[int, int, int, int] | None,
    resize: str,
    normalize: Any,
    dtype: torch.dtype | None,
) -> Prepared:
    """An image of `nbytes` bytes; the other arguments, and the errors, are those of `convert_image`."""
    fmt = image_format(encoding)
    check_image(fmt, width, height, step, nbytes)
    box = image.checked_crop(crop, width, height)
    rows, columns = image.checked_size(size, box)
    affine = image.mean_std(normalize, fmt.channels)
    dtype = image.checked_dtype(dtype, fmt, affine is not None)
    out = torch.empty((fmt.channels, rows, columns), dtype=dtype, device="meta")
    job = image_cuda.packed_job(_nowhere(nbytes), fmt, (width, height, step), big_endian, box, affine, out)
    variant = (fmt.family, image_cuda.RESIZE[resize], rows * columns)
    return Prepared(tuple(out.shape), dtype, variant, job)


def prepare_cloud(
    nbytes: int,
    *,
    width: int,
    height: int,
    point_step: int,
    row_step: int,
    fields: Sequence[Any],
    big_endian: bool,
    transform: Tensor | None,
    grid_min: Sequence[float],
    voxel_size: float | Sequence[float],
    grid_size: Sequence[int],
    mode: str,
    features: Sequence[str],
    sums: Tensor | None,
) -> Prepared:
    """A cloud of `nbytes` bytes at a multiple of 16; arguments and errors are those of `voxelize_cloud_bytes`.

    sums: scratch for mean and max, (features + 1, cells) int64.
    """
    grid = checked_grid(grid_min, voxel_size, grid_size)
    reduction = checked_reduction(mode, len(features), None, FRACTION_BITS)
    layout = check_cloud(nbytes, width, height, point_step, row_step, fields, big_endian)
    sources = column_sources(layout, features)
    matrix = voxel.checked_transform(transform)
    clouds = voxel_cuda.of_bytes(_nowhere(nbytes), layout, sources, matrix, grid, reduction)
    return _prepared(clouds, grid, reduction, sums, 0)


def prepare_depth(
    nbytes: int,
    *,
    encoding: str,
    width: int,
    height: int,
    step: int,
    big_endian: bool,
    camera: Sequence[float],
    color_encoding: str,
    color_step: int,
    color_at: int,
    transform: Tensor | None,
    grid_min: Sequence[float],
    voxel_size: float | Sequence[float],
    grid_size: Sequence[int],
    mode: str,
    features: Sequence[str],
    sums: Tensor | None,
) -> Prepared:
    """A depth image of `nbytes` bytes; arguments and errors are those of `voxelize_depth`.

    Its colours, if `color_encoding` is not empty, are the bytes from `color_at` on. sums: as of `prepare_cloud`.
    """
    grid = checked_grid(grid_min, voxel_size, grid_size)
    reduction = checked_reduction(mode, len(features), None, FRACTION_BITS)
    color = None
    if color_encoding:
        color = checked_color(nbytes - color_at, color_encoding, width, height, color_step, 0)
    layout = check_depth(nbytes, encoding, width, height, step, big_endian, camera, color, features)
    matrix = voxel.checked_transform(transform)
    clouds = of_depth(_nowhere(nbytes), layout, color_at, matrix, grid, reduction)
    return _prepared(clouds, grid, reduction, sums, 1)


def _prepared(
    clouds: voxel_cuda.Clouds, grid: Grid, reduction: Reduction, sums: Tensor | None, is_depth: int
) -> Prepared:
    scale, limit = 2.0**FRACTION_BITS, 2.0 ** (FIXED_BITS - FRACTION_BITS)
    tail = (sums.data_ptr() if sums is not None else 0, grid.cells, scale, limit, 1 / scale)
    variant = (MODES.index(reduction.mode), reduction.features, grid.cells, is_depth)
    return Prepared(reduction.dense_shape(grid), reduction.dense_dtype, variant, (*clouds.packed, *tail))


def _nowhere(nbytes: int) -> Tensor:
    """(nbytes,) uint8 at address 0: the plan puts in where a sample's bytes really are."""
    return torch.empty(nbytes, dtype=torch.uint8, device="meta")
