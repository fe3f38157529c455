"""The tick grid: anchored to the epoch, so that robot, recording and training job have the same ticks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robocache_ros.units import NS_PER_S

JUMP_BACK_NS = NS_PER_S // 2  # a smaller step back is a slewed clock or reordered messages of two topics, not a reset
JUMP_AHEAD_NS = 10 * NS_PER_S  # after a larger step of the clock, the ticks in between are not computed


def tick_ns(index: int, rate_hz: int) -> int:
    """Time of tick `index` in nanoseconds since the epoch."""
    return index * NS_PER_S // rate_hz


def first_at_or_after(time_ns: int, rate_hz: int) -> int:
    """Index of the first tick at or after a time."""
    # t_k = floor(k * 1e9 / rate) >= t  <=>  k * 1e9 >= t * rate, for integers
    return -(-time_ns * rate_hz // NS_PER_S)


def last_at_or_before(time_ns: int, rate_hz: int) -> int:
    """Index of the last tick at or before a time."""
    return first_at_or_after(time_ns + 1, rate_hz) - 1


def period_ns(rate_hz: int) -> int:
    """The longest time between two ticks."""
    return -(-NS_PER_S // rate_hz)


def tick_before(time_ns: int, rate_hz: int) -> int:
    """Time of the tick before a time."""
    return tick_ns(first_at_or_after(time_ns, rate_hz) - 1, rate_hz)


def ticks_before(ticks_ns: NDArray[np.int64], rate_hz: int) -> NDArray[np.int64]:
    """(T,) int64 time of the tick before each tick."""
    seconds, rest = np.divmod(ticks_ns, NS_PER_S)  # within each second, because k * 1e9 overflows int64
    before: NDArray[np.int64] = seconds * NS_PER_S + (-(-rest * rate_hz // NS_PER_S) - 1) * NS_PER_S // rate_hz
    return before


def ticks_ns(first: int, count: int, rate_hz: int) -> NDArray[np.int64]:
    """(count,) int64 times of the ticks from index `first` on."""
    if count == 1:  # on a robot; the arrays take five times as long
        return np.array([tick_ns(first, rate_hz)], np.int64)
    return ticks_after(first, np.arange(count, dtype=np.int64), rate_hz)


def ticks_after(first: int, rows: NDArray[np.int64], rate_hz: int) -> NDArray[np.int64]:
    """(...) int64 times of the ticks `first + rows`, for rows from 0 to 9e9."""
    start, rest = divmod(first * NS_PER_S, rate_hz)  # Python integers, because k * 1e9 overflows int64
    return start + (rest + rows * NS_PER_S) // rate_hz
