"""Launches kernels/resample/."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from ctypes import Structure, c_int, c_longlong, c_uint, c_void_p
from dataclasses import dataclass
from enum import IntFlag
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robocache_ros.alignments import alignment
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.cuda.kernels import Kernel, filled_packer, kernel, launch_captured_dependent, like, packer
from robocache_ros.ops.resample.inputs import (
    NO_GRADIENT,
    NO_LIMIT_NS,
    Label,
    Shape,
    Stream,
    check_marks,
    check_streams,
    limit_ns,
)

# The arguments of the kernels in kernels/resample: the structures of resample/arguments.cuh.


class Limits(Structure):
    """Limits of an alignment, in ns."""

    _fields_ = (("max_gap", c_longlong), ("max_age", c_longlong))


class StreamArguments(Structure):
    """One stream: where it is, and how it is cut into tiles."""

    _fields_ = (
        ("data", c_void_p),
        ("times", c_void_p),
        ("lengths", c_void_p),
        ("limits", Limits),
        ("samples", c_int),
        ("width", c_int),
        ("part_bits", c_int),
        ("column", c_int),
        ("group", c_int),
        ("span", c_int),
        ("tiles", c_int),
        ("traits", c_int),
        ("lanes", c_int),
        ("step", c_int),
        ("rest", c_int),
        ("reach", c_int),
        ("width_magic", c_uint),
        ("reach_magic", c_uint),
    )


class Job(Structure):
    """What all streams share."""

    _fields_ = (
        ("out", c_void_p),
        ("targets", c_void_p),
        ("valid", c_void_p),
        ("age", c_void_p),
        ("batches", c_int),
        ("count", c_int),
        ("pitch", c_int),
        ("marks", c_int),
        ("mark", c_int),
        ("count_magic", c_uint),
        ("turn", c_int),
        ("turn_magic", c_uint),
    )


# The fields that differ between calls; the plan of a launch has the others.
GIVEN = frozenset({"out", "targets", "valid", "age", "data", "times", "lengths", "max_gap", "max_age"})


@cache
def resample_arguments(streams: int) -> type[Structure]:
    """ResampleArguments for that number of streams."""
    fields = (("job", Job), ("streams", StreamArguments * streams), ("first", c_int * streams))
    return type("ResampleArguments", (Structure,), {"_fields_": fields})


class BlendArguments(Structure):
    """Rows of one source that the caller selected."""

    _fields_ = (
        ("data", c_void_p),
        ("out", c_void_p),
        ("lower", c_void_p),
        ("upper", c_void_p),
        ("weight", c_void_p),
        ("rows", c_longlong),
        ("samples", c_int),
        ("width", c_int),
        ("span", c_int),
    )


# How a tile's elements are read and written: the template arguments of kernels/resample/item.cuh.

# Where the rows' alignment allows no store of a full register, the items of wide rows begin where a wider store can.
LEAST_STORED, LEAST_SHIFTED, SHIFTED_BYTES = 4, 16, 8  # bytes of a store, of a row, of an item
IN_FLIGHT = 2  # items that a thread loads before it stores the first
TYPE_NAMES = {torch.float32: "float", torch.float16: "f16", torch.bfloat16: "bf16", torch.uint8: "uint8"}


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
        ends: rows follow each other in the output without a gap, and a tile begins at a multiple of this number of
            elements; 0 where there are gaps.
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
    traits = ",".join(
        (f"Method::{method}", TYPE_NAMES[dtype], TYPE_NAMES[out_dtype], *map(str, (load, unit, store, item)))
    )
    return traits, item, reach


def common(a: int, b: int) -> int:
    """The greatest power of two that divides both."""
    return (a | b) & -(a | b)


def aligned(most: int, *places: int) -> int:
    """The greatest power of two up to `most` that divides all places."""
    while most > 1 and any(place % most for place in places):
        most //= 2
    return most


# How streams are cut into tiles, one for each block: the arguments of kernels/resample/tile.cuh.
#
# Planning needs no GPU: tests execute plans on the CPU, with the same headers.

# Shared memory of a block, 48 KiB in all: rows, times (more of them are searched where they are) and samples.
MAX_ROWS, MAX_TIMES_BYTES, MAX_DATA_BYTES = 500, 8 * 1024, 31 * 1024
PART_BYTES, LEAST_PART = 16 * 1024, 64  # of samples that are cut by columns down to, and of a row of them
GROUP_BYTES = 16 * 1024  # of samples, that batches are put together up to
TILES_PER_PROCESSOR = 32  # that a large problem is cut into at least


class Tuning(NamedTuple):
    """How a kernel is compiled and its tiles are cut; the values were the fastest ones measured."""

    threads: int  # of a block
    blocks: int  # that a multiprocessor should hold, if there are enough
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


WHOLE = Part()


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
    part: Part = WHOLE


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
    data_bytes, staged_times = stream.samples * row_bytes, 8 << steps <= MAX_TIMES_BYTES
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
    staged = strip.staged_times and 0 < strip.data_bytes <= MAX_DATA_BYTES and 2 * needed >= samples
    if staged:
        rows = max(rows, min(count, MAX_ROWS // 2))
    if not strip.staged_times:
        rows = max(rows, samples // 8)
    rows = min(rows, MAX_ROWS)
    if rows < count:  # part of a batch
        return staged, 1, -(-count // -(-count // rows))
    group = max(1, min(rows // count, batches // key.processors))
    if strip.staged_times:
        group = min(group, MAX_TIMES_BYTES // (8 << strip.steps))
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


MAX_TIMES_IN_FLIGHT = 4  # that a thread loads before it stores the first
MAX_STREAMS = 40  # of a launch, whose parameters have 4 KiB

TIME_NAMES = {torch.int64: "int64", torch.float64: "double", torch.float32: "float"}


@dataclass(frozen=True)
class LaunchPlan:
    """A launch without its addresses and limits."""

    defines: tuple[str, ...]
    grid: int
    block: int
    shared: int  # bytes
    arguments: Any  # ResampleArguments, the planned fields filled in
    layout: struct.Struct  # of the arguments: the numbers of a call, and between them `planned`
    planned: tuple[bytes, ...]


def make_plan(key: Key) -> LaunchPlan:
    """Plan a launch for checked inputs with at least one batch and one target."""
    part = key.part
    pitch = sum(stream.width for stream in key.streams) if part.pitch is None else part.pitch
    for tuning in TUNINGS:
        cuts = cut_streams(key, pitch, tuning)
        plenty = key.batches * len(cuts) >= tuning.blocks * key.processors
        if all(cut.bytes <= tuning.most and (cut.staged or plenty) for cut in cuts):
            break
    arguments = resample_arguments(len(cuts))()
    traits, column = list[str](), part.column
    for planned, stream, cut in zip(arguments.streams, key.streams, cuts, strict=True):
        if cut.traits not in traits:
            traits.append(cut.traits)
        planned.samples, planned.column = stream.samples, column
        planned.width, planned.part_bits = cut.width, cut.parts.bit_length() - 1
        planned.group, planned.span, planned.tiles = cut.group, cut.span, cut.tiles
        planned.traits, planned.lanes = traits.index(cut.traits), cut.lanes
        planned.step, planned.rest = cut.step
        planned.reach = cut.reach
        planned.width_magic, planned.reach_magic = _magic(max(cut.width, 1)), _magic(max(cut.reach, 1))
        column += stream.width
    firsts, turn, turns = _take_turns(cuts, key.batches)
    grid = turns * turn
    # A thread may use more registers if there are few blocks, and needs them if streams differ in traits.
    few = 2 * tuning.blocks // 3
    blocks = few if grid <= few * key.processors else tuning.blocks - (len(traits) > 1)
    defines = (
        "TRAITS_CASES=" + " ".join(f"CASE({number},{each})" for number, each in enumerate(traits)),
        f"STREAMS={len(cuts)}",
        f"TIME={TIME_NAMES[key.time]}",
        f"EACH_TARGETS={int(key.each_targets)}",
        f"THREADS={tuning.threads}",
        f"BLOCKS={blocks}",
        f"IN_FLIGHT={IN_FLIGHT}",
        f"TIMES_IN_FLIGHT={max(min(-(-cut.times // tuning.threads), MAX_TIMES_IN_FLIGHT) for cut in cuts)}",
    )
    job = arguments.job
    job.batches, job.count, job.pitch = key.batches, key.targets, pitch
    job.marks, job.mark = len(cuts) if part.marks is None else part.marks, part.mark
    job.turn, job.count_magic = turn, _magic(key.targets)
    job.turn_magic = _magic(turn) if turns > 1 else 0
    arguments.first[:] = firsts
    shared = max(cut.shared for cut in cuts)
    layout, between = filled_packer(arguments, GIVEN)
    return LaunchPlan(defines, grid, tuning.threads, shared, arguments, layout, between)


def _take_turns(cuts: list[Cut], batches: int) -> tuple[list[int], int, int]:
    """The first block of each stream in a turn, the blocks of a turn, and how many turns there are.

    A turn has as many batches as the largest tile, so that what streams write side by side in a row meets in the L2
    cache. There is one turn for all batches if the numbers were too large for number.cuh's `divided`.
    """
    for some in (max(cut.group for cut in cuts), batches):
        *firsts, turn = accumulate((-(-some // cut.group) * cut.parts * cut.tiles for cut in cuts), initial=0)
        turns = -(-batches // some)
        if turns * turn * turn < 1 << 32:
            break
    return firsts, turn, turns


def _magic(divisor: int) -> int:
    """The factor that number.cuh's `divided` multiplies by."""
    return -(-(1 << 32) // divisor) & 0xFFFFFFFF


# Launches of kernels/resample/resample.cu.

Address = tuple[int, int, int, int, int]  # data, times, lengths, max_gap and max_age of StreamArguments


class _Launch(NamedTuple):
    plan: LaunchPlan
    kernel: Kernel
    streams: slice  # that it computes


class _Ready(NamedTuple):
    shape: Shape
    launches: tuple[_Launch, ...]  # none where there is nothing to compute
    # One element each, expanded to the shape of valid and age: `empty_like` is the fastest allocation.
    marks: tuple[Tensor, Tensor]
    gradient: bool  # an input requires one


# A call like an earlier one needs neither checks nor a plan. For each set of options: guards on the tensors of earlier
# calls, and what was prepared for them, the latest first.
_ready: dict[tuple[Any, ...], tuple[tuple[Callable[..., bool], _Ready], ...]] = {}
_MAX_READY, _MAX_ALIKE = 4096, 64


# More than 50 lines because a function call for each stream would double the time of the loop.
def run_streams_cuda(
    streams: Sequence[Stream],
    targets: Tensor,
    dtype: torch.dtype | None,
    out: Tensor | None,
    label: Label,
    valid: Tensor | bool,
    age: Tensor | bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """`run_streams` on the GPU: one launch on torch's current stream, or one for each `MAX_STREAMS`."""
    try:
        # Inlined, because it is most of the cost of a call.
        form: list[Any] = [dtype, targets.shape]
        tensors: list[Any] = []
        addresses: list[Address] = []
        before = targets
        for index, (data, times, method, lengths, max_gap, max_age) in enumerate(streams):
            address = data.data_ptr()
            form += (method, address & 15, lengths is None, times is before)
            tensors.append(data)
            if times is not before:  # guards refuse a tensor that is given twice, and streams often share times
                tensors.append(times)
                before = times
            if lengths is not None:
                tensors.append(lengths)
            addresses.append(
                (
                    address,
                    times.data_ptr(),
                    0 if lengths is None else lengths.data_ptr(),
                    NO_LIMIT_NS if max_gap is None else limit_ns(label(index, "max_gap"), max_gap, times.dtype),
                    NO_LIMIT_NS if max_age is None else limit_ns(label(index, "max_age"), max_age, times.dtype),
                )
            )
        tensors.append(targets)
        if out is None:
            form.append(None)
        else:
            form.append(out.data_ptr() & 15)
            tensors.append(out)
        for mark in (valid, age):
            if isinstance(mark, bool):
                form.append(mark)
            else:
                form.append(None)
                tensors.append(mark)
        key = tuple(form)
        earlier = _ready.get(key, ())
    except (AttributeError, TypeError):  # not a tensor: the checks raise an error with its name
        check_marks(check_streams(streams, targets, dtype, out, label), len(streams), valid, age)
        raise
    for number, (is_like, found) in enumerate(earlier):
        if is_like(*tensors):
            ready = found
            if number:
                _ready[key] = (earlier[number], *earlier[:number], *earlier[number + 1 :])
            break
    else:
        ready = _prepare(streams, targets, dtype, out, label, valid, age)
        if len(_ready) >= _MAX_READY:
            _ready.clear()
        _ready[key] = ((like(tensors), ready), *earlier[: _MAX_ALIKE - 1])
    shape, launches, (like_valid, like_age), gradient = ready
    if gradient and torch.is_grad_enabled():
        raise RoboCacheError(NO_GRADIENT)
    if out is None:
        out = streams[0].data.new_empty((shape.batches, shape.targets, shape.width), dtype=shape.dtype)
    valids = torch.empty_like(like_valid) if valid is True else None if valid is False else valid
    ages = torch.empty_like(like_age) if age is True else None if age is False else age
    for plan, launchable, part in launches:
        arguments = launch_arguments(plan, addresses[part], targets, out, valids, ages)
        launch_captured_dependent(launchable, (plan.grid, 1, 1), plan.block, plan.shared, *arguments)
    return out, valids, ages


def launch_arguments(
    plan: LaunchPlan,
    addresses: Sequence[Address],
    targets: Tensor,
    out: Tensor,
    valid: Tensor | None,
    age: Tensor | None,
) -> list[int | bytes]:
    """The values for `plan.layout`: this call's for the job and for each stream, each followed by planned bytes."""
    job, *streams = plan.planned
    arguments: list[int | bytes] = [
        out.data_ptr(),
        targets.data_ptr(),
        0 if valid is None else valid.data_ptr(),
        0 if age is None else age.data_ptr(),
        job,
    ]
    for address, planned in zip(addresses, streams, strict=True):
        arguments += address
        arguments.append(planned)
    return arguments


def plan_keys(
    streams: Sequence[Stream], targets: Tensor, shape: Shape, skew: int, processors: int, marked: bool = True
) -> Iterator[tuple[slice, Key]]:
    """The keys of the plans for checked streams: of one launch, or of one for each `MAX_STREAMS`."""
    keys = tuple(
        StreamKey(
            data.shape[1],
            data.shape[2],
            data.dtype,
            method,
            times.dim() == 2,
            lengths is not None,
            data.data_ptr() & 15,
        )
        for data, times, method, lengths, *_ in streams
    )
    column = 0
    for first in range(0, len(keys), MAX_STREAMS):
        some = slice(first, first + MAX_STREAMS)
        part = WHOLE if len(keys) <= MAX_STREAMS else Part(column, shape.width, first, len(keys))
        column += sum(key.width for key in keys[some])
        times, both = targets.dtype, targets.dim() == 2
        sizes = (shape.batches, shape.targets)
        yield some, Key(keys[some], *sizes, times, both, shape.dtype, skew, processors, marked, part)


def _prepare(
    streams: Sequence[Stream],
    targets: Tensor,
    dtype: torch.dtype | None,
    out: Tensor | None,
    label: Label,
    valid: Tensor | bool,
    age: Tensor | bool,
) -> _Ready:
    shape = check_streams(streams, targets, dtype, out, label)
    check_marks(shape, len(streams), valid, age)
    gradient = any(stream.data.requires_grad for stream in streams)
    sizes = (shape.batches, shape.targets, len(streams))
    one_valid, one_age = (torch.empty(1, dtype=t, device=shape.device) for t in (torch.uint8, torch.int64))
    marks = (one_valid.expand(sizes), one_age.expand(sizes))
    if not shape.batches or not shape.targets:
        return _Ready(shape, (), marks, gradient)
    device = shape.device.index
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    launches = []
    skew = 0 if out is None else out.data_ptr() & 15
    marked = valid is not False or age is not False
    for part, key in plan_keys(streams, targets, shape, skew, processors, marked):
        plan = make_plan(key)
        made = kernel("resample/resample.cu", "resample_streams", plan.layout, device, plan.defines)
        launches.append(_Launch(plan, made, part))
    return _Ready(shape, tuple(launches), marks, gradient)


# Launches of kernels/resample/blend.cu.

BLEND_THREADS = 256


def blend_cuda(source: Tensor, lower: Any, upper: Any, weight: Any, method: str, out: Tensor | None) -> Tensor:
    """`blend` on the GPU: one launch. Rows past the end are clamped, because a check would wait for the GPU."""
    samples, width = source.shape
    count = lower.shape[0] if isinstance(lower, Tensor) and lower.dim() == 1 else -1
    if out is None:
        out = source.new_empty((max(count, 0), width))
    for name, tensor, expected, dtype in (
        ("source", source, (samples, width), source.dtype),
        ("lower", lower, (count,), torch.int64),
        ("upper", upper, (count,), torch.int64),
        ("weight", weight, (count,), torch.float32),
        ("out", out, (count, width), source.dtype),
    ):
        if not (
            isinstance(tensor, Tensor)
            and tensor.shape == expected
            and tensor.dtype == dtype
            and tensor.device == source.device
            and tensor.is_contiguous()
        ):
            shape = expected if count >= 0 else "(T,)"
            raise RoboCacheError(
                f"{name}: expected a contiguous {shape} {dtype} tensor on {source.device}, got {tensor!r}"
            )
    if count == 0 or width == 0:
        return out
    rows = max(1, min(1000, BLEND_THREADS * 32 // (width * source.element_size())))
    skews = (source.data_ptr() & 15, out.data_ptr() & 15)
    defines = blend_defines(method, source.dtype, width, skews, rows)
    arguments = (
        source.data_ptr(),
        out.data_ptr(),
        lower.data_ptr(),
        upper.data_ptr(),
        weight.data_ptr(),
        count,
        samples,
        width,
        rows,
    )
    launchable = kernel("resample/blend.cu", "blend_rows", packer(BlendArguments), source.get_device(), defines)
    launchable.launch((-(-count // rows), 1, 1), BLEND_THREADS, 16 * rows, *arguments)
    return out


def blend_defines(method: str, dtype: torch.dtype, width: int, skews: tuple[int, int], rows: int) -> tuple[str, ...]:
    """The kernel's definitions, for `rows` rows per block; skews: addresses of source and output modulo 16."""
    traits, *_ = item_traits(method, dtype, dtype, width, skews, width, ends=rows * width)
    return f"TRAITS={traits},{int(StreamFlag.WIDE)},0", f"THREADS={BLEND_THREADS}", f"IN_FLIGHT={IN_FLIGHT}"
