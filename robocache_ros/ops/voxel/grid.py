"""Voxel grids: their arguments, memory and points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.checks import check_choice, check_names, checked_floats, checked_integer, checked_integers
from robocache_ros.ops.tensor_checks import check_tensor, checked_out
from robocache_ros.reductions import REDUCTIONS, ReductionKind
from robocache_ros.reductions.kind import FIXED_BITS, PlacedPoints, PointReduction
from robocache_ros.spec import VoxelSpec

AXES = ("x", "y", "z")
FRACTION_BITS = 20
MAX_VOXELS = 2**31 - 1


@dataclass(frozen=True)
class Grid:
    """Where the voxels are: index = floor((p - minimum) / size), each operation rounded to float32."""

    minimum: tuple[float, float, float]  # corner with the smallest coordinates, float32 values
    size: tuple[float, float, float]  # edges of a voxel, float32 values
    shape: tuple[int, int, int]

    @property
    def cells(self) -> int:
        """Number of voxels."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Reduction:
    """What a voxel holds of its points, with the parameters."""

    mode: str
    features: int  # columns after x, y, z
    max_points: int = 0  # K of `first`
    fraction_bits: int = FRACTION_BITS

    @property
    def kind(self) -> ReductionKind:
        """What the mode declares."""
        return REDUCTIONS[self.mode]

    @property
    def limit(self) -> float:
        """Where a feature saturates in a fixed-point sum."""
        return 2.0 ** (FIXED_BITS - self.fraction_bits)

    def dense_shape(self, grid: Grid) -> tuple[int, ...]:
        """Shape of one cloud's dense grid."""
        return self.kind.dense_shape(grid.shape, self.features, self.max_points)

    @property
    def dense_dtype(self) -> torch.dtype:
        """Type of the dense grid."""
        dtype: torch.dtype = getattr(torch, self.kind.dtype)
        return dtype


@dataclass(frozen=True)
class Voxelization:
    """A checked grid, what its voxels hold, and the names of the reduced fields."""

    grid: Grid
    reduction: Reduction
    features: tuple[str, ...]


@dataclass(frozen=True)
class Output:
    """The requested form of the result."""

    batched: bool = False  # shapes have a leading B
    sparse: bool = False  # only the occupied voxels
    out: Tensor | None = None  # the dense grid to write

    def dense(self, grid: Grid, reduction: Reduction, device: torch.device, batch: int = 1) -> Tensor:
        """The dense grid, `out` or a new one; raises RoboCacheError if `out` has another shape, dtype or device."""
        shape = reduction.dense_shape(grid)
        return checked_out(self.out, (batch, *shape) if self.batched else shape, reduction.dense_dtype, device)


@dataclass(frozen=True)
class Voxels:
    """A filled grid; with `sparse`, its occupied voxels only, sorted by (batch,) x, y, z."""

    dense: Tensor | None  # uint8 occupancy, int32 bits or count, float32 the others; zero where no point is
    tally: Tensor  # (3,) or (B, 3) int64 on the points' device: not finite, outside (neither placed), saturated
    coordinates: Tensor | None = None  # sparse: (V, 3) int32 x, y, z, or (V, 4) with the batch before them
    num_points: Tensor | None = None  # sparse: (V,) int32 points that fell into the voxel
    features: Tensor | None = None  # sparse: (V, F), or (V, K, 3 + F) zero-padded of first; float32

    @property
    def grid(self) -> Tensor:
        """The dense grid; raises RoboCacheError for a sparse result."""
        if self.dense is None:
            raise RoboCacheError("grid: this result is sparse; use coordinates and features, or sparse=False")
        return self.dense

    @property
    def nonfinite(self) -> Tensor:
        """Points not placed because a value that the mode reads is NaN or infinite."""
        return self.tally[..., 0]

    @property
    def outside(self) -> Tensor:
        """Finite points not placed because they are outside the grid."""
        return self.tally[..., 1]

    @property
    def saturated(self) -> Tensor:
        """Feature values that a fixed-point sum could not hold and clamped."""
        return self.tally[..., 2]


def checked_grid(grid_min: Sequence[float], voxel_size: float | Sequence[float], grid_size: Sequence[int]) -> Grid:
    """The grid, its numbers rounded to float32; raises RoboCacheError if one is out of range."""
    edges = voxel_size if np.ndim(voxel_size) else (voxel_size,) * 3
    with np.errstate(over="ignore"):
        minimum = [float(np.float32(value)) for value in checked_floats("grid_min", grid_min, AXES)]
        sizes = [float(np.float32(value)) for value in checked_floats("voxel_size", edges, AXES)]
    if not all(math.isfinite(value) for value in minimum):
        raise RoboCacheError(f"grid_min: {grid_min} is not finite in float32; give metres")
    if not all(math.isfinite(value) and value > 0 for value in sizes):
        raise RoboCacheError(f"voxel_size: {voxel_size} is not finite and above 0 in float32; give metres")
    shape = checked_integers("grid_size", grid_size, AXES)
    if not all(1 <= value <= 1 << 24 for value in shape) or math.prod(shape) > MAX_VOXELS:
        raise RoboCacheError(f"grid_size: {shape}; each must be 1..2**24, and their product at most 2**31 - 1")
    return Grid((minimum[0], minimum[1], minimum[2]), (sizes[0], sizes[1], sizes[2]), (shape[0], shape[1], shape[2]))


def checked_reduction(mode: str, features: int, max_points: int | None, fraction_bits: int) -> Reduction:
    """What the voxels hold; raises RoboCacheError on a wrong combination."""
    check_choice("mode", mode, REDUCTIONS)
    kind = REDUCTIONS[mode]
    if kind.needs_features and not features:
        raise RoboCacheError(f"mode: {mode!r} needs features besides x, y and z; give points (..., 3 + F) or features")
    if kind.needs_max_points != (max_points is not None):
        those = ", ".join(name for name, other in REDUCTIONS.items() if other.needs_max_points)
        raise RoboCacheError(f"max_points: {max_points} with mode {mode!r}; set it with {those} only")
    if max_points is not None and checked_integer("max_points", max_points) < 1:
        raise RoboCacheError(f"max_points: {max_points} is not 1 or more; increase it")
    if not 0 <= checked_integer("fraction_bits", fraction_bits) <= FIXED_BITS:
        raise RoboCacheError(f"fraction_bits: {fraction_bits} is not in 0..{FIXED_BITS}; choose another")
    return Reduction(mode, features, max_points or 0, fraction_bits)


def checked_voxelization(
    grid_min: Sequence[float],
    voxel_size: float | Sequence[float],
    grid_size: Sequence[int],
    mode: str,
    features: Sequence[str],
    max_points: int | None = None,
    fraction_bits: int = FRACTION_BITS,
) -> Voxelization:
    """The grid and the reduction of named fields; raises RoboCacheError on a wrong argument."""
    grid = checked_grid(grid_min, voxel_size, grid_size)
    check_names("features", features)
    reduction = checked_reduction(mode, len(features), max_points, fraction_bits)
    return Voxelization(grid, reduction, tuple(features))


def checked_lengths(lengths: Tensor | None, batch: int, count: int, device: torch.device) -> Tensor | None:
    """(B,) int64 on the points' device; on a GPU their values are not checked, as that would synchronise."""
    if lengths is None:
        return None
    check_tensor("lengths", lengths)
    if lengths.shape != (batch,) or lengths.dtype != torch.int64 or lengths.device != device:
        raise RoboCacheError(
            f"lengths: expected ({batch},) int64 on {device}, got {tuple(lengths.shape)} {lengths.dtype}"
            f" on {lengths.device}"
        )
    if device.type == "cpu" and batch:
        least, most = int(lengths.min()), int(lengths.max())
        if least < 0 or most > count:
            raise RoboCacheError(f"lengths: {least}..{most} is not inside 0..{count}; give points of each cloud")
    return lengths.contiguous()


def checked_transform(transform: Tensor | None) -> Any:
    """(3, 4) float32 in NumPy; raises RoboCacheError if it is not a rigid transform on the CPU."""
    if transform is None:
        return None
    check_tensor("transform", transform)
    if tuple(transform.shape) not in ((3, 4), (4, 4)) or transform.dtype != torch.float32 or transform.is_cuda:
        raise RoboCacheError(
            f"transform: expected (3, 4) or (4, 4) float32 on the CPU, got {tuple(transform.shape)} {transform.dtype}"
        )
    if not bool(torch.isfinite(transform).all()):
        raise RoboCacheError("transform: has a value that is NaN or infinite; give a rigid transform")
    if len(transform) == 4 and transform[3].tolist() != [0, 0, 0, 1]:
        raise RoboCacheError(f"transform: last row {transform[3].tolist()} is not 0, 0, 0, 1; give a rigid transform")
    return transform[:3].detach().numpy()


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


CENTRE = ("x", "y", "z")


def value_names(grid: VoxelSpec) -> tuple[str, ...]:
    """The fields of a voxel cloud after x, y, z, which are the voxels' centres; the feature `z` is thus `mean_z`."""
    if not grid.features:
        return () if grid.reduction.is_flag else (grid.reduce,)
    return tuple([f"{grid.reduce}_{name}" if name in CENTRE else name for name in grid.features])


def voxel_points(voxels: NDArray[Any], grid: VoxelSpec) -> tuple[tuple[str, ...], NDArray[np.float32]]:
    """The names of the fields, and the (N, F) occupied voxels of an (X, Y, Z) or (F, X, Y, Z) grid at their centres."""
    values = voxels if voxels.ndim == 4 else voxels[None]
    occupied = values[0] != 0 if len(values) == 1 else values.any(axis=0)
    cells = np.stack(np.unravel_index(np.flatnonzero(occupied), occupied.shape), axis=1)  # argwhere: 7 times as long
    names = (*CENTRE, *value_names(grid))
    points = np.empty((len(cells), len(names)), np.float32)
    points[:, :3] = np.array(grid.origin_m) + (cells + 0.5) * np.array(grid.size_m)
    if len(names) > 3:
        points[:, 3:] = values[:, cells[:, 0], cells[:, 1], cells[:, 2]].T
    return names, points
