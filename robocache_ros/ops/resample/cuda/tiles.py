"""How streams are cut into tiles, one for each block: the arguments of kernels/resample/tile.cuh.

Planning needs no GPU: tests execute plans on the CPU, with the same headers.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import NamedTuple

import torch

from robocache_ros.alignments import alignment
from robocache_ros.ops.resample.cuda.items import (
    IN_FLIGHT,
    LEAST_SHIFTED,
    LEAST_STORED,
    SHIFTED_BYTES,
    StreamFlag,
    aligned,
    common,
    item_traits,
)

# Shared memory of a block, 48 KiB in all: rows, times (more of them are searched where they are) and samples.
MOST_ROWS, MOST_TIMES_BYTES, MOST_DATA_BYTES = 500, 8 * 1024, 31 * 1024
PART_BYTES, LEAST_PART = 16 * 1024, 64  # of samples that are cut by columns down to, and of a row of them
GROUP_BYTES = 16 * 1024  # of samples, that batches are put together up to
TILES_PER_PROCESSOR = 32  # that a large problem is cut into at least


class Tuning(NamedTuple):
    """How a kernel is compiled and its tiles are cut; the values were the fastest ones measured."""

    threads: int  # of a block
    blocks: int  # that a multiprocessor should hold, where there are so many
    most: float  # bytes of a tile


# The first that fits is used. Tiles whose samples are not staged fit if there are more batches than a GPU processes at
# once: fewer batches finish sooner with more threads each.
TUNINGS = (Tuning(64, 24, 8 * 1024), Tuning(128, 12, 32 * 1024), Tuning(256, 6, math.inf))


class StreamKey(NamedTuple):
    """What the plan depends on, of one stream."""

    samples: int
    width: int
    dtype: torch.dtype
    method: str
    each_times: bool  # times are (B, S) and not (S,)
    ragged: bool  # it has lengths
    skew: int  # the address of its data, modulo 16


class Part(NamedTuple):
    """Which of the output's streams a launch computes, if one launch does not compute all of them."""

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

    traits: str  # item.cuh's StreamTraits
    staged: bool
    bytes: int  # that a tile reads and writes, without staged times that no other tile reads
    times: int  # that are staged or searched
    width: int  # of a part
    parts: int
    group: int
    span: int
    tiles: int
    shared: int
    reach: int  # columns that the items of a row cover
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
    """Number of parts that a stream's columns are cut into so that its samples can be staged: a power of two."""
    row_bytes, parts = stream.width * stream.dtype.itemsize, 1
    if stream.skew:
        return 1
    while stream.samples * row_bytes // parts > PART_BYTES and row_bytes % (2 * parts * LEAST_PART) == 0:
        parts *= 2
    return parts


class _Strip(NamedTuple):
    """The columns of a stream that a tile has: all of them, or a part."""

    width: int
    parts: int
    row_bytes: int  # of a sample
    out_bytes: int  # of a row of the output
    data_bytes: int  # of a batch's samples
    steps: int  # of the search, in times that are padded to a power of two
    staged_times: bool
    stored: int  # bytes of a store
    shifted: bool  # items begin where a store can


def _strip(key: Key, stream: StreamKey, pitch: int, column: int, parts: int) -> _Strip:
    width, size_out = stream.width // parts, key.dtype.itemsize
    row_bytes, out_bytes = max(width, 1) * stream.dtype.itemsize, max(width, 1) * size_out
    steps = stream.samples.bit_length()
    stored = size_out * aligned(16 // size_out, width, pitch, column, key.skew // size_out)
    shifted = stored < LEAST_STORED and out_bytes >= LEAST_SHIFTED and alignment(stream.method).group == 1
    stored = SHIFTED_BYTES if shifted else 16 if pitch == width else stored
    data_bytes, staged_times = stream.samples * row_bytes, 8 << steps <= MOST_TIMES_BYTES
    return _Strip(width, parts, row_bytes, out_bytes, data_bytes, steps, staged_times, stored, shifted)


def _tile(key: Key, samples: int, strip: _Strip, tuning: Tuning) -> tuple[bool, int, int]:
    """Whether samples are staged, and how many batches and targets a tile has."""
    batches, count = key.batches, key.targets
    # Rows of a tile: one or a few items per thread; fewer if there were too few tiles for the GPU; more if there are
    # many tiles, so that times are read less often.
    one = -(-tuning.threads * strip.stored // strip.out_bytes)
    rows = max(one, min(one * IN_FLIGHT, -(-batches * count // (4 * key.processors))))
    rows = max(rows, batches * count // (key.processors * TILES_PER_PROCESSOR))
    # A batch's samples are staged if they fit and at least half of them are needed, by one tile or by all of them; in
    # the second case one tile is enough if there are batches for the whole GPU.
    needed = count if batches >= key.processors else min(rows, count)
    staged = strip.staged_times and 0 < strip.data_bytes <= MOST_DATA_BYTES and 2 * needed >= samples
    if staged:
        rows = max(rows, min(count, MOST_ROWS // 2))
    if not strip.staged_times:
        rows = max(rows, samples // 8)
    rows = min(rows, MOST_ROWS)
    if rows < count:  # part of a batch
        return staged, 1, -(-count // -(-count // rows))
    group = max(1, min(rows // count, batches // key.processors))
    if strip.staged_times:
        group = min(group, MOST_TIMES_BYTES // (8 << strip.steps))
    if staged:
        group = max(1, min(group, GROUP_BYTES // strip.data_bytes, tuning.threads // count)) if strip.parts == 1 else 1
    if len(key.streams) > 1:
        group = 1 << group.bit_length() - 1  # so that turns have equal sizes
    return staged, group, count


def _cut(key: Key, stream: StreamKey, pitch: int, column: int, tuning: Tuning, parts: int) -> Cut:
    strip, count, samples = _strip(key, stream, pitch, column, parts), key.targets, stream.samples
    width, data_bytes, staged_times, shifted = strip.width, strip.data_bytes, strip.staged_times, strip.shifted
    staged, group, span = _tile(key, samples, strip, tuning)
    tiles = -(-count // span)

    wide = max(group * samples * stream.width, group * span * pitch) >= 1 << 31
    flags = StreamFlag.STAGED * staged + StreamFlag.EACH_TIMES * stream.each_times + StreamFlag.RAGGED * stream.ragged
    flags += StreamFlag.GROUPED * (group > 1) + StreamFlag.WIDE * wide
    flags += StreamFlag.WHOLE * (stream.skew == 0 and data_bytes % 16 == 0)
    flags += StreamFlag.MARKED * key.marked + StreamFlag.PARTED * (parts > 1) + StreamFlag.SHIFTED * shifted
    ends = 0
    if pitch == width and not shifted:
        ends = group * span * width if span == count else common(span * width, count * width)
    skews = (stream.skew, key.skew)
    places = (pitch, column) if parts == 1 else (pitch, column, width)
    how = (stream.method, stream.dtype, key.dtype, width, skews)
    traits, item, reach = item_traits(*how, *places, ends=ends, staged=staged, shifted=shifted)

    times = (group if stream.each_times else 1) << strip.steps if staged_times else samples
    shared = 16 * group * span + 8 * times * staged_times
    shared += group * data_bytes + 16 + 16 * shifted if staged else 0
    read_bytes = data_bytes if staged else min(data_bytes, 2 * span * strip.row_bytes)
    read_bytes += 8 * samples if tiles > 1 or not staged_times else 0
    tile_bytes = group * (read_bytes + span * strip.out_bytes)

    # If a thread's items are full rows apart, it stays in its columns. This is faster, even with a few idle threads.
    cycle = reach // math.gcd(reach, item) if width else 1
    even = cycle <= tuning.threads
    lanes = tuning.threads // cycle * cycle if even else tuning.threads
    flags += StreamFlag.EVEN * even + StreamFlag.TWICE * (item <= width)
    traits = f"{traits},{flags},{strip.steps if staged_times else 0}"
    step = divmod(lanes * item, max(reach, 1))
    return Cut(traits, staged, tile_bytes, times, width, parts, group, span, tiles, shared, reach, lanes, step)
