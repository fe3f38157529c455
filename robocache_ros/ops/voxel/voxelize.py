"""Point clouds to voxel grids, dense or sparse, from tensors or a message's bytes; the same bits on CPU and GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.checks import checked_sizes
from robocache_ros.ops.tensor_checks import check_bytes, check_tensor
from robocache_ros.ops.voxel import cpu
from robocache_ros.ops.voxel.cloud_layout import CloudLayout, check_cloud, checked_fields, column_sources
from robocache_ros.ops.voxel.grid import (
    FRACTION_BITS,
    Grid,
    Output,
    Voxelization,
    Voxels,
    checked_grid,
    checked_lengths,
    checked_reduction,
    checked_transform,
    checked_voxelization,
)


# More than 50 lines for its signature and docstring; its steps are functions of their own.
def voxelize_pointcloud(
    points: Tensor,
    grid_min: Sequence[float],
    voxel_size: float | Sequence[float],
    grid_size: Sequence[int],
    mode: str = "occupancy",
    *,
    lengths: Tensor | None = None,
    sparse: bool = False,
    max_points: int | None = None,
    fraction_bits: int = FRACTION_BITS,
    out: Tensor | None = None,
) -> Voxels:
    """Place points into voxels floor((p - grid_min) / voxel_size), each operation rounded to float32.

    Points with a NaN or infinite value that the mode reads, and points outside, are counted in `tally` and not placed.

    Args:
        points: (N, 3 + F) or (B, N, 3 + F) float32, x, y, z in metres and F features; the last dimension contiguous,
            the others with any stride.
        grid_min: corner of the grid with the smallest coordinates.
        voxel_size: edge of a voxel; one value, or one per axis.
        grid_size: voxels along x, y and z.
        mode: what a voxel holds; a dense grid is zero where no point is (`robocache_ros.reductions`).
            occupancy: uint8 (X, Y, Z), 1 where a point is.
            occupancy_bits: int32 (X, Y, ceil(Z / 32)); bit z % 32 of word z // 32.
            count: int32 (X, Y, Z).
            mean, max and other reductions of features: float32 (F, X, Y, Z). A mean is summed in fixed point (see
                `fraction_bits`), with one rounding to float32 at the end. All are the same in any order of the points;
                -0 is less than +0.
            first: float32 (X, Y, Z, K, 3 + F), the K = `max_points` points of lowest index, zero-padded: the pillar
                (VoxelNet) form, usually wanted sparse.
        lengths: (B,) int64 points of each cloud; later rows are ignored. On a GPU they are not checked but clamped to
            0..N.
        sparse: return `coordinates`, `num_points` and `features` of the occupied voxels, sorted, instead of the grid.
            Their number must be known to allocate them, so on a GPU this synchronises.
        max_points: K of `first`.
        fraction_bits: a feature is summed in multiples of 2**-fraction_bits and saturates at 2**(40 - fraction_bits):
            by default steps of 1e-6 and values to 1,048,576, exact for 8 million of the largest in one voxel.
        out: the dense grid to write, contiguous, of the shape and type above.

    Returns:
        Voxels; shapes have a leading B where `points` has.

    Raises:
        RoboCacheError: a wrong shape, dtype, stride, grid, mode or `out`.
    """
    grid = checked_grid(grid_min, voxel_size, grid_size)
    check_tensor("points", points)
    if points.dtype != torch.float32 or points.ndim not in (2, 3) or points.shape[-1] < 3:
        raise RoboCacheError(
            f"points: expected (N, 3 + F) or (B, N, 3 + F) float32, got {tuple(points.shape)} {points.dtype}"
        )
    if points.numel() and points.stride(-1) != 1:
        raise RoboCacheError(f"points: strides {points.stride()}; a point's columns must be contiguous")
    batched = points.ndim == 3
    if lengths is not None and not batched:
        raise RoboCacheError("lengths: given for a single cloud (N, 3 + F); give points (B, N, 3 + F)")
    clouds = points if batched else points[None]
    batch, count, columns = clouds.shape
    voxelization = Voxelization(grid, checked_reduction(mode, columns - 3, max_points, fraction_bits), ())
    lengths = checked_lengths(lengths, batch, count, points.device)
    _check_total(batch, count, grid)
    output = Output(batched, sparse, out)
    if points.is_cuda:
        from robocache_ros.ops.voxel.cuda.clouds import of_tensor
        from robocache_ros.ops.voxel.cuda.voxelize import voxelize

        return voxelize(of_tensor(clouds, lengths, voxelization), voxelization, output)
    rows = clouds.detach().reshape(batch * count, columns).numpy()
    return cpu.voxelize(list(rows.T), voxelization, output, batch, lengths)


# More than 50 lines for its signature and docstring; its steps are functions of their own.
def voxelize_cloud_bytes(
    data: Tensor,
    *,
    width: int,
    height: int,
    point_step: int,
    row_step: int,
    fields: Sequence[Any],
    big_endian: bool = False,
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
    """Voxelize a PointCloud2 from its bytes: unpack, transform, crop and place its points in one pass.

    Args:
        data: (nbytes,) uint8, contiguous, on the CPU or a CUDA device, at any alignment.
        width: points in a row.
        height: rows.
        point_step: bytes from a point to the next.
        row_step: bytes from a row to the next.
        fields: with name, offset, datatype (PointField's numbers) and count; x, y and z are needed. Values of any type
            are rounded to float32 first.
        big_endian: byte order of the fields.
        transform: (3, 4) or (4, 4) float32 on the CPU, T_grid_sensor: grid <- sensor.
        grid_min: as in `voxelize_pointcloud`, in the grid's frame.
        voxel_size: edge of a voxel.
        grid_size: voxels along x, y and z; points outside are counted and not placed.
        mode: as in `voxelize_pointcloud`.
        features: fields to reduce; x, y and z mean the transformed coordinates.
        sparse: as in `voxelize_pointcloud`, like the following arguments.
        max_points: K of `first`.
        fraction_bits: resolution of `mean`.
        out: the dense grid to write.

    Returns:
        Voxels.

    Raises:
        RoboCacheError: too few bytes for the layout; a field that is missing or outside its point; and as in
            `voxelize_pointcloud`.
    """
    voxelization = checked_voxelization(grid_min, voxel_size, grid_size, mode, features, max_points, fraction_bits)
    width, height, point_step, row_step = checked_sizes(
        width=width, height=height, point_step=point_step, row_step=row_step
    )
    layout = CloudLayout(width, height, point_step, row_step, checked_fields(fields), big_endian)
    return voxelize_layout(data, layout, transform, voxelization, Output(sparse=sparse, out=out))


def voxelize_layout(
    data: Tensor, layout: CloudLayout, transform: Tensor | None, voxelization: Voxelization, output: Output
) -> Voxels:
    """`voxelize_cloud_bytes` of bytes whose layout is an object."""
    check_bytes("data", data)
    layout = check_cloud(data.numel(), layout)
    sources = column_sources(layout, voxelization.features)
    matrix = checked_transform(transform)
    if data.is_cuda:
        from robocache_ros.ops.voxel.cuda.clouds import of_bytes
        from robocache_ros.ops.voxel.cuda.voxelize import voxelize

        return voxelize(of_bytes(data, layout, sources, matrix, voxelization), voxelization, output)
    return cpu.voxelize(cpu.cloud_columns(data.numpy(), layout, sources, matrix), voxelization, output)


def _check_total(batch: int, count: int, grid: Grid) -> None:
    if batch * max(count, grid.cells) >= 2**62:
        raise RoboCacheError(
            f"points: {batch} clouds of {count} points in {grid.cells} voxels are too many; use smaller batches"
        )
