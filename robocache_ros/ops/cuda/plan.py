"""What a fusion's launch is told: made once for each combination of shapes, dtypes, methods and alignments."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import accumulate

import torch

from robocache_ros.ops.cuda.items import IN_FLIGHT
from robocache_ros.ops.cuda.tiles import TUNINGS, Cut, Key, cut_streams

# Fields of kernels/tile.cuh's Job and Stream, in `struct` letters: what differs from call to call, and what is planned.
JOB_FIELDS, STREAM_FIELDS = struct.Struct("5iIiI"), struct.Struct("11iII4x")
JOB_LETTERS, STREAM_LETTERS = f"PPPP{JOB_FIELDS.size}s", f"PPPqq{STREAM_FIELDS.size}s"
MOST_TIMES_IN_FLIGHT = 4  # that a thread loads before it stores the first
MOST_STREAMS = 40  # of a launch, whose parameters have 4 KiB

TIME_NAMES = {torch.int64: "int64", torch.float64: "double", torch.float32: "float"}


@dataclass(frozen=True)
class Plan:
    """What a launch needs beside the addresses and limits."""

    defines: tuple[str, ...]
    letters: str
    grid: int
    block: int
    shared: int  # bytes
    job: bytes  # the planned fields of Job
    streams: tuple[bytes, ...]  # and of each Stream
    first: bytes  # the first block of each in a turn


def make_plan(key: Key) -> Plan:
    """Plan a launch for checked inputs with at least one batch and one target."""
    part = key.part
    pitch = sum(stream.width for stream in key.streams) if part.pitch is None else part.pitch
    for tuning in TUNINGS:
        cuts = cut_streams(key, pitch, tuning)
        plenty = key.batches * len(cuts) >= tuning.blocks * key.processors
        if all(cut.bytes <= tuning.most and (cut.staged or plenty) for cut in cuts):
            break
    streams, kinds, column = [], list[str](), part.column
    for stream, cut in zip(key.streams, cuts, strict=True):
        if cut.kind not in kinds:
            kinds.append(cut.kind)
        places = (stream.samples, cut.width, cut.parts.bit_length() - 1, column, cut.group, cut.span, cut.tiles)
        numbers = (*places, kinds.index(cut.kind), cut.lanes, *cut.step)
        magics = (_magic(max(cut.width, 1)), _magic(max(cut.reach, 1)))
        streams.append(STREAM_FIELDS.pack(*numbers, *magics))
        column += stream.width
    firsts, turn, turns = _take_turns(cuts, key.batches)
    grid = turns * turn
    # Threads may have more registers where there are few blocks anyway, and need them where streams differ in kind.
    few = 2 * tuning.blocks // 3
    blocks = few if grid <= few * key.processors else tuning.blocks - (len(kinds) > 1)
    defines = (
        "KINDS=" + " ".join(f"CASE({number},{kind})" for number, kind in enumerate(kinds)),
        f"STREAMS={len(streams)}",
        f"TIME={TIME_NAMES[key.time]}",
        f"EACH_TARGETS={int(key.each_targets)}",
        f"THREADS={tuning.threads}",
        f"BLOCKS={blocks}",
        f"IN_FLIGHT={IN_FLIGHT}",
        f"TIMES_IN_FLIGHT={max(min(-(-cut.times // tuning.threads), MOST_TIMES_IN_FLIGHT) for cut in cuts)}",
    )
    marks = len(streams) if part.marks is None else part.marks
    sizes = (key.batches, key.targets, pitch, marks, part.mark, _magic(key.targets))
    job = JOB_FIELDS.pack(*sizes, turn, _magic(turn) if turns > 1 else 0)
    letters = JOB_LETTERS + STREAM_LETTERS * len(streams) + f"{4 * len(streams)}s0q"  # up to a multiple of 8 bytes
    shared = max(cut.shared for cut in cuts)
    first = struct.pack(f"{len(firsts)}i", *firsts)
    return Plan(defines, letters, grid, tuning.threads, shared, job, tuple(streams), first)


def _take_turns(cuts: list[Cut], batches: int) -> tuple[list[int], int, int]:
    """The first block of each stream in a turn, the blocks of a turn, and how many turns there are.

    A turn is of as many batches as the largest tile has: what streams write side by side in a row then meets in the L2
    cache. It is of all where numbers would be too large for number.cuh's `divided`.
    """
    for some in (max(cut.group for cut in cuts), batches):
        *firsts, turn = accumulate((-(-some // cut.group) * cut.parts * cut.tiles for cut in cuts), initial=0)
        turns = -(-batches // some)
        if turns * turn * turn < 1 << 32:
            break
    return firsts, turn, turns


def _magic(divisor: int) -> int:
    """What number.cuh's `divided` multiplies by."""
    return -(-(1 << 32) // divisor) & 0xFFFFFFFF
