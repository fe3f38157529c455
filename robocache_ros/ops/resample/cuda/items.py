"""How a tile's elements are read and written: the template arguments of kernels/resample/item.cuh."""

from __future__ import annotations

from enum import IntFlag

import torch

from robocache_ros.alignments import alignment

# Where the rows' alignment allows no store of a full register, the items of wide rows begin where a wider store can.
LEAST_STORED, LEAST_SHIFTED, SHIFTED_BYTES = 4, 16, 8  # bytes of a store, of a row, of an item
IN_FLIGHT = 2  # items that a thread loads before it stores the first
NAMES = {torch.float32: "float", torch.float16: "f16", torch.bfloat16: "bf16", torch.uint8: "uint8"}


class StreamFlag(IntFlag):
    """What is known about a stream when its kernel is compiled, as in item.cuh."""

    STAGED = 1
    EACH_TIMES = 2
    RAGGED = 4
    GROUPED = 8
    WIDE = 16
    EVEN = 32
    WHOLE = 64
    TWICE = 128
    MARKED = 256
    PARTED = 512
    SHIFTED = 1024


def item_traits(
    method: str,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    width: int,
    skews: tuple[int, int],
    *places: int,
    ends: int,
    staged: bool = False,
    shifted: bool = False,
) -> tuple[str, int, int]:
    """The first arguments of item.cuh's StreamTraits: the widest loads and stores that shapes and addresses allow.

    Args:
        method: the name of an alignment.
        dtype: of the source.
        out_dtype: of the output.
        width: columns of a tile.
        skews: addresses of source and output modulo 16.
        places: columns of the source or the output between its start and any row of the tile.
        ends: rows follow each other in the output without a gap, and a tile begins at a multiple of so many elements;
            0 where there are gaps.
        staged: samples are in shared memory.
        shifted: items begin where a store can, not where their row does.

    Returns:
        The arguments, the elements of an item, and the columns that the items of a row cover.
    """
    size_in, size_out = dtype.itemsize, out_dtype.itemsize
    group = alignment(method).group
    load = aligned(16 // size_in, width, skews[0] // size_in)
    store = aligned(16 // size_out, width, *places, skews[1] // size_out)
    if not ends:
        load = min(load, store)  # neighbouring threads store next to one another: no half-filled sectors
    unit = item = max(load, store, group)
    if shifted:
        unit = item = store = SHIFTED_BYTES // size_out
    along = aligned(16 // size_out, ends, skews[1] // size_out) if ends else 1
    # A store may go on from one row to the next; where samples are staged, threads of one register each are faster.
    if along > store and not (staged and load * size_in == 4):
        store, unit = along, max(load, group)
        item = max(unit, store)
    reach = (width + 2 * item - load - 1) // item * item if shifted else width
    traits = ",".join((f"Method::{method}", NAMES[dtype], NAMES[out_dtype], *map(str, (load, unit, store, item))))
    return traits, item, reach


def common(a: int, b: int) -> int:
    """The greatest power of two that divides both."""
    return (a | b) & -(a | b)


def aligned(most: int, *places: int) -> int:
    """The greatest power of two up to `most` that divides all places."""
    while most > 1 and any(place % most for place in places):
        most //= 2
    return most
