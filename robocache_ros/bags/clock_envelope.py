"""Estimates the time on a clock as a function of log time, from its stamped messages with the least delay.

The difference log time - stamp is the offset of the clocks plus a delay that is never negative, so the messages with
the least delay give the offset. The method:

1. For each 0.1 s of the log, select the message with the smallest log time - stamp. A message that deviates by more
   than 0.5 s from the median of five is excluded, because its stamp is damaged.
2. A segment ends where the stamps jump back by more than 0.5 s, or ahead by more than 10 s. The engine restarts there.
3. A segment is one line, with an offset and a skew, fitted by the lower convex hull of its points
   (`engine.device_clock`), if the fastest messages of nine out of ten half seconds are within 20 ms of the line, and
   none deviates by 0.5 s. Otherwise, as in a simulation with varying speed, the segment is split at the point with the
   largest distance from the straight line between its ends.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.clocks import Lines, Piece, Segment, Times
from robocache_ros.engine.device_clock import JUMP_NS, Line, LowerHull
from robocache_ros.engine.tick_grid import JUMP_AHEAD_NS, JUMP_BACK_NS
from robocache_ros.units import NS_PER_MS, NS_PER_S

Int64 = NDArray[np.int64]

BIN_NS = 100 * NS_PER_MS
WINDOW_NS = NS_PER_S // 2
NEAR_NS = 20 * NS_PER_MS
MAX_FAR_SHARE = 0.1  # maximum share of windows further from a line than NEAR_NS
MEDIAN = 5  # points
MIN_WINDOWS = 3  # minimum number of windows for a split
MAX_SPLITS = 64  # maximum depth of splits: the runtime stays proportional to the length of the recording
ENDLESS = 2**63 - 1


def estimated(times: Times) -> list[Segment]:
    """Return the segments of a clock, from the stamped messages of all its topics in log order."""
    points = _without_damage(_fastest(times, BIN_NS))
    segments = []
    for first, stop in _between_jumps(points) if len(points.logs_ns) else ():
        part = Times(points.logs_ns[first:stop], points.stamps_ns[first:stop])
        start_ns = _first_after_jump(times, points, first) if first else int(times.logs_ns[0])
        segments.append(Segment(start_ns, Lines(tuple(_pieces(part)))))
    return segments


def jumps(times: Times) -> Int64:
    """Return the indices of the first messages after each jump of the stamps."""
    steps = np.diff(times.stamps_ns)
    back, ahead = steps < -JUMP_BACK_NS, steps - np.diff(times.logs_ns) > JUMP_AHEAD_NS
    found: Int64 = np.flatnonzero(back | ahead) + 1
    return found


def _fastest(times: Times, width_ns: int) -> Times:
    """Return the message with the least delay in each bin of log time."""
    bins = (times.logs_ns - times.logs_ns[0]) // width_ns
    order = np.lexsort((times.logs_ns - times.stamps_ns, bins))
    first = order[np.diff(bins[order], prepend=-1) > 0]
    return Times(times.logs_ns[first], times.stamps_ns[first])


def _without_damage(points: Times) -> Times:
    if len(points.logs_ns) < MEDIAN:
        return points
    delays = points.logs_ns - points.stamps_ns
    padded = np.pad(delays, MEDIAN // 2, mode="reflect")
    medians = np.sort(np.lib.stride_tricks.sliding_window_view(padded, MEDIAN), axis=1)[:, MEDIAN // 2]
    good = np.abs(delays - medians) <= JUMP_NS
    return Times(points.logs_ns[good], points.stamps_ns[good])


def _between_jumps(points: Times) -> Iterator[tuple[int, int]]:
    cuts = jumps(points).tolist()
    yield from zip([0, *cuts], [*cuts, len(points.logs_ns)], strict=True)


def _first_after_jump(times: Times, points: Times, first: int) -> int:
    """Return the log time of the first message whose stamp is closer to the clock after a jump than before it."""
    between = (times.logs_ns > points.logs_ns[first - 1]) & (times.logs_ns <= points.logs_ns[first])
    delays = points.logs_ns[first - 1 : first + 1] - points.stamps_ns[first - 1 : first + 1]
    found = times.logs_ns[between] - times.stamps_ns[between]
    after = np.abs(found - delays[1]) < np.abs(found - delays[0])
    return int(times.logs_ns[between][int(after.argmax())])


def _pieces(points: Times) -> list[Piece]:
    lines: list[tuple[int, Line]] = []
    waiting = [(points, 0)]
    while waiting:
        part, splits = waiting.pop()
        line = _line(part)
        windows = _fastest(part, WINDOW_NS)
        if len(windows.logs_ns) < MIN_WINDOWS or splits == MAX_SPLITS or _fits(windows, line):
            lines.append((int(part.logs_ns[0]), line))
            continue
        at = int(np.searchsorted(part.logs_ns, _corner(windows)))
        waiting.append((Times(part.logs_ns[at:], part.stamps_ns[at:]), splits + 1))
        waiting.append((Times(part.logs_ns[:at], part.stamps_ns[:at]), splits + 1))
    found: list[Piece] = []
    limit = ENDLESS
    for start, line in reversed(lines):  # each piece is limited by the start of the next one, so time never steps back
        found.append(Piece(start, line, limit))
        limit = found[-1].at(start)
    return found[::-1]


def _line(points: Times) -> Line:
    hull = LowerHull()
    newest = -1
    for log_ns, stamp_ns in zip(points.logs_ns.tolist(), points.stamps_ns.tolist(), strict=True):
        if stamp_ns > newest:
            hull.add(stamp_ns, log_ns)
            newest = stamp_ns
    return hull.line()


def _fits(windows: Times, line: Line) -> bool:
    pairs = zip(windows.logs_ns.tolist(), windows.stamps_ns.tolist(), strict=True)
    above = np.array([log_ns - line.at(stamp_ns) for log_ns, stamp_ns in pairs])
    return bool(np.mean(np.abs(above) > NEAR_NS) <= MAX_FAR_SHARE and np.abs(above).max() <= JUMP_NS)


def _corner(windows: Times) -> int:
    """Return the log time after the point that is furthest from the line between the first and the last point."""
    logs = (windows.logs_ns - windows.logs_ns[0]).astype(np.float64)
    delays = windows.logs_ns - windows.stamps_ns
    above = (delays - delays[0]) - logs / logs[-1] * float(delays[-1] - delays[0])
    furthest = int(np.abs(above[1:-1]).argmax()) + 1
    return int(windows.logs_ns[furthest if above[furthest] > 0 else furthest + 1])
