"""Points grouped by voxel through a stable sort: the sparse forms, on any device, in torch.

Sums are int64 and maxima compare integers, so the result does not depend on the order of the points.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.voxel.grid import FIXED_BITS, Grid, Output, Reduction, Voxels


@dataclass(frozen=True)
class Segments:
    """M placed points in V voxels."""

    point: Tensor  # (M,) int64 row of the point, by voxel, then by row
    voxel: Tensor  # (M,) int64 which of the V voxels it is in
    cell: Tensor  # (V,) int64 rising: the voxel's number in the (batched) grid
    count: Tensor  # (V,) int64


def group(cell: Tensor) -> Segments:
    """Group points by their cell; -1 marks a point that is not placed."""
    placed = torch.nonzero(cell >= 0).squeeze(1)
    ordered, order = torch.sort(cell[placed], stable=True)
    cells, voxel, count = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
    return Segments(placed[order], voxel, cells, count)


def reduce(segments: Segments, rows: Tensor, reduction: Reduction) -> Tensor:
    """(V, F) mean or max of the features, or (V, K, 3 + F) the first K rows; `rows` is (N, 3 + F) float32."""
    selected = rows[segments.point]
    if reduction.mode == "first":
        return _first(segments, selected, reduction.max_points)
    shape = (len(segments.cell), reduction.features)
    if reduction.mode == "max":
        keys = torch.full(shape, torch.iinfo(torch.int32).min, dtype=torch.int32, device=rows.device)
        index = segments.voxel[:, None].expand(-1, reduction.features)
        return float_of_key(keys.scatter_reduce_(0, index, key_of_float(selected[:, 3:]), "amax"))
    total = torch.zeros(shape, dtype=torch.int64, device=rows.device)
    total.index_add_(0, segments.voxel, fixed_point(selected[:, 3:], reduction.fraction_bits))
    mean = total.to(torch.float64) / segments.count[:, None].to(torch.float64)
    return (mean * 2.0**-reduction.fraction_bits).to(torch.float32)


def _first(segments: Segments, selected: Tensor, max_points: int) -> Tensor:
    start = torch.cumsum(segments.count, 0) - segments.count
    rank = torch.arange(len(segments.point), device=selected.device) - start[segments.voxel]
    kept = rank < max_points
    out = torch.zeros(len(segments.cell), max_points, selected.shape[1], device=selected.device)
    out[segments.voxel[kept], rank[kept]] = selected[kept]
    return out


def coordinates(cell: Tensor, grid: Grid, batched: bool) -> Tensor:
    """(V, 3) or (V, 4) int32: x, y, z, the batch before them."""
    _, size_y, size_z = grid.shape
    within = cell % grid.cells
    parts = [within // (size_y * size_z), within // size_z % size_y, within % size_z]
    return torch.stack([cell // grid.cells, *parts] if batched else parts, dim=1).to(torch.int32)


def scatter(out: Tensor, cell: Tensor, values: Tensor, grid: Grid, reduction: Reduction) -> None:
    """Put the values of occupied cells into a cleared dense grid (B, ...)."""
    if reduction.mode == "first":
        out.view(-1, *values.shape[1:])[cell] = values
    else:
        out.view(-1, reduction.features, grid.cells)[cell // grid.cells, :, cell % grid.cells] = values


def fixed_point(values: Tensor, fraction_bits: int) -> Tensor:
    """float32 -> int64 multiples of 2**-fraction_bits, to nearest even, saturating (see FIXED_BITS)."""
    limit = 2.0 ** (FIXED_BITS - fraction_bits)
    return torch.round(values.clamp(-limit, limit) * 2.0**fraction_bits).to(torch.int64)


def saturates(values: Tensor, fraction_bits: int) -> Tensor:
    """Which values `fixed_point` clamps."""
    return values.abs() > 2.0 ** (FIXED_BITS - fraction_bits)


def key_of_float(values: Tensor) -> Tensor:
    """float32 -> int32 in the same order, -0 before +0; its own inverse on the bits."""
    bits = values.contiguous().view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def float_of_key(keys: Tensor) -> Tensor:
    """The inverse of `key_of_float`."""
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).view(torch.float32)


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
        reduce(segments, rows, reduction) if reduction.reads_features else None,
    )
