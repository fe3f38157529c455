"""Point clouds to voxel grids, dense or sparse, from tensors or a message's bytes; the same bits on CPU and GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops import voxel_cpu, voxel_segments
from robocache_ros.ops.checks import check_bytes, check_names, check_tensor, checked_out, checked_sizes
from robocache_ros.ops.cloud import check_cloud, checked_fields, cloud_columns, column_sources
from robocache_ros.ops.voxel_grid import (
    FRACTION_BITS,
    Grid,
    Reduction,
    Voxels,
    checked_grid,
    checked_lengths,
    checked_reduction,
)


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

    Points with NaN or infinity in what the mode reads, and points outside, are counted in `tally` and not placed.

    Args:
        points: (N, 3 + F) or (B, N, 3 + F) float32, x, y, z in metres and F features; the last dimension contiguous,
            the others with any stride.
        grid_min: corner of the grid with the smallest coordinates.
        voxel_size: edge of a voxel, one or one an axis.
        grid_size: voxels along x, y and z.
        mode: what a voxel holds; a dense grid is zero where no point is.
            occupancy: uint8 (X, Y, Z), 1 where a point is.
            occupancy_bits: int32 (X, Y, ceil(Z / 32)); bit z % 32 of word z // 32.
            count: int32 (X, Y, Z).
            mean: float32 (F, X, Y, Z) of the features, summed in fixed point (see `fraction_bits`) and so the same in
                any order; one rounding to float32 at the end.
            max: float32 (F, X, Y, Z); -0 is less than +0.
            first: float32 (X, Y, Z, K, 3 + F), the K = `max_points` points of lowest index, zero-padded: the pillar
                (VoxelNet) form, usually wanted sparse.
        lengths: (B,) int64, points of each cloud; rows past it are ignored. On a GPU they are clamped to 0..N,
            unchecked.
        sparse: give `coordinates`, `num_points` and `features` of the occupied voxels, sorted, instead of the grid. How
            many there are must be known to allocate them: on a GPU this synchronises.
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
    reduction = checked_reduction(mode, columns - 3, max_points, fraction_bits)
    lengths = checked_lengths(lengths, batch, count, points.device)
    _check_total(batch, count, grid)
    if points.is_cuda:
        from robocache_ros.ops import voxel_cuda

        source = voxel_cuda.of_tensor(clouds, lengths, grid, reduction)
        return voxelize_source(source, grid, reduction, batch if batched else None, sparse, out)
    rows = clouds.detach().reshape(batch * count, columns).numpy()
    return voxelize_columns(list(rows.T), grid, reduction, batch if batched else None, lengths, sparse, out)


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
    """Voxelize a PointCloud2 straight from its bytes: unpack, transform, crop and place in one pass, no cloud between.

    Args:
        data: (nbytes,) uint8, contiguous, on the CPU or a CUDA device, at any alignment.
        width: points in a row.
        height: rows.
        point_step: bytes from a point to the next.
        row_step: bytes from a row to the next.
        fields: with name, offset, datatype (PointField's numbers) and count; x, y and z are needed. Values of any type
            are rounded to float32 first.
        big_endian: byte order.
        transform: (3, 4) or (4, 4) float32 on the CPU, T_grid_sensor: grid <- sensor.
        grid_min: as in `voxelize_pointcloud`, in the grid's frame, like the next.
        voxel_size: edge of a voxel.
        grid_size: voxels along x, y and z; what is outside is cropped, and counted.
        mode: as in `voxelize_pointcloud`.
        features: fields to reduce; x, y and z mean the transformed coordinates.
        sparse: as in `voxelize_pointcloud`, like the rest.
        max_points: K of `first`.
        fraction_bits: resolution of `mean`.
        out: the dense grid to write.

    Returns:
        Voxels.

    Raises:
        RoboCacheError: bytes too few for the layout, a field missing or outside its point, and as above.
    """
    grid = checked_grid(grid_min, voxel_size, grid_size)
    check_names("features", features)
    reduction = checked_reduction(mode, len(features), max_points, fraction_bits)
    check_bytes("data", data)
    width, height, point_step, row_step = checked_sizes(
        width=width, height=height, point_step=point_step, row_step=row_step
    )
    layout = check_cloud(data.numel(), width, height, point_step, row_step, checked_fields(fields), big_endian)
    sources = column_sources(layout, features)
    matrix = checked_transform(transform)
    if data.is_cuda:
        from robocache_ros.ops import voxel_cuda

        source = voxel_cuda.of_bytes(data, layout, sources, matrix, grid, reduction)
        return voxelize_source(source, grid, reduction, None, sparse, out)
    columns = cloud_columns(data.numpy(), layout, sources, matrix)
    return voxelize_columns(columns, grid, reduction, None, None, sparse, out)


def voxelize_columns(
    columns: list[Any],
    grid: Grid,
    reduction: Reduction,
    batch: int | None,
    lengths: Tensor | None,
    sparse: bool,
    out: Tensor | None,
) -> Voxels:
    """The same of x, y, z and the features, each (B * N,) float32 on the CPU; `batch` None: of one cloud."""
    clouds = 1 if batch is None else batch
    cell, counts = voxel_cpu.place(columns, grid, reduction, clouds, lengths)
    tally = torch.from_numpy(counts)
    needs_rows = reduction.reads_features
    rows = np.stack(columns, axis=1) if needs_rows else np.zeros((len(cell), 0), np.float32)
    if sparse:
        return _sparse(torch.from_numpy(cell), torch.from_numpy(rows), grid, reduction, batch, tally, out)
    out = _dense_out(out, grid, reduction, batch, torch.device("cpu"))
    voxel_cpu.fill(out if batch is not None else out[None], cell, rows, grid, reduction, clouds)
    return Voxels(out, tally if batch is not None else tally[0])


def voxelize_source(
    clouds: Any, grid: Grid, reduction: Reduction, batch: int | None, sparse: bool, out: Tensor | None
) -> Voxels:
    """The same of `voxel_cuda.Clouds`."""
    from robocache_ros.ops import voxel_cuda

    if sparse:
        tally, cell, rows = voxel_cuda.locate(clouds, grid, reduction)
        return _sparse(cell, rows, grid, reduction, batch, tally, out)
    out = _dense_out(out, grid, reduction, batch, clouds.device)
    tally = voxel_cuda.fill(clouds, grid, reduction, out if batch is not None else out[None])
    return Voxels(out, tally if batch is not None else tally[0])


def _dense_out(out: Tensor | None, grid: Grid, reduction: Reduction, batch: int | None, device: torch.device) -> Tensor:
    shape = reduction.dense_shape(grid)
    return checked_out(out, shape if batch is None else (batch, *shape), reduction.dense_dtype, device)


def _sparse(
    cell: Tensor, rows: Tensor, grid: Grid, reduction: Reduction, batch: int | None, tally: Tensor, out: Tensor | None
) -> Voxels:
    """The sparse form, of the cell of each point (-1: not placed) and its (N, 3 + F) row, on any device."""
    if out is not None:
        raise RoboCacheError("out: a sparse result has no grid to write; leave out or sparse away")
    segments = voxel_segments.group(cell)
    return Voxels(
        None,
        tally if batch is not None else tally[0],
        voxel_segments.coordinates(segments.cell, grid, batch is not None),
        segments.count.to(torch.int32),
        voxel_segments.reduce(segments, rows, reduction) if reduction.reads_features else None,
    )


def _check_total(batch: int, count: int, grid: Grid) -> None:
    if batch * max(count, grid.cells) >= 2**62:
        raise RoboCacheError(f"points: {batch} clouds of {count} points in {grid.cells} voxels are too many to number")


def checked_transform(transform: Tensor | None) -> Any:
    """(3, 4) float32 in NumPy; raises RoboCacheError where it is no rigid transform on the CPU."""
    if transform is None:
        return None
    check_tensor("transform", transform)
    if tuple(transform.shape) not in ((3, 4), (4, 4)) or transform.dtype != torch.float32 or transform.is_cuda:
        raise RoboCacheError(
            f"transform: expected (3, 4) or (4, 4) float32 on the CPU, got {tuple(transform.shape)} {transform.dtype}"
        )
    if not bool(torch.isfinite(transform).all()):
        raise RoboCacheError(f"transform: {transform.tolist()} is not finite")
    if len(transform) == 4 and transform[3].tolist() != [0, 0, 0, 1]:
        raise RoboCacheError(f"transform: last row {transform[3].tolist()} is not 0, 0, 0, 1; give a rigid transform")
    return transform[:3].detach().numpy()
