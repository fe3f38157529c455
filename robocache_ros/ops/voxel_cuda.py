"""The CUDA backend of voxels: clear and fill the dense grid in as few launches as there are dependencies.

A (B, N, 3 + F) tensor is read as bytes like any PointCloud2. Launches after the first are programmatic dependent ones:
points are read and their cells found while the grid is still being cleared. Means and maxima of most clouds need no
clearing: voxel_sort.cu sorts their points, voxel_bins.cu writes each voxel once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robocache_ros.ops import voxel_segments
from robocache_ros.ops.cloud import MAX_FEATURES, CloudField, CloudLayout
from robocache_ros.ops.cuda.dependent import launch_dependent
from robocache_ros.ops.cuda.loader import Kernel, kernel
from robocache_ros.ops.voxel_bins import REDUCERS, SORTERS, Bins, plan
from robocache_ros.ops.voxel_grid import FEATURE_MODES, FIXED_BITS, Grid, Reduction

_FLOAT32 = 7
_BYTES, _WORDS, _VECTORS, PIXELS = range(4)
CLOUDS = "PPqqqqq12f3f3f3i6i19i19i4x5fiqq"  # the struct of voxel.cuh
_THREADS = 256
_POINTS, _CELLS = 4, 2  # a thread of claim_voxels claims for, and one of write_voxels writes
_CLEAR_BLOCKS = 8  # to a multiprocessor
_KERNELS = {"occupancy": "occupy", "occupancy_bits": "occupy_bits", "count": "count_points"}

Numbers = tuple[int | float, ...]


@dataclass(frozen=True)
class Clouds:
    """Where the points are, as the kernels take it."""

    packed: Numbers
    device: torch.device
    batch: int
    count: int  # points of each cloud
    defines: tuple[str, ...]  # what the kernels need not be able to read


def of_tensor(points: Tensor, lengths: Tensor | None, grid: Grid, reduction: Reduction) -> Clouds:
    """(B, N, 3 + F) float32 as clouds of bytes; the last dimension is contiguous."""
    batch, count, _ = points.shape
    step = 4 * points.stride(1)
    layout = _VECTORS if points.data_ptr() % 16 == 0 and step % 16 == 0 and points.stride(0) % 4 == 0 else _WORDS
    steps = (4 * points.stride(0), 0, step, count, count)
    head = (points.data_ptr(), lengths.data_ptr() if lengths is not None else 0, *steps)
    fields = ((0, 4, 8), (_FLOAT32,) * 3)
    packed = pack_clouds(head, None, grid, reduction, (layout, 0), fields)
    return Clouds(packed, points.device, batch, count, ("DEPTH=0", "ANY_LAYOUT=0", "ANY_FEATURE=0"))


def of_bytes(
    data: Tensor,
    cloud: CloudLayout,
    sources: Sequence[int | CloudField],
    matrix: Any,
    grid: Grid,
    reduction: Reduction,
) -> Clouds:
    """One PointCloud2."""
    flat = cloud.height <= 1 or cloud.row_step == cloud.width * cloud.point_step
    head = (
        data.data_ptr(),
        0,
        0,
        cloud.row_step,
        cloud.point_step,
        cloud.points,
        cloud.points if flat else cloud.width,
    )
    offsets = tuple(0 if isinstance(source, int) else source.offset for source in sources)
    types = tuple(-source if isinstance(source, int) else source.datatype for source in sources)
    layout = _BYTES
    x, y, z = offsets[:3]
    alignment = data.data_ptr() | cloud.point_step | (0 if flat else cloud.row_step)
    if types[:3] == (_FLOAT32,) * 3 and not cloud.big_endian and (alignment | x | y | z) % 4 == 0:
        together = (y, z) == (x + 4, x + 8) and (
            alignment | x
        ) % 16 == 0  # a point's step holds the load's last 4 bytes
        layout = _VECTORS if together else _WORDS
    how = (layout, int(cloud.big_endian))
    packed = pack_clouds(head, matrix, grid, reduction, how, (offsets, types), listed=True)
    defines = ("DEPTH=0", f"ANY_LAYOUT={int(layout == _BYTES)}")
    return Clouds(packed, data.device, 1, cloud.points, defines)


def pack_clouds(
    head: Numbers,
    matrix: Any,
    grid: Grid,
    reduction: Reduction,
    how: tuple[int, int],
    fields: tuple[tuple[int, ...], tuple[int, ...]],
    listed: bool = False,
    camera: Numbers = (0,) * 8,
) -> Numbers:
    """The struct of voxel.cuh: head of seven, how it is laid out and in which byte order, fields' offsets and types."""
    transform = tuple(matrix.reshape(-1).tolist()) if matrix is not None else (0.0,) * 12
    offsets, types = ((*values, *(0,) * (3 + MAX_FEATURES - len(values))) for values in fields)
    flags = (*how, int(matrix is not None), reduction.features, int(listed), int(reduction.reads_features))
    return (*head, *transform, *grid.minimum, *grid.size, *grid.shape, *flags, *offsets, *types, *camera)


def fill(clouds: Clouds, grid: Grid, reduction: Reduction, out: Tensor) -> Tensor:
    """Write the dense grids (B, ...) into `out`; returns the (B, 3) tally."""
    tally = torch.empty((clouds.batch, 3), dtype=torch.int64, device=clouds.device)
    if not clouds.batch:
        return tally
    if reduction.mode == "first" or (reduction.mode in FEATURE_MODES and clouds.count >= 2**31 - 1):
        out.zero_()
        tally, cell, rows = locate(clouds, grid, reduction)
        segments = voxel_segments.group(cell)
        values = voxel_segments.reduce(segments, rows, reduction)
        voxel_segments.scatter(out, segments.cell, values, grid, reduction)
    elif reduction.mode in FEATURE_MODES:
        _reduce(clouds, grid, reduction, out, tally)
    else:
        _clear(out, tally, clouds.device)
        if clouds.count:
            launchable = _kernel("voxel.cu", _KERNELS[reduction.mode], "PPqqi", clouds)
            each = out.numel() // clouds.batch
            words = int(out.data_ptr() % 4 == 0 and out.numel() % 4 == 0)
            arguments = (out.data_ptr(), tally.data_ptr(), clouds.batch, each, words)
            launch_dependent(launchable, _blocks(clouds), _THREADS, 0, *clouds.packed, *arguments)
    return tally


def locate(clouds: Clouds, grid: Grid, reduction: Reduction) -> tuple[Tensor, Tensor, Tensor]:
    """The (B, 3) tally, each point's cell (B * N,) int64 or -1, and the rows (B * N, 3 + F) if the mode reads them."""
    tally = torch.zeros((clouds.batch, 3), dtype=torch.int64, device=clouds.device)
    total = clouds.batch * clouds.count
    cell = torch.empty(total, dtype=torch.int64, device=clouds.device)
    width = 3 + reduction.features if reduction.reads_features else 0
    rows = torch.empty((total, width), dtype=torch.float32, device=clouds.device)
    if total:
        limit = _limit(reduction) if reduction.mode == "mean" else 0.0
        arguments = (
            cell.data_ptr(),
            tally.data_ptr(),
            clouds.batch,
            grid.cells,
            rows.data_ptr() if width else 0,
            limit,
        )
        launchable = _kernel("voxel.cu", "locate_points", "PPqqPf", clouds)
        launchable.launch(_blocks(clouds), _THREADS, 0, *clouds.packed, *arguments)
    return tally, cell, rows


def _reduce(clouds: Clouds, grid: Grid, reduction: Reduction, out: Tensor, tally: Tensor) -> None:
    bins = plan(clouds.batch, clouds.count, grid.cells, reduction.features, clouds.device)
    if bins is None:
        _reduce_claims(clouds, grid, reduction, out, tally)
    else:
        _reduce_bins(clouds, grid, reduction, out, tally, bins)


def _reduce_bins(clouds: Clouds, grid: Grid, reduction: Reduction, out: Tensor, tally: Tensor, bins: Bins) -> None:
    """Sort the points by bins of voxels, then reduce each bin."""
    device, scale = clouds.device, 2.0**reduction.fraction_bits
    parts = [clouds.batch * words for words in bins.scratch(reduction.features)]
    scratch = torch.empty(sum(parts), dtype=torch.int32, device=device)
    pointers = [scratch.data_ptr() + 4 * sum(parts[:n]) for n in range(len(parts))]
    sizes = (bins.tiles, bins.tile, bins.bits)
    defines = (*_reduction_defines(reduction), *clouds.defines)
    sort = kernel("voxel_sort.cu", "sort_points", CLOUDS + "PPPPiiifff", device.index, defines, bins.limit)
    given: Numbers = (*clouds.packed, *pointers, *sizes, scale, _limit(reduction), 1 / scale)
    launch_dependent(sort, (bins.tiles, clouds.batch, 1), SORTERS, bins.sort_bytes, *given)
    reduce = kernel("voxel_bins.cu", "reduce_bins", "PPPPPPiiiiiiiffi", device.index, defines, bins.limit)
    room = (bins.places, bins.capacity, bins.reduce_bytes)
    aligned = int(grid.cells % 4 == 0 and out.data_ptr() % 16 == 0)
    given = (out.data_ptr(), *pointers, tally.data_ptr(), grid.cells, *sizes, *room, scale, 1 / scale, aligned)
    launch_dependent(reduce, (1 << bins.bits, clouds.batch, 1), REDUCERS, bins.reduce_bytes, *given)


def _reduce_claims(clouds: Clouds, grid: Grid, reduction: Reduction, out: Tensor, tally: Tensor) -> None:
    """Let each point claim its voxel, where bins are not to be had."""
    defines = _reduction_defines(reduction)
    scale, limit = 2.0**reduction.fraction_bits, _limit(reduction)
    # A row for each point, in case it is to take others: of the features' terms, and how many points they are of.
    terms = torch.int32 if reduction.mode == "max" else torch.int64
    rows = torch.empty(clouds.batch * clouds.count * (reduction.features + 1), dtype=terms, device=clouds.device)
    pointers, sizes = (out.data_ptr(), rows.data_ptr()), (clouds.batch, grid.cells, scale, limit)
    _clear(out[:, 0], tally, clouds.device)
    if clouds.count:
        claim = _kernel("voxel_reduce.cu", "claim_voxels", "PPPqqff", clouds, defines)
        arguments = (*pointers, tally.data_ptr(), *sizes)
        launch_dependent(claim, _blocks(clouds, _POINTS), _THREADS, 0, *clouds.packed, *arguments)
    aligned = int(grid.cells % _CELLS == 0 and out.data_ptr() % (4 * _CELLS) == 0)
    blocks = (-(-grid.cells // (_CELLS * _THREADS)), min(clouds.batch, 65535), 1)
    write = _kernel("voxel_reduce.cu", "write_voxels", "PPqqfffi", clouds, defines)
    launch_dependent(write, blocks, _THREADS, 0, *clouds.packed, *pointers, *sizes, 1 / scale, aligned)


def _reduction_defines(reduction: Reduction) -> tuple[str, ...]:
    return f"FEATURES={reduction.features}", f"MAXIMUM={int(reduction.mode == 'max')}"


def _clear(out: Tensor, tally: Tensor, device: torch.device) -> None:
    """Zero both, of `out` (B, ...) what is contiguous in each of B; the next launch may be a dependent one."""
    pieces, apart = (1, 0) if out.is_contiguous() else (len(out), out.stride(0) * out.element_size())
    size = out.numel() * out.element_size() // pieces
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    blocks = max(1, min(processors * _CLEAR_BLOCKS, (size + 16 * _THREADS - 1) // (16 * _THREADS)))
    arguments = (out.data_ptr(), size, pieces, apart, tally.data_ptr(), tally.numel())
    launchable = kernel("voxel.cu", "clear", "PqqqPq", device.index)
    launch_dependent(launchable, (blocks, 1, 1), _THREADS, 0, *arguments)


def _kernel(file: str, name: str, parameters: str, clouds: Clouds, defines: tuple[str, ...] = ()) -> Kernel:
    return kernel(file, name, CLOUDS + parameters, clouds.device.index, defines + clouds.defines)


def _blocks(clouds: Clouds, each: int = 1) -> tuple[int, int, int]:
    return -(-clouds.count // (each * _THREADS)), min(clouds.batch, 65535), 1


def _limit(reduction: Reduction) -> float:
    return 2.0 ** (FIXED_BITS - reduction.fraction_bits)
