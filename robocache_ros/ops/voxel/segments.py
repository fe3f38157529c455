"""Points grouped by voxel through a stable sort: the sparse forms, on any device, in torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.voxel.grid import Grid, Output, Reduction, Voxels
from robocache_ros.reductions.kind import PlacedPoints, PointReduction


@dataclass(frozen=True)
class Segments:
    """M placed points in V voxels."""

    point: Tensor  # (M,) int64 row of the point; sorted by voxel, then by row
    voxel: Tensor  # (M,) int64 which of the V voxels it is in
    cell: Tensor  # (V,) int64, ascending: the voxel's number in the (batched) grid
    count: Tensor  # (V,) int64


def group(cell: Tensor) -> Segments:
    """Group points by their cell; -1 marks a point that is not placed."""
    placed = torch.nonzero(cell >= 0).squeeze(1)
    ordered, order = torch.sort(cell[placed], stable=True)
    cells, voxel, count = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
    return Segments(placed[order], voxel, cells, count)


def reduce(segments: Segments, rows: Tensor, reduction: Reduction) -> Tensor:
    """(V, ...) what each voxel holds, of a reduction that reads the points; `rows` is (N, 3 + F) float32."""
    kind = reduction.kind
    assert isinstance(kind, PointReduction)
    sizes = (reduction.fraction_bits, reduction.max_points)
    return kind.reduce(PlacedPoints(rows[segments.point], segments.voxel, segments.count, *sizes))


def fill(out: Tensor, cell: Tensor, rows: Tensor, grid: Grid, reduction: Reduction) -> None:
    """Write the dense grids `out` (B, ...) of a reduction that reads the points."""
    kind = reduction.kind
    assert isinstance(kind, PointReduction)
    segments = group(cell)
    kind.scatter(out.zero_(), segments.cell, reduce(segments, rows, reduction), grid.cells)


def coordinates(cell: Tensor, grid: Grid, batched: bool) -> Tensor:
    """(V, 3) int32 x, y, z; or (V, 4), with the batch before them."""
    _, size_y, size_z = grid.shape
    within = cell % grid.cells
    parts = [within // (size_y * size_z), within // size_z % size_y, within % size_z]
    return torch.stack([cell // grid.cells, *parts] if batched else parts, dim=1).to(torch.int32)


def sparse_voxels(
    cell: Tensor, rows: Tensor, grid: Grid, reduction: Reduction, output: Output, tally: Tensor
) -> Voxels:
    """The sparse form, of the cell of each point (-1: not placed) and its (N, 3 + F) row, on any device."""
    if output.out is not None:
        raise RoboCacheError("out: a sparse result has no dense grid to write; use out=None or sparse=False")
    segments = group(cell)
    return Voxels(
        None,
        tally if output.batched else tally[0],
        coordinates(segments.cell, grid, output.batched),
        segments.count.to(torch.int32),
        reduce(segments, rows, reduction) if reduction.kind.reads_features else None,
    )
