"""The plan of a fusion's launch, made once for each combination of shapes, dtypes, methods and alignments."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from robocache_ros.ops.cuda.structures import filled_packer
from robocache_ros.ops.resample.cuda.arguments import GIVEN, resample_arguments
from robocache_ros.ops.resample.cuda.items import IN_FLIGHT
from robocache_ros.ops.resample.cuda.tiles import TUNINGS, Cut, Key, cut_streams

MOST_TIMES_IN_FLIGHT = 4  # that a thread loads before it stores the first
MOST_STREAMS = 40  # of a launch, whose parameters have 4 KiB

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
        f"TIMES_IN_FLIGHT={max(min(-(-cut.times // tuning.threads), MOST_TIMES_IN_FLIGHT) for cut in cuts)}",
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
