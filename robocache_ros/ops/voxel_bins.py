"""How voxel_sort.cu deals a cloud's points out to tiles, and voxel_bins.cu a grid's voxels to bins: by sizes alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

# As in the kernels.
PIECE = 32  # neighbouring cells of a bin
SORTERS = 1024  # threads that sort a tile
REDUCERS = 256  # threads that reduce a bin
_MAX_BITS = 12
_MAX_PLACES = 8192
_STATIC = 6 << 10  # bytes of shared memory that the kernels take besides


@dataclass(frozen=True)
class Bins:
    """Sizes of the two launches: tiles of points sorted by bin, and bins reduced."""

    tiles: int  # of a cloud
    tile: int  # points of each, a multiple of 32
    bits: int  # there are 1 << bits bins
    places: int  # cells of each
    capacity: int  # records that a bin has room for; it takes any number, but more take longer
    sort_bytes: int  # of shared memory, like the next two
    reduce_bytes: int
    limit: int  # what a launch may have

    def scratch(self, features: int) -> tuple[int, int, int, int]:
        """32-bit words for each cloud: of rows, words, runs, refused."""
        records = self.tiles * self.tile
        return features * records, records, self.tiles << self.bits, 3 * self.tiles


def plan(batch: int, count: int, cells: int, features: int, device: torch.device) -> Bins | None:
    """Sizes for `batch` clouds of `count` points in `cells` voxels; None where either is not for bins."""
    properties = torch.cuda.get_device_properties(device)
    shared = getattr(properties, "shared_memory_per_block_optin", 48 << 10)
    return sizes(batch, count, cells, features, properties.multi_processor_count, shared - _STATIC)


@lru_cache
def sizes(batch: int, count: int, cells: int, features: int, processors: int, limit: int) -> Bins | None:
    """The same for a device of so many multiprocessors, where a launch may have `limit` bytes of shared memory."""
    if not 0 < batch <= 65535 or not 0 < count < 1 << 30:
        return None
    most = SORTERS * (4 if features <= 4 else 2 if features <= 8 else 1)
    tiles = max(-(-count // most), min(max(1, processors // batch), -(-count // 256)))
    tile = -(-count // (32 * tiles)) * 32
    tiles = -(-count // tile)
    # Two blocks of bins to a multiprocessor at least, and of a size that four fit.
    bits = max(2, _log2(cells, 4096), _log2(count, 1024), _log2(2 * processors, batch))
    while bits <= _MAX_BITS and cells >= PIECE << bits:
        places = -(-cells // (PIECE << bits)) * PIECE
        capacity = -(-max(512, (count >> bits) * 5 // 4 + 128) // 4) * 4
        sort_bytes = (4 << bits) + tile * (4 * features + 4)
        reduce_bytes = ((capacity + 4) * (4 * features + 6) + 4 * places + capacity + 15) & ~15
        if sort_bytes <= limit and reduce_bytes <= limit // 2 and places <= _MAX_PLACES:
            return Bins(tiles, tile, bits, places, capacity, sort_bytes, reduce_bytes, limit)
        bits += 1
    return None


def _log2(total: int, each: int) -> int:
    """Bits of the least power of two of parts of `total` that are no more than `each`."""
    return (-(-total // each) - 1).bit_length()
