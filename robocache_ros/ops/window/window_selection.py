"""Selects the samples since the last tick, in int64 nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class WindowSelection:
    """The samples of each of T ticks, at most n, the oldest first."""

    rows: Int64  # (T, n) row of each sample, -1 after the last one
    age_ns: Int64  # (T, n) tick - stamp of each sample, -1 after the last one
    counts: Int64  # (T,) number of samples
    dropped: int  # samples in the windows that are not among the newest n

    def rows_at(self, tick: int) -> list[int]:
        """The rows of one tick's samples."""
        rows: list[int] = self.rows[tick, : self.counts[tick]].tolist()
        return rows


def select_window(
    stamps_ns: Int64,
    starts_ns: Int64,
    ticks_ns: Int64,
    most: int,
    arrivals_ns: Int64 | None = None,
    deadlines_ns: Int64 | None = None,
) -> WindowSelection:
    """Select the newest samples with a stamp in (start, tick].

    Args:
        stamps_ns: (S,) int64, strictly rising.
        starts_ns: (T,) int64, the tick before each tick.
        ticks_ns: (T,) int64.
        most: n, samples that a tick uses at most.
        arrivals_ns: (S,) int64, when each sample was received; needed with `deadlines_ns`.
        deadlines_ns: (T,) int64; a tick uses only what had arrived by its deadline. None: it uses everything.
    """
    rows, age_ns = np.full((2, len(ticks_ns), most), -1, np.int64)
    counts, dropped = np.zeros(len(ticks_ns), np.int64), 0
    first = np.searchsorted(stamps_ns, starts_ns, side="right").tolist()
    end = np.searchsorted(stamps_ns, ticks_ns, side="right").tolist()
    for tick, (low, high) in enumerate(zip(first, end, strict=True)):
        found = np.arange(low, high)
        if deadlines_ns is not None:
            assert arrivals_ns is not None
            found = found[arrivals_ns[low:high] <= deadlines_ns[tick]]
        used = found[-most:]
        dropped += len(found) - len(used)
        counts[tick] = len(used)
        rows[tick, : len(used)] = used
        age_ns[tick, : len(used)] = ticks_ns[tick] - stamps_ns[used]
    return WindowSelection(rows, age_ns, counts, dropped)
