"""The CPU backend of voxels: the cell of each point, and the dense grids, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.ops.voxel import segments as voxel_segments
from robocache_ros.ops.voxel.cloud_layout import CloudLayout, PointField
from robocache_ros.ops.voxel.depth_layout import COLORS, DEPTHS, DepthLayout
from robocache_ros.ops.voxel.grid import Grid, Output, Reduction, Voxelization, Voxels
from robocache_ros.reductions.kind import CellReduction, saturates
from robocache_ros.spec.message_types import POINT_DATATYPES

F32 = NDArray[np.float32]


def voxelize(
    columns: Sequence[F32],
    voxelization: Voxelization,
    output: Output,
    batch: int = 1,
    lengths: Tensor | None = None,
) -> Voxels:
    """Voxels of B clouds on the CPU, from checked arguments.

    Args:
        columns: x, y, z in the grid's frame and the features, each (B * N,).
        voxelization: the grid, and what its voxels hold.
        output: the form of the result.
        batch: B.
        lengths: (B,) int64 or None; rows past a cloud's length are not points.
    """
    grid, reduction = voxelization.grid, voxelization.reduction
    cell, counts = place(columns, grid, reduction, batch, lengths)
    tally = torch.from_numpy(counts)
    rows = np.stack(columns, axis=1) if reduction.kind.reads_features else np.zeros((len(cell), 0), np.float32)
    if output.sparse:
        points = (torch.from_numpy(cell), torch.from_numpy(rows))
        return voxel_segments.sparse_voxels(*points, grid, reduction, output, tally)
    out = output.dense(grid, reduction, torch.device("cpu"), batch)
    fill(out if output.batched else out[None], cell, rows, grid, reduction)
    return Voxels(out, tally if output.batched else tally[0])


def cloud_columns(
    data: NDArray[np.uint8], layout: CloudLayout, sources: Sequence[int | PointField], matrix: Any
) -> list[NDArray[np.float32]]:
    """x, y, z in the grid's frame and the features, each (N,) float32."""
    columns: list[NDArray[np.float32]] = []
    for number, source in enumerate(sources):
        if isinstance(source, int):
            columns.append(columns[source])
        else:
            columns.append(_column(data, layout, source))
        if number == 2 and matrix is not None:
            columns = transform(columns, matrix)
    return columns


def _column(data: NDArray[np.uint8], layout: CloudLayout, field: PointField) -> NDArray[np.float32]:
    if not layout.points:
        return np.zeros(0, np.float32)
    kind = np.dtype(POINT_DATATYPES[field.datatype - 1]).newbyteorder(">" if layout.big_endian else "<")
    shape, strides = (layout.height, layout.width), (layout.row_step, layout.point_step)
    raw: NDArray[Any] = np.ndarray(shape, kind, data, field.offset, strides)
    with np.errstate(over="ignore", invalid="ignore"):
        return raw.astype(np.float32).reshape(-1)


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
        columns = transform(columns, matrix)
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


def transform(columns: Sequence[F32], matrix: F32) -> list[F32]:
    """Rows of `matrix` (3, 4) times (x, y, z, 1): ((a x + b y) + c z) + t, each operation rounded to float32."""
    x, y, z = columns
    with np.errstate(invalid="ignore", over="ignore"):
        return [((row[0] * x + row[1] * y) + row[2] * z) + row[3] for row in matrix]


def place(
    columns: Sequence[F32], grid: Grid, reduction: Reduction, batch: int, lengths: Tensor | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The cell of each of B * N points, -1 for one not placed, and the (B, 3) tally of Voxels.

    Args:
        columns: x, y, z and the features, each (B * N,).
        grid: the grid.
        reduction: what its voxels hold.
        batch: B.
        lengths: (B,) int64 or None; rows past a cloud's length are not points.
    """
    inside: Any = True
    indices = []
    with np.errstate(invalid="ignore", over="ignore"):
        for values, low, size, count in zip(columns, grid.minimum, grid.size, grid.shape, strict=False):
            position = (values - np.float32(low)) / np.float32(size)
            inside = inside & (position >= 0) & (position < count)
            indices.append(position)
    number = len(columns[0])
    real = True if lengths is None else np.arange(number // max(batch, 1)) < lengths.numpy()[:, None]
    real = np.broadcast_to(real, (batch, number // max(batch, 1))).reshape(-1)
    read = columns if reduction.kind.reads_features else columns[:3]
    doubtful = real & ~inside
    finite: Any = True
    if doubtful.any() or len(read) > 3:
        for values in read:
            finite = finite & np.isfinite(values)
    kept = real & inside & finite
    tally = np.zeros((batch, 3), np.int64)
    tally[:, 0] = _per_cloud(real & ~np.asarray(finite), batch)
    tally[:, 1] = _per_cloud(doubtful & finite, batch)
    if reduction.kind.saturates:
        for values in columns[3:]:
            clamped = saturates(torch.from_numpy(values), reduction.fraction_bits).numpy()
            tally[:, 2] += _per_cloud(kept & clamped, batch)
    x, y, z = (np.where(kept, position, 0).astype(np.int64) for position in indices)
    cell = (x * grid.shape[1] + y) * grid.shape[2] + z
    if batch > 1:
        cell += np.repeat(np.arange(batch, dtype=np.int64) * grid.cells, number // batch)
    return np.where(kept, cell, -1), tally


def _per_cloud(flags: NDArray[np.bool_], batch: int) -> NDArray[np.int64]:
    return np.asarray(np.count_nonzero(flags.reshape(batch, -1), axis=1)) if batch else np.zeros(0, np.int64)


def fill(out: Tensor, cell: NDArray[np.int64], rows: F32, grid: Grid, reduction: Reduction) -> None:
    """Write the dense grids of B clouds into `out`, (B, ...) of the reduction's shape."""
    if isinstance(reduction.kind, CellReduction):
        reduction.kind.fill(out.numpy(), cell[cell >= 0], grid.shape)
    else:
        voxel_segments.fill(out, torch.from_numpy(cell), torch.from_numpy(rows), grid, reduction)
