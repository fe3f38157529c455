"""Launches kernels/voxel/."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, c_float, c_int, c_longlong, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robocache_ros.ops.cuda.kernels import kernel, launch_dependent, packer
from robocache_ros.ops.voxel import grid as voxel_segments
from robocache_ros.ops.voxel.grid import Grid, Output, Reduction, Voxelization, Voxels
from robocache_ros.ops.voxel.layouts import COLORS, DEPTHS, MAX_FEATURES, CloudLayout, DepthLayout, PointField
from robocache_ros.reductions.kind import CellReduction, FeatureReduction

# The arguments of the kernels in kernels/voxel: the structures of voxel/arguments.cuh.


class Camera(Structure):
    """A rectified camera, and the colour image that is registered to its depth."""

    _fields_ = (
        ("fx", c_float),
        ("fy", c_float),
        ("cx", c_float),
        ("cy", c_float),
        ("unit", c_float),
        ("color_step", c_int),
        ("color", c_longlong),
        ("color_row", c_longlong),
    )


class Clouds(Structure):
    """Clouds as bytes, and the grid that their points are placed in."""

    _fields_ = (
        ("data", c_void_p),
        ("lengths", c_void_p),
        ("cloud_step", c_longlong),
        ("row_step", c_longlong),
        ("point_step", c_longlong),
        ("count", c_longlong),
        ("width", c_longlong),
        ("transform", c_float * 12),
        ("low", c_float * 3),
        ("size", c_float * 3),
        ("shape", c_int * 3),
        ("layout", c_int),
        ("big_endian", c_int),
        ("transformed", c_int),
        ("features", c_int),
        ("listed", c_int),
        ("reads_features", c_int),
        ("offset", c_int * (3 + MAX_FEATURES)),
        ("type", c_int * (3 + MAX_FEATURES)),
        ("camera", Camera),
    )


class ClearArguments(Structure):
    """Memory to clear."""

    _fields_ = (
        ("out", c_void_p),
        ("bytes", c_longlong),
        ("pieces", c_longlong),
        ("apart", c_longlong),
        ("tally", c_void_p),
        ("counters", c_longlong),
    )


class PlaceArguments(Structure):
    """A dense grid of each cloud."""

    _fields_ = (
        ("clouds", Clouds),
        ("grid", c_void_p),
        ("tally", c_void_p),
        ("batch", c_longlong),
        ("cells", c_longlong),
        ("words", c_int),
    )


class LocateArguments(Structure):
    """The cell of each point, and its row."""

    _fields_ = (
        ("clouds", Clouds),
        ("cell", c_void_p),
        ("tally", c_void_p),
        ("batch", c_longlong),
        ("cells", c_longlong),
        ("rows", c_void_p),
        ("limit", c_float),
    )


class SortArguments(Structure):
    """Points to sort by bins."""

    _fields_ = (
        ("clouds", Clouds),
        ("rows", c_void_p),
        ("words", c_void_p),
        ("runs", c_void_p),
        ("refused", c_void_p),
        ("tiles", c_int),
        ("tile", c_int),
        ("bits", c_int),
        ("scale", c_float),
        ("limit", c_float),
        ("unit", c_float),
    )


class BinArguments(Structure):
    """Bins to reduce to voxels."""

    _fields_ = (
        ("grid", c_void_p),
        ("rows", c_void_p),
        ("words", c_void_p),
        ("runs", c_void_p),
        ("refused", c_void_p),
        ("tally", c_void_p),
        ("cells", c_int),
        ("tiles", c_int),
        ("tile", c_int),
        ("bits", c_int),
        ("places", c_int),
        ("capacity", c_int),
        ("bytes", c_int),
        ("scale", c_float),
        ("unit", c_float),
        ("aligned", c_int),
    )


class ClaimArguments(Structure):
    """Voxels for points to claim."""

    _fields_ = (
        ("clouds", Clouds),
        ("grid", c_void_p),
        ("rows", c_void_p),
        ("tally", c_void_p),
        ("batch", c_longlong),
        ("cells", c_longlong),
        ("scale", c_float),
        ("limit", c_float),
    )


class WriteArguments(Structure):
    """Claims to replace by features."""

    _fields_ = (
        ("clouds", Clouds),
        ("grid", c_void_p),
        ("rows", c_void_p),
        ("batch", c_longlong),
        ("cells", c_longlong),
        ("scale", c_float),
        ("limit", c_float),
        ("unit", c_float),
        ("aligned", c_int),
    )


_UINT8, _FLOAT32 = 2, 7  # PointField's datatypes
_BYTES, _WORDS, _VECTORS, _PIXELS = range(4)  # enum Layout of arguments.cuh

Numbers = tuple[int | float, ...]


@dataclass(frozen=True)
class CloudSource:
    """Where the points are, and the grid that they are placed in."""

    numbers: Numbers  # of Clouds, in order
    device: torch.device
    batch: int
    count: int  # points of each cloud
    defines: tuple[str, ...]  # layouts that the kernels need not support


def cloud_of_tensor(points: Tensor, lengths: Tensor | None, voxelization: Voxelization) -> CloudSource:
    """(B, N, 3 + F) float32 as clouds of bytes; the last dimension is contiguous."""
    batch, count, _ = points.shape
    step = 4 * points.stride(1)
    layout = _VECTORS if points.data_ptr() % 16 == 0 and step % 16 == 0 and points.stride(0) % 4 == 0 else _WORDS
    steps = (4 * points.stride(0), 0, step, count, count)
    head = (points.data_ptr(), lengths.data_ptr() if lengths is not None else 0, *steps)
    fields = ((0, 4, 8), (_FLOAT32,) * 3)
    numbers = _cloud_numbers(head, None, voxelization, (layout, 0), fields)
    return CloudSource(numbers, points.device, batch, count, ("DEPTH=0", "ANY_LAYOUT=0", "ANY_FEATURE=0"))


def cloud_of_bytes(
    data: Tensor,
    cloud: CloudLayout,
    sources: Sequence[int | PointField],
    matrix: Any,
    voxelization: Voxelization,
) -> CloudSource:
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
    numbers = _cloud_numbers(head, matrix, voxelization, how, (offsets, types), listed=True)
    defines = ("DEPTH=0", f"ANY_LAYOUT={int(layout == _BYTES)}")
    return CloudSource(numbers, data.device, 1, cloud.points, defines)


def cloud_of_depth(
    data: Tensor, layout: DepthLayout, distance: int, matrix: Any, voxelization: Voxelization
) -> CloudSource:
    """One depth image; its colour image begins `distance` + `layout.color.at` bytes after the depth image."""
    name, datatype, unit = DEPTHS[layout.encoding]
    pixel, count = np.dtype(name).itemsize, layout.width * layout.height
    flat = layout.step == layout.width * pixel
    head = (data.data_ptr(), 0, 0, layout.step, pixel, count, count if flat else layout.width)
    # The type of a feature is 0, -1 or -2 for a coordinate of the point, else that of a byte of the pixel's colour.
    offsets = (0, 0, 0, *(max(source - 3, 0) for source in layout.sources))
    types = (datatype,) * 3 + tuple(-source if source < 3 else _UINT8 for source in layout.sources)
    color = layout.color
    over = (COLORS[color.encoding][0], distance + color.at, color.step) if color else (0, 0, 0)
    how = (_PIXELS, int(layout.big_endian))
    numbers = _cloud_numbers(
        head, matrix, voxelization, how, (offsets, types), listed=True, camera=(*layout.camera, unit, *over)
    )
    return CloudSource(numbers, data.device, 1, count, ())


def _cloud_numbers(
    head: Numbers,
    matrix: Any,
    voxelization: Voxelization,
    how: tuple[int, int],
    fields: tuple[tuple[int, ...], tuple[int, ...]],
    listed: bool = False,
    camera: Numbers = (0,) * 8,
) -> Numbers:
    """The numbers of Clouds, in order: the first seven; layout and byte order; the fields' offsets and types."""
    grid, reduction = voxelization.grid, voxelization.reduction
    transform = tuple(matrix.reshape(-1).tolist()) if matrix is not None else (0.0,) * 12
    offsets, types = ((*values, *(0,) * (3 + MAX_FEATURES - len(values))) for values in fields)
    flags = (*how, int(matrix is not None), reduction.features, int(listed), int(reduction.kind.reads_features))
    return (*head, *transform, *grid.minimum, *grid.size, *grid.shape, *flags, *offsets, *types, *camera)


# The cells of points, and cleared memory: launches of kernels/voxel/locate.cu.

THREADS = 256  # of a block; also those of place.cu and claims.cu
_DEFINES = (f"THREADS={THREADS}",)
_CLEAR_BLOCKS = 8  # to a multiprocessor


def locate(clouds: CloudSource, grid: Grid, reduction: Reduction) -> tuple[Tensor, Tensor, Tensor]:
    """The (B, 3) tally; the (B * N,) int64 cell of each point, or -1; and its (B * N, 3 + F) row if it is read."""
    tally = torch.zeros((clouds.batch, 3), dtype=torch.int64, device=clouds.device)
    total = clouds.batch * clouds.count
    cell = torch.empty(total, dtype=torch.int64, device=clouds.device)
    width = 3 + reduction.features if reduction.kind.reads_features else 0
    rows = torch.empty((total, width), dtype=torch.float32, device=clouds.device)
    if total:
        limit = reduction.limit if reduction.kind.saturates else 0.0
        arguments = (
            cell.data_ptr(),
            tally.data_ptr(),
            clouds.batch,
            grid.cells,
            rows.data_ptr() if width else 0,
            limit,
        )
        defines = (*clouds.defines, *_DEFINES)
        launchable = kernel("voxel/locate.cu", "locate_points", packer(LocateArguments), clouds.device.index, defines)
        launchable.launch(blocks_of(clouds), THREADS, 0, *clouds.numbers, *arguments)
    return tally, cell, rows


def clear(out: Tensor, tally: Tensor, device: torch.device) -> None:
    """Clear both; `out` (B, ...) is contiguous within each batch. The next launch may be a dependent one."""
    pieces, apart = (1, 0) if out.is_contiguous() else (len(out), out.stride(0) * out.element_size())
    size = out.numel() * out.element_size() // pieces
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    blocks = max(1, min(processors * _CLEAR_BLOCKS, (size + 16 * THREADS - 1) // (16 * THREADS)))
    arguments = (out.data_ptr(), size, pieces, apart, tally.data_ptr(), tally.numel())
    launchable = kernel("voxel/locate.cu", "clear", packer(ClearArguments), device.index, _DEFINES)
    launch_dependent(launchable, (blocks, 1, 1), THREADS, 0, *arguments)


def blocks_of(clouds: CloudSource, each: int = 1) -> tuple[int, int, int]:
    """Blocks of a launch whose threads read `each` points."""
    return -(-clouds.count // (each * THREADS)), min(clouds.batch, 65535), 1


# Sizes of the launches of bin_sort.cu and bin_reduce.cu: tiles of a cloud's points, and bins of a grid's voxels.

# Both kernels are compiled with these.
PIECE = 32  # neighbouring cells that are in one bin
SORTERS = 1024  # threads that sort a tile
REDUCERS = 256  # threads that reduce a bin
BIN_DEFINES = (f"PIECE={PIECE}u", f"SORTERS={SORTERS}", f"REDUCERS={REDUCERS}")
_MAX_BITS = 12
_MAX_PLACES = 8192
_STATIC = 6 << 10  # bytes of static shared memory of the kernels


@dataclass(frozen=True)
class Bins:
    """Sizes of the two launches: tiles of points sorted by bin, and bins reduced."""

    points: int  # sorted by a thread
    tiles: int  # of a cloud
    tile: int  # points of each, a multiple of 32
    bits: int  # there are 1 << bits bins
    places: int  # cells of each
    capacity: int  # records that fit a bin's shared memory; a bin with more is slower
    sort_bytes: int  # of shared memory, like the next two
    reduce_bytes: int
    limit: int  # of a launch's shared memory

    def scratch(self, features: int) -> tuple[int, int, int, int]:
        """32-bit words for each cloud: of rows, words, runs, refused."""
        records = self.tiles * self.tile
        return features * records, records, self.tiles << self.bits, 3 * self.tiles


def plan_bins(batch: int, count: int, cells: int, features: int, device: torch.device) -> Bins | None:
    """Sizes for `batch` clouds of `count` points in `cells` voxels; None if bins do not support them."""
    properties = torch.cuda.get_device_properties(device)
    shared = getattr(properties, "shared_memory_per_block_optin", 48 << 10)
    return bin_sizes(batch, count, cells, features, properties.multi_processor_count, shared - _STATIC)


@lru_cache
def bin_sizes(batch: int, count: int, cells: int, features: int, processors: int, limit: int) -> Bins | None:
    """The same for a device of `processors` multiprocessors and `limit` bytes of shared memory for a launch."""
    if not 0 < batch <= 65535 or not 0 < count < 1 << 30:
        return None
    points = 4 if features <= 4 else 2 if features <= 8 else 1
    most = SORTERS * points
    tiles = max(-(-count // most), min(max(1, processors // batch), -(-count // 256)))
    tile = -(-count // (32 * tiles)) * 32
    tiles = -(-count // tile)
    # At least two bins for each multiprocessor, and small enough that four blocks fit one.
    bits = max(2, _log2(cells, 4096), _log2(count, 1024), _log2(2 * processors, batch))
    while bits <= _MAX_BITS and cells >= PIECE << bits:
        places = -(-cells // (PIECE << bits)) * PIECE
        capacity = -(-max(512, (count >> bits) * 5 // 4 + 128) // 4) * 4
        sort_bytes = (4 << bits) + tile * (4 * features + 4)
        reduce_bytes = ((capacity + 4) * (4 * features + 6) + 4 * places + capacity + 15) & ~15
        if sort_bytes <= limit and reduce_bytes <= limit // 2 and places <= _MAX_PLACES:
            return Bins(points, tiles, tile, bits, places, capacity, sort_bytes, reduce_bytes, limit)
        bits += 1
    return None


def _log2(total: int, each: int) -> int:
    """Bits of the least power of two that divides `total` into parts of at most `each`."""
    return (-(-total // each) - 1).bit_length()


def bin_defines(reduction: Reduction) -> tuple[str, ...]:
    """The constants that both kernels are compiled with."""
    return (*reduction_defines(reduction), *BIN_DEFINES)


def reduction_defines(reduction: Reduction) -> tuple[str, ...]:
    """The constants that every kernel which reduces features is compiled with."""
    return f"FEATURES={reduction.features}", reduction_define(reduction.mode)


def reduction_define(mode: str) -> str:
    """The define that names a reduction's header."""
    return f'REDUCTION="voxel/reductions/{mode}.cuh"'


# Reductions that read no features, by atomics: launches of kernels/voxel/place.cu.


def place_points(clouds: CloudSource, reduction: Reduction, out: Tensor, tally: Tensor) -> None:
    """Fill the dense grids `out` (B, ...) and the tally (B, 3)."""
    clear(out, tally, clouds.device)
    if not clouds.count:
        return
    defines = (*clouds.defines, *place_defines(reduction.mode))
    launchable = kernel("voxel/place.cu", "place_points", packer(PlaceArguments), clouds.device.index, defines)
    each = out.numel() // clouds.batch
    words = int(out.data_ptr() % 4 == 0 and out.numel() % 4 == 0)
    arguments = (out.data_ptr(), tally.data_ptr(), clouds.batch, each, words)
    launch_dependent(launchable, blocks_of(clouds), THREADS, 0, *clouds.numbers, *arguments)


def place_defines(mode: str) -> tuple[str, ...]:
    """The constants that place.cu is compiled with, for clouds of any layout."""
    return (reduction_define(mode), f"THREADS={THREADS}")


# The launches of kernels/voxel/claims.cu, where each point claims its voxel, for clouds that bins do not support.

_POINTS, _CELLS = 4, 2  # that a thread of claim_voxels claims for; that a thread of write_voxels writes


def reduce_by_claims(clouds: CloudSource, grid: Grid, reduction: Reduction, out: Tensor, tally: Tensor) -> None:
    """Let each point claim its voxel; fills `out` (B, F, X, Y, Z) and the tally."""
    defines = claim_defines(reduction) + clouds.defines
    device = clouds.device.index
    scale, limit = 2.0**reduction.fraction_bits, reduction.limit
    # A row for each point, which other points of its voxel may join: the features' terms and the number of points.
    row_bytes = (reduction.features + 1) * _term_bytes(reduction)
    rows = torch.empty(clouds.batch * clouds.count * row_bytes, dtype=torch.uint8, device=clouds.device)
    pointers, sizes = (out.data_ptr(), rows.data_ptr()), (clouds.batch, grid.cells, scale, limit)
    clear(out[:, 0], tally, clouds.device)
    if clouds.count:
        claim = kernel("voxel/claims.cu", "claim_voxels", packer(ClaimArguments), device, defines)
        arguments = (*pointers, tally.data_ptr(), *sizes)
        launch_dependent(claim, blocks_of(clouds, _POINTS), THREADS, 0, *clouds.numbers, *arguments)
    aligned = int(grid.cells % _CELLS == 0 and out.data_ptr() % (4 * _CELLS) == 0)
    blocks = (-(-grid.cells // (_CELLS * THREADS)), min(clouds.batch, 65535), 1)
    write = kernel("voxel/claims.cu", "write_voxels", packer(WriteArguments), device, defines)
    launch_dependent(write, blocks, THREADS, 0, *clouds.numbers, *pointers, *sizes, 1 / scale, aligned)


def claim_defines(reduction: Reduction) -> tuple[str, ...]:
    """The constants that claims.cu is compiled with, for clouds of any layout."""
    return (
        *reduction_defines(reduction),
        f"TERM_BYTES={_term_bytes(reduction)}",
        f"THREADS={THREADS}",
        f"POINTS={_POINTS}",
        f"CELLS={_CELLS}",
    )


def _term_bytes(reduction: Reduction) -> int:
    assert isinstance(reduction.kind, FeatureReduction)
    return reduction.kind.term_bytes


# The launch of kernels/voxel/bin_sort.cu: points sorted by bins of voxels.


class Sorted(NamedTuple):
    """Points sorted by bins, in scratch memory."""

    scratch: Tensor
    pointers: list[int]  # of rows, words, runs, refused
    sizes: tuple[int, int, int]  # tiles, tile, bits


def sort_points(clouds: CloudSource, reduction: Reduction, bins: Bins) -> Sorted:
    """Sort the points of clouds by bins of voxels."""
    scale, limit = 2.0**reduction.fraction_bits, reduction.limit
    parts = [clouds.batch * words for words in bins.scratch(reduction.features)]
    scratch = torch.empty(sum(parts), dtype=torch.int32, device=clouds.device)
    pointers = [scratch.data_ptr() + 4 * sum(parts[:n]) for n in range(len(parts))]
    sizes = (bins.tiles, bins.tile, bins.bits)
    defines = (*bin_defines(reduction), *clouds.defines, f"POINTS={bins.points}")
    device = clouds.device.index
    launchable = kernel("voxel/bin_sort.cu", "sort_points", packer(SortArguments), device, defines, bins.limit)
    arguments = (*clouds.numbers, *pointers, *sizes, scale, limit, 1 / scale)
    launch_dependent(launchable, (bins.tiles, clouds.batch, 1), SORTERS, bins.sort_bytes, *arguments)
    return Sorted(scratch, pointers, sizes)


# The launch of kernels/voxel/bin_reduce.cu: features of points that are sorted by bins of voxels.


def reduce_by_bins(
    clouds: CloudSource, grid: Grid, reduction: Reduction, out: Tensor, tally: Tensor, bins: Bins
) -> None:
    """Sort the points by bins of voxels, then reduce each bin into `out` (B, F, X, Y, Z); fills the tally."""
    _scratch, pointers, sizes = sort_points(clouds, reduction, bins)
    scale, defines, device = 2.0**reduction.fraction_bits, (*bin_defines(reduction), *clouds.defines), clouds.device
    launchable = kernel("voxel/bin_reduce.cu", "reduce_bins", packer(BinArguments), device.index, defines, bins.limit)
    room = (bins.places, bins.capacity, bins.reduce_bytes)
    aligned = int(grid.cells % 4 == 0 and out.data_ptr() % 16 == 0)
    arguments = (out.data_ptr(), *pointers, tally.data_ptr(), grid.cells, *sizes, *room, scale, 1 / scale, aligned)
    launch_dependent(launchable, (1 << bins.bits, clouds.batch, 1), REDUCERS, bins.reduce_bytes, *arguments)


# Points to voxels on a GPU, in as few launches as the dependencies allow.
#
# A (B, N, 3 + F) tensor is read as bytes like any PointCloud2. Launches after the first are programmatic dependent
# ones: points are read and their cells found while the grid is still being cleared. Reductions of features need no
# clearing for most clouds: bin_sort.cu sorts their points, bin_reduce.cu writes each voxel once.
#
# Reductions of features have three strategies (figures: docs/explanation/performance_spatial.md). Bins are the
# fastest: a mean of 4 features of 500,000 random points takes 24.4 us, by claims 42.4 us. But bins need a grid and a
# cloud that fit their tiles. Claims support any grid and up to 2**31 - 2 points. A tick has its own kernels
# (kernels/tick/cloud.cu): their launches must not depend on the number of points, so that one CUDA graph serves every
# cloud.


def voxelize(clouds: CloudSource, voxelization: Voxelization, output: Output) -> Voxels:
    """Voxels of clouds on a GPU, from checked arguments."""
    grid, reduction = voxelization.grid, voxelization.reduction
    if output.sparse:
        tally, cell, rows = locate(clouds, grid, reduction)
        return voxel_segments.sparse_voxels(cell, rows, grid, reduction, output, tally)
    out = output.dense(grid, reduction, clouds.device, clouds.batch)
    tally = _fill(clouds, grid, reduction, out if output.batched else out[None])
    return Voxels(out, tally if output.batched else tally[0])


def _fill(clouds: CloudSource, grid: Grid, reduction: Reduction, out: Tensor) -> Tensor:
    """Write the dense grids (B, ...) into `out`; returns the (B, 3) tally."""
    tally = torch.empty((clouds.batch, 3), dtype=torch.int64, device=clouds.device)
    if not clouds.batch:
        return tally
    if isinstance(reduction.kind, CellReduction):
        place_points(clouds, reduction, out, tally)
    elif isinstance(reduction.kind, FeatureReduction) and clouds.count < 2**31 - 1:
        bins = plan_bins(clouds.batch, clouds.count, grid.cells, reduction.features, clouds.device)
        if bins is None:
            reduce_by_claims(clouds, grid, reduction, out, tally)
        else:
            reduce_by_bins(clouds, grid, reduction, out, tally, bins)
    else:
        tally, cell, rows = locate(clouds, grid, reduction)
        voxel_segments.fill(out, cell, rows, grid, reduction)
    return tally
