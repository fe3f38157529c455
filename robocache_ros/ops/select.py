"""Which samples a tick is made of: chosen on the host, in int64 nanoseconds, the same for every backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.ops.arithmetic import BLENDED

Int64 = NDArray[np.int64]

NONE, ALIGNED, HELD = 0, 1, 2  # what `valid` says of a stream at a tick


@dataclass(frozen=True)
class Rule:
    """How a stream is aligned: its method, and the limits past which it is not."""

    method: str
    max_gap_ns: int
    max_age_ns: int


@dataclass(frozen=True)
class Selection:
    """For each of T ticks the rows it is made of; `v[lower] + weight * (v[upper] - v[lower])`."""

    lower: Int64  # (T,) row of the sample before the tick (of the one taken), -1 where there is none
    upper: Int64  # (T,) row of the sample after it; `lower` where nothing is blended
    weight: NDArray[np.float32]  # (T,) share of `upper`, in [0, 1]; 0 where nothing is blended
    valid: NDArray[np.uint8]  # (T,) NONE, ALIGNED or HELD (past its neighbour)
    age_ns: Int64  # (T,) tick - stamp of `lower`; 0 where there is none, negative where `nearest` looks ahead


def select(
    stamps_ns: Int64,
    ticks_ns: Int64,
    rule: Rule,
    arrivals_ns: Int64 | None = None,
    deadlines_ns: Int64 | None = None,
) -> Selection:
    """Choose rows for each tick by the rule of its stream.

    Args:
        stamps_ns: (S,) int64, strictly rising.
        ticks_ns: (T,) int64, in any order.
        rule: method and limits.
        arrivals_ns: (S,) int64, when each sample was received; needed with `deadlines_ns`.
        deadlines_ns: (T,) int64; a tick sees only what had arrived by its deadline. None: it sees everything.
    """
    lower = np.searchsorted(stamps_ns, ticks_ns, side="right").astype(np.int64) - 1
    upper = lower + 1
    size = len(stamps_ns)
    if deadlines_ns is not None:
        assert arrivals_ns is not None
        lower = _visible(lower, -1, arrivals_ns, deadlines_ns)
        upper = _visible(upper, +1, arrivals_ns, deadlines_ns)
    if not size:
        return _nothing(len(ticks_ns))
    has_lower, has_upper = lower >= 0, upper < size
    before = stamps_ns[np.where(has_lower, lower, 0)]
    after = stamps_ns[np.where(has_upper, upper, 0)]
    if rule.method == "nearest":
        return _nearest(ticks_ns, rule, lower, upper, has_lower, has_upper, before, after)
    age = np.where(has_lower, ticks_ns - before, 0)
    held = has_lower & (age <= rule.max_age_ns)
    if rule.method not in BLENDED:
        return _single(lower, held, held.astype(np.uint8), age)
    exact = has_lower & (age == 0)
    gap = after - before
    between = has_lower & has_upper & ~exact & (gap <= rule.max_gap_ns)
    aligned = exact | between
    valid = np.where(aligned, ALIGNED, np.where(held, HELD, NONE)).astype(np.uint8)
    weight = age.astype(np.float64) / np.where(between, gap, 1).astype(np.float64)
    chosen = _single(lower, valid > 0, valid, age)
    return Selection(
        chosen.lower,
        np.where(between, upper, chosen.lower),
        np.where(between, weight, 0).astype(np.float32),
        valid,
        chosen.age_ns,
    )


class Pick(NamedTuple):
    """One tick of a Selection."""

    lower: int
    upper: int
    weight: float  # to be rounded to float32
    valid: int
    age_ns: int


NOTHING = Pick(-1, -1, 0.0, NONE, 0)


def select_one(
    stamps_ns: Int64, tick_ns: int, rule: Rule, arrivals_ns: Int64 | None = None, deadline_ns: int | None = None
) -> Pick:
    """`select` for one tick, as a robot makes them: the same choice, without the cost of arrays."""
    lower = int(stamps_ns.searchsorted(tick_ns, "right")) - 1
    upper, size = lower + 1, len(stamps_ns)
    if deadline_ns is not None:
        assert arrivals_ns is not None
        while lower >= 0 and arrivals_ns[lower] > deadline_ns:
            lower -= 1
        while upper < size and arrivals_ns[upper] > deadline_ns:
            upper += 1
    age = tick_ns - int(stamps_ns[lower]) if lower >= 0 else 0
    ahead = int(stamps_ns[upper]) - tick_ns if upper < size else 0
    if rule.method == "nearest":
        earlier = lower >= 0 and (upper == size or age <= ahead)  # the earlier one on a tie
        if earlier and age <= rule.max_age_ns:
            return Pick(lower, lower, 0.0, ALIGNED, age)
        if not earlier and upper < size and ahead <= rule.max_age_ns:
            return Pick(upper, upper, 0.0, ALIGNED, -ahead)
        return NOTHING
    if lower < 0:
        return NOTHING
    if rule.method in BLENDED:
        if age == 0:
            return Pick(lower, lower, 0.0, ALIGNED, 0)
        if upper < size and age + ahead <= rule.max_gap_ns:
            return Pick(lower, upper, age / (age + ahead), ALIGNED, age)
    if age > rule.max_age_ns:
        return NOTHING
    return Pick(lower, lower, 0.0, HELD if rule.method in BLENDED else ALIGNED, age)


def _visible(rows: Int64, step: int, arrivals_ns: Int64, deadlines_ns: Int64) -> Int64:
    """Walk each row outwards until it is a sample that had arrived, or past the end."""
    rows = rows.copy()
    size = len(arrivals_ns)
    todo = np.arange(len(rows))
    while True:
        todo = todo[(rows[todo] >= 0) & (rows[todo] < size)]
        todo = todo[arrivals_ns[rows[todo]] > deadlines_ns[todo]]
        if not len(todo):
            return rows
        rows[todo] += step


def _nearest(
    ticks_ns: Int64, rule: Rule, lower: Int64, upper: Int64, has_lower: Any, has_upper: Any, before: Int64, after: Int64
) -> Selection:
    far = np.iinfo(np.int64).max
    behind = np.where(has_lower, ticks_ns - before, far)
    ahead = np.where(has_upper, after - ticks_ns, far)
    earlier = behind <= ahead  # the earlier one on a tie
    found = np.where(earlier, behind, ahead) <= rule.max_age_ns
    age = np.where(earlier, behind, -ahead)
    return _single(np.where(earlier, lower, upper), found, found.astype(np.uint8), age)


def _single(rows: Int64, found: Any, valid: NDArray[np.uint8], age_ns: Int64) -> Selection:
    rows = np.where(found, rows, -1)
    return Selection(rows, rows, np.zeros(len(rows), np.float32), valid, np.where(found, age_ns, 0))


def _nothing(count: int) -> Selection:
    rows = np.full(count, -1, np.int64)
    return Selection(rows, rows, np.zeros(count, np.float32), np.zeros(count, np.uint8), np.zeros(count, np.int64))
