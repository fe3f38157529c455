"""How streams are cut into tiles, each a block's, and how a tile's elements are read and written.

No GPU is needed to plan: tests run plans on the CPU, through the same headers.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import NamedTuple

import torch

# Shared memory of a block, 48 KiB in all: rows, times (more of them are searched where they are) and samples.
MOST_ROWS, MOST_TIMES_BYTES, MOST_DATA_BYTES = 500, 8 * 1024, 31 * 1024
PART_BYTES, LEAST_PART = 16 * 1024, 64  # of samples that are cut by columns down to, and of a row of them
GROUP_BYTES = 16 * 1024  # of samples, that batches are put together up to
TILES_PER_PROCESSOR = 32  # that a large problem is cut into at least
# item.cuh's Form
STAGED, EACH_TIMES, RAGGED, GROUPED, WIDE, EVEN, WHOLE, TWICE, MARKED, PARTED, SHIFTED = (1 << bit for bit in range(11))


class Tuning(NamedTuple):
    """How a kernel is compiled and its tiles are cut, by what was fastest."""

    threads: int  # of a block
    blocks: int  # that a multiprocessor should hold, where there are so many
    most: float  # bytes of a tile


# The first that fits is taken. Tiles whose samples are not staged fit where there are more batches than a GPU does at
# once: fewer are done sooner by more threads each.
TUNINGS = (Tuning(64, 24, 8 * 1024), Tuning(128, 12, 32 * 1024), Tuning(256, 6, math.inf))
# Where rows allow no store of a register, items of those that are wide begin where a wider store can.
LEAST_STORED, LEAST_SHIFTED, SHIFTED_BYTES = 4, 16, 8  # bytes of a store, of a row, of an item
IN_FLIGHT = 2  # items that a thread loads before it stores the first
NAMES = {torch.float32: "float", torch.float16: "f16", torch.bfloat16: "bf16", torch.uint8: "uint8"}


class StreamKey(NamedTuple):
    """What of a stream the plan depends on."""

    samples: int
    width: int
    dtype: torch.dtype
    method: str
    each_times: bool  # times are (B, S) and not (S,)
    ragged: bool  # it has lengths
    skew: int  # the address of its data, modulo 16


class Part(NamedTuple):
    """Which of the output's streams a launch makes, where one launch does not make all of them."""

    column: int = 0  # where they begin in a row
    pitch: int | None = None  # columns of a row; None: theirs
    mark: int = 0  # the first of them
    marks: int | None = None  # streams of the output; None: theirs


ALL = Part()


class Key(NamedTuple):
    """What a plan depends on."""

    streams: tuple[StreamKey, ...]
    batches: int
    targets: int
    time: torch.dtype
    each_targets: bool
    dtype: torch.dtype  # of the output
    skew: int  # the address of the output, modulo 16
    processors: int  # of the GPU
    marked: bool = True  # valid or age are wanted
    part: Part = ALL


class Cut(NamedTuple):
    """How a stream is cut."""

    kind: str  # item.cuh's Kind
    staged: bool
    bytes: int  # that a tile reads and writes, but for times that it stages and no other tile does
    times: int  # that are staged, or looked through
    width: int  # of a part
    parts: int
    group: int
    span: int
    tiles: int
    shared: int
    reach: int  # columns that the items of a row have room for
    lanes: int  # threads that write
    step: tuple[int, int]  # rows and columns from a thread's item to its next


def cut_streams(key: Key, pitch: int, tuning: Tuning) -> list[Cut]:
    """How each stream is cut, side by side in rows of `pitch` columns."""
    columns = accumulate((stream.width for stream in key.streams), initial=key.part.column)
    cuts = []
    for stream, column in zip(key.streams, columns, strict=False):
        cut = _cut(key, stream, pitch, column, tuning, _parts(stream))
        cuts.append(cut if cut.parts == 1 or cut.staged else _cut(key, stream, pitch, column, tuning, 1))
    return cuts


def _parts(stream: StreamKey) -> int:
    """How many parts the columns of a stream are cut into if its samples are to be staged: a power of two."""
    row_bytes, parts = stream.width * stream.dtype.itemsize, 1
    if stream.skew:
        return 1
    while stream.samples * row_bytes // parts > PART_BYTES and row_bytes % (2 * parts * LEAST_PART) == 0:
        parts *= 2
    return parts


def _cut(key: Key, stream: StreamKey, pitch: int, column: int, tuning: Tuning, parts: int) -> Cut:
    size_in, size_out = stream.dtype.itemsize, key.dtype.itemsize
    batches, count, samples, width = key.batches, key.targets, stream.samples, stream.width // parts
    row_bytes, out_bytes = max(width, 1) * size_in, max(width, 1) * size_out

    steps = samples.bit_length()  # the search takes; it wants the times padded to a power of two
    times_bytes, data_bytes = 8 << steps, samples * row_bytes
    staged_times = times_bytes <= MOST_TIMES_BYTES

    # Rows of a tile: an item for each thread or a few, fewer where there would be too few tiles for the GPU, more where
    # there are plenty of them, so that times are read less often.
    all_rows = batches * count
    stored = size_out * _aligned(16 // size_out, width, pitch, column, key.skew // size_out)
    shifted = stored < LEAST_STORED and out_bytes >= LEAST_SHIFTED and stream.method != "slerp"
    stored = SHIFTED_BYTES if shifted else 16 if pitch == width else stored
    one = -(-tuning.threads * stored // out_bytes)
    rows = max(one, min(one * IN_FLIGHT, -(-all_rows // (4 * key.processors))))
    rows = max(rows, all_rows // (key.processors * TILES_PER_PROCESSOR))
    # A batch's samples are read in one go where they fit and at least half of them are needed anyway: by a tile, or by
    # all of them, and then one tile is enough where there are batches for all of the GPU.
    needed = count if batches >= key.processors else min(rows, count)
    staged = staged_times and 0 < data_bytes <= MOST_DATA_BYTES and 2 * needed >= samples
    if staged:
        rows = max(rows, min(count, MOST_ROWS // 2))
    if not staged_times:
        rows = max(rows, samples // 8)
    rows = min(rows, MOST_ROWS)
    if rows < count:  # part of a batch
        tiles = -(-count // rows)
        group, span = 1, -(-count // tiles)
    else:  # one batch or some
        group, span = max(1, min(rows // count, batches // key.processors)), count
        if staged_times:
            group = min(group, max(1, MOST_TIMES_BYTES // max(times_bytes, 1)))
        if staged:
            group = max(1, min(group, GROUP_BYTES // data_bytes, tuning.threads // count)) if parts == 1 else 1
        if len(key.streams) > 1:
            group = 1 << group.bit_length() - 1  # so that turns come out even
    tiles = -(-count // span)

    form = STAGED * staged + EACH_TIMES * stream.each_times + RAGGED * stream.ragged + GROUPED * (group > 1)
    form += MARKED * key.marked + WHOLE * (stream.skew == 0 and data_bytes % 16 == 0)
    form += WIDE * (max(group * samples * width * parts, group * span * pitch) >= 1 << 31) + PARTED * (parts > 1)
    ends = 0
    if pitch == width and not shifted:
        ends = group * span * width if span == count else _common(span * width, count * width)
    skews = (stream.skew, key.skew)
    places = (pitch, column) if parts == 1 else (pitch, column, width)
    how = (stream.method, stream.dtype, key.dtype, width, skews)
    kind, item, reach = item_kind(*how, *places, ends=ends, staged=staged, shifted=shifted)
    shared = 16 * group * span
    times = (group if stream.each_times else 1) << steps if staged_times else samples
    shared += 8 * times if staged_times else 0
    shared += group * data_bytes + 16 + 16 * shifted if staged else 0
    read_bytes = data_bytes if staged else min(data_bytes, 2 * span * row_bytes)
    read_bytes += 8 * samples if tiles > 1 or not staged_times else 0
    tile_bytes = group * (read_bytes + span * out_bytes)

    # With a whole number of rows from a thread's item to its next, it stays in its columns: worth a few idle threads.
    cycle = reach // math.gcd(reach, item) if width else 1
    even = cycle <= tuning.threads
    lanes = tuning.threads // cycle * cycle if even else tuning.threads
    form += EVEN * even + TWICE * (item <= width) + SHIFTED * shifted
    kind = f"{kind},{form},{steps if staged_times else 0}"
    step = divmod(lanes * item, max(reach, 1))
    return Cut(kind, staged, tile_bytes, times, width, parts, group, span, tiles, shared, reach, lanes, step)


def item_kind(
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
    """The first arguments of item.cuh's Kind: the widest loads and stores that shapes and addresses allow.

    Args:
        method: one of the five.
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
        The arguments, the elements of an item, and the columns that the items of a row have room for.
    """
    size_in, size_out = dtype.itemsize, out_dtype.itemsize
    quaternion = 4 if method == "slerp" else 1
    load = _aligned(16 // size_in, width, skews[0] // size_in)
    store = _aligned(16 // size_out, width, *places, skews[1] // size_out)
    if not ends:
        load = min(load, store)  # neighbouring threads store next to one another: no half-filled sectors
    unit = item = max(load, store, quaternion)
    if shifted:
        unit = item = store = SHIFTED_BYTES // size_out
    along = _aligned(16 // size_out, ends, skews[1] // size_out) if ends else 1
    # A store may go on from one row to the next; where samples are staged, threads of one register each are faster.
    if along > store and not (staged and load * size_in == 4):
        store, unit = along, max(load, quaternion)
        item = max(unit, store)
    reach = (width + 2 * item - load - 1) // item * item if shifted else width
    kind = ",".join((method.upper(), NAMES[dtype], NAMES[out_dtype], *map(str, (load, unit, store, item))))
    return kind, item, reach


def _common(a: int, b: int) -> int:
    return (a | b) & -(a | b)  # the greatest power of two that divides both


def _aligned(most: int, *places: int) -> int:
    """The greatest power of two up to `most` that divides all places."""
    while most > 1 and any(place % most for place in places):
        most //= 2
    return most
