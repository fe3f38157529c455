"""Finds the ticks of a recording at which nothing moves."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.fuse import BagRun
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import FusionSpec, StreamSpec

SHARE = 0.01  # of a column's range: the largest change of an observation that is not motion

Bools = NDArray[np.bool_]
Float32 = NDArray[np.float32]


def motion_streams(spec: FusionSpec) -> tuple[StreamSpec, ...]:
    """Return the streams whose values show motion: observations and actions with one vector per tick."""
    return tuple(s for s in spec.vectors if not s.is_outcome and not s.rows)


def check_motion(spec: FusionSpec) -> None:
    """Raise a RoboCacheError if no stream of a spec can show motion."""
    if not motion_streams(spec):
        raise RoboCacheError("trim_idle_s: the spec has no vector stream to see motion in; keep idle ticks, or add one")


def idle_ticks(run: BagRun, seconds: float) -> Bools:
    """Read the vectors of a recording; return which of its ticks are idle.

    A tick is idle if it is among consecutive ticks over `seconds` or more, without a time jump, in which no column
    changes by more than its limit: the stream's `idle`, or 1 % of the column's range in the recording for an
    observation, and 0 for an action. At a tick without a value, the last value counts.

    Args:
        run: of the recording; its messages are read once more.
        seconds: how long nothing moves.

    Returns:
        (T,) bool for all ticks of the recording.
    """
    streams = motion_streams(run.spec)
    vectors = BagRun(
        run.bag,
        replace(run.spec, streams=streams),
        visibility=run.visibility,
        trim=False,
        start_ns=run.log_range[0],
        stop_ns=run.log_range[1],
        timeline=run.timeline,
    )
    with closing(vectors.frames()) as parts:
        fused = np.concatenate([frames.fused.numpy() for frames in parts])
    ticks = max(2, math.ceil(seconds * run.spec.rate_hz) + 1)
    edges = np.cumsum([0, *run.ticks_of_spans]).tolist()
    still = [np.ones(max(0, stop - start - ticks + 1), bool) for start, stop in pairwise(edges)]  # by first tick
    of_columns = [(index, stream) for index, stream in enumerate(streams) for _ in range(stream.width)]
    for column, (index, stream) in enumerate(of_columns):
        values, present = fused[:, column], vectors.valid[:, index] > 0
        if present.any():
            limit, filled = _limit(stream, values[present]), _filled(values, present)
            for windows, (start, stop) in zip(still, pairwise(edges), strict=True):
                windows &= range_of_windows(filled[start:stop], ticks) <= limit
    counts = zip(still, run.ticks_of_spans, strict=True)
    return np.concatenate([covered(windows, ticks, count) for windows, count in counts])


def range_of_windows(values: Float32, count: int) -> NDArray[np.float64]:
    """Return max - min of each window of `count` consecutive values: (max(0, T - count + 1),) float64."""
    if len(values) < count:
        return np.empty(0)
    return _extreme(values, count, np.maximum) - _extreme(values, count, np.minimum)


def covered(windows: Bools, count: int, total: int) -> Bools:
    """Return which of `total` ticks are in a marked window of `count` ticks; window k begins at tick k."""
    edges = np.zeros(total + 1, np.int64)
    edges[: len(windows)] += windows
    edges[total + 1 - len(windows) :] -= windows
    return np.asarray(np.cumsum(edges)[:total] > 0)


def _extreme(values: Float32, count: int, of: np.ufunc) -> NDArray[np.float64]:
    """Return the extreme of each window: of the end of one block of `count` values and the begin of the next."""
    padded = np.pad(values.astype(np.float64), (0, -len(values) % count), mode="edge").reshape(-1, count)
    begins = of.accumulate(padded, axis=1).ravel()
    ends = of.accumulate(padded[:, ::-1], axis=1)[:, ::-1].ravel()
    windows = len(values) - count + 1
    return np.asarray(of(ends[:windows], begins[count - 1 : count - 1 + windows]))


def _limit(stream: StreamSpec, values: Float32) -> float:
    if stream.idle is not None:
        return stream.idle
    return 0.0 if stream.role == "action" else SHARE * (float(values.max()) - float(values.min()))


def _filled(values: Float32, present: Bools) -> Float32:
    """Return the values with the last value at ticks without one, and the first value before it."""
    newest = np.maximum.accumulate(np.where(present, np.arange(len(values)), -1))
    filled: Float32 = values[np.where(newest < 0, np.argmax(present), newest)]
    return filled
