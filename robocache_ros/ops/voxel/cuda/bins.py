"""Sizes of the launches of bin_sort.cu and bin_reduce.cu: tiles of a cloud's points, and bins of a grid's voxels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from robocache_ros.ops.voxel.grid import Reduction

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
    return sizes(batch, count, cells, features, properties.multi_processor_count, shared - _STATIC)


@lru_cache
def sizes(batch: int, count: int, cells: int, features: int, processors: int, limit: int) -> Bins | None:
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
