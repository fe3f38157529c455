"""Selects the samples of each target, in int64 nanoseconds; kernels/resample/select.cuh does the same for CUDA.

`_align` has the rules. They apply to the neighbours of a target, which are searched for in rising stamps (`select`, for
the ticks of an engine) or in stamps of any order (`select_batch`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.alignments import NAMES, alignment
from robocache_ros.ops.resample.inputs import ABSENT_NS

Int64 = NDArray[np.int64]

SELECTS = {name: alignment(name).selects for name in NAMES}
NONE, ALIGNED, HELD = 0, 1, 2  # values of `valid`, for a stream at a tick


@dataclass(frozen=True)
class Rule:
    """How a stream is aligned: its method and its limits."""

    method: str
    max_gap_ns: int
    max_age_ns: int  # also the limit of a sample after the tick, where the method selects one
    holds: bool = False  # a tick for which nothing is selected has the newest sample at or before it, however old


@dataclass(frozen=True)
class Selection:
    """The rows that each of T ticks is computed from, as `v[lower] + weight * (v[upper] - v[lower])`."""

    lower: Int64  # (T,) row of the sample before the tick (or of the only one), -1 where there is none
    upper: Int64  # (T,) row of the sample after it; `lower` where nothing is blended
    weight: NDArray[np.float32]  # (T,) share of `upper`, in [0, 1]; 0 where nothing is blended
    valid: NDArray[np.uint8]  # (T,) NONE, ALIGNED or HELD (the last sample, in place of an aligned value)
    age_ns: Int64  # (T,) tick - stamp of `lower`; 0 where there is none, negative where it is after the tick


class BatchSelection(NamedTuple):
    """For each target its rows, as in `Selection`; all tensors are (B, T)."""

    lower: Tensor  # int64
    upper: Tensor  # int64
    weight: Tensor  # float32
    valid: Tensor  # uint8
    age_ns: Tensor  # int64


class _Neighbours(NamedTuple):
    """The latest sample at or before each target and the earliest after it, in tensors of the targets' shape."""

    lower: Tensor  # int64 row; any value where there is none
    upper: Tensor
    before: Tensor  # int64 ns, the stamp of `lower`; any value where there is none
    after: Tensor
    has_lower: Tensor  # bool
    has_upper: Tensor


def select(
    stamps_ns: Int64,
    ticks_ns: Int64,
    rule: Rule,
    arrivals_ns: Int64 | None = None,
    deadlines_ns: Int64 | None = None,
) -> Selection:
    """Select rows for each tick by the rule of the stream.

    Args:
        stamps_ns: (S,) int64, strictly rising.
        ticks_ns: (T,) int64, in any order.
        rule: method and limits.
        arrivals_ns: (S,) int64, when each sample was received; needed with `deadlines_ns`.
        deadlines_ns: (T,) int64; a tick uses only what had arrived by its deadline. None: it uses everything.
    """
    size = len(stamps_ns)
    if not size:
        return _nothing(len(ticks_ns))
    lower = np.searchsorted(stamps_ns, ticks_ns, side="right").astype(np.int64) - 1
    upper = lower + 1
    if deadlines_ns is not None:
        assert arrivals_ns is not None
        lower = _visible(lower, -1, arrivals_ns, deadlines_ns)
        upper = _visible(upper, +1, arrivals_ns, deadlines_ns)
    before, after = stamps_ns[np.maximum(lower, 0)], stamps_ns[np.minimum(upper, size - 1)]
    found = (lower, upper, before, after, lower >= 0, upper < size)
    neighbours = _Neighbours(*map(torch.from_numpy, found))
    aligned = _align(torch.tensor(ticks_ns), neighbours, rule)
    return Selection(*(column.numpy() for column in aligned))


def select_batch(
    times: Tensor, targets: Tensor, lengths: Tensor | None, method: str, max_gap: int, max_age: int
) -> BatchSelection:
    """Select rows for each target, on the tensors' device.

    The order of the samples does not matter: a target's neighbours are the latest sample at or before it and the
    earliest after it, and of samples with one stamp the first counts. ABSENT_NS marks an absent sample or target.

    Args:
        times: (B, S) int64 ns.
        targets: (B, T) int64 ns.
        lengths: (B,) int64, how many samples of each row count; None is all. Kept within [0, S].
        method: the name of an alignment.
        max_gap: ns; neighbours further apart are not blended.
        max_age: ns; a sample further from the target is not used, unless it is blended.
    """
    size = times.shape[1]
    counts = torch.full_like(times[:, :1], size) if lengths is None else lengths.clamp(0, size)[:, None]
    if size == 0:
        none = torch.full_like(targets, -1)
        zero = torch.zeros_like(targets)
        return BatchSelection(none, none, zero.float(), zero.byte(), zero)
    absent = torch.arange(size, device=times.device) >= counts
    ordered, order = times.masked_fill(absent, torch.iinfo(torch.int64).max).sort(dim=1, stable=True)
    above = torch.searchsorted(ordered, targets, right=True).minimum(counts)
    has_upper = (above < counts) & (targets != ABSENT_NS)
    after = ordered.gather(1, above.clamp(max=size - 1))
    last = (above - 1).clamp(min=0)
    before = ordered.gather(1, last)
    has_lower = (above > 0) & (before != ABSENT_NS)
    first = torch.searchsorted(ordered, before)  # of those with the stamp of the last one at or before the target
    lower, upper = order.gather(1, first), order.gather(1, above.clamp(max=size - 1))
    neighbours = _Neighbours(lower, upper, before, after, has_lower, has_upper)
    return _align(targets, neighbours, Rule(method, max_gap, max_age))


def _align(targets: Tensor, neighbours: _Neighbours, rule: Rule) -> BatchSelection:
    """Apply the rules of an alignment."""
    lower, upper, before, after, has_lower, has_upper = neighbours
    age = targets - before
    weight = torch.zeros_like(age, dtype=torch.float32)
    selects = SELECTS[rule.method]
    if selects in ("nearest", "next"):
        ahead = after - targets
        # the earlier one on a tie
        earlier = has_lower & ((age == 0) if selects == "next" else ~has_upper | (age <= ahead))
        near = (earlier | has_upper) & (torch.where(earlier, age, ahead) <= rule.max_age_ns)
        held = has_lower & ~near & rule.holds
        earlier = earlier | held
        row = torch.where(earlier, lower, upper)
        valid = torch.where(near, ALIGNED, torch.where(held, HELD, NONE)).byte()
        return _single(row, weight, valid > 0, valid, torch.where(earlier, age, -ahead))
    young = age <= rule.max_age_ns
    held = has_lower & (young | rule.holds)
    if selects == "newest":
        return _single(lower, weight, held, torch.where(held, torch.where(young, ALIGNED, HELD), NONE).byte(), age)
    exact = has_lower & (age == 0)
    gap = after - before
    between = has_lower & has_upper & ~exact & (gap <= rule.max_gap_ns)
    share = (age.double() / gap.double()).float()
    valid = torch.where(exact | between, ALIGNED, torch.where(held, HELD, NONE)).byte()
    single = _single(lower, weight, valid > 0, valid, age)
    return single._replace(upper=torch.where(between, upper, single.upper), weight=torch.where(between, share, weight))


def _single(row: Tensor, weight: Tensor, found: Tensor, valid: Tensor, age: Tensor) -> BatchSelection:
    """Select one sample, where it was found."""
    row = row.masked_fill(~found, -1)
    return BatchSelection(row, row, weight, valid, age.masked_fill(~found, 0))


# One tick of a `Selection`, as Python numbers: lower, upper, weight (to be rounded to float32), valid, age_ns.
TickSelection: TypeAlias = tuple[int, int, float, int, int]

NEAR = 64  # a tick is usually among so many of the newest samples: the search touches less memory

NOTHING: TickSelection = (-1, -1, 0.0, NONE, 0)


def select_one(
    stamps_ns: Sequence[int],
    tick_ns: int,
    rule: Rule,
    arrivals_ns: Sequence[int] | None = None,
    deadline_ns: int | None = None,
    rows: tuple[int, int] | None = None,
) -> TickSelection:
    """`select` for one tick, as on a robot, among the given rows or all: from the first one to before the second one.

    It repeats the rules of `_align` in Python numbers: this takes 1 us, and tensors of one element take much longer.
    """
    start, stop = rows or (0, len(stamps_ns))
    near = stop - NEAR
    first = near if near > start and stamps_ns[near] <= tick_ns else start
    lower = bisect_right(stamps_ns, tick_ns, first, stop) - 1
    upper = lower + 1
    if deadline_ns is not None:
        assert arrivals_ns is not None
        while lower >= start and arrivals_ns[lower] > deadline_ns:
            lower -= 1
        while upper < stop and arrivals_ns[upper] > deadline_ns:
            upper += 1
    age = tick_ns - stamps_ns[lower] if lower >= start else 0
    ahead = stamps_ns[upper] - tick_ns if upper < stop else 0
    selects = SELECTS[rule.method]
    if selects in ("nearest", "next"):
        # the earlier one on a tie
        earlier = lower >= start and (age == 0 if selects == "next" else upper == stop or age <= ahead)
        if earlier and age <= rule.max_age_ns:
            return lower, lower, 0.0, ALIGNED, age
        if not earlier and upper < stop and ahead <= rule.max_age_ns:
            return upper, upper, 0.0, ALIGNED, -ahead
        return (lower, lower, 0.0, HELD, age) if rule.holds and lower >= start else NOTHING
    if lower < start:
        return NOTHING
    if selects == "neighbours":
        if age == 0:
            return lower, lower, 0.0, ALIGNED, 0
        if upper < stop and age + ahead <= rule.max_gap_ns:
            return lower, upper, age / (age + ahead), ALIGNED, age
    young = age <= rule.max_age_ns
    if not young and not rule.holds:
        return NOTHING
    return lower, lower, 0.0, ALIGNED if young and selects == "newest" else HELD, age


def _visible(rows: Int64, step: int, arrivals_ns: Int64, deadlines_ns: Int64) -> Int64:
    """Move each row outwards to the nearest sample that had arrived by the tick's deadline, or past the end."""
    rows = rows.copy()
    size = len(arrivals_ns)
    todo = np.arange(len(rows))
    while True:
        todo = todo[(rows[todo] >= 0) & (rows[todo] < size)]
        todo = todo[arrivals_ns[rows[todo]] > deadlines_ns[todo]]
        if not len(todo):
            return rows
        rows[todo] += step


def _nothing(count: int) -> Selection:
    rows = np.full(count, -1, np.int64)
    return Selection(rows, rows, np.zeros(count, np.float32), np.zeros(count, np.uint8), np.zeros(count, np.int64))
