"""The samples of a window: which ones, and their values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.ops.resample.cpu import canonical

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class WindowSelection:
    """The samples of each of T ticks, at most n, the oldest first."""

    rows: Int64  # (T, n) row of each sample, -1 after the last one
    age_ns: Int64  # (T, n) tick - stamp of each sample, -1 after the last one
    counts: Int64  # (T,) number of samples
    dropped: int  # samples in the windows that are not among the newest n


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


# The values of a window on the CPU; kernels/tick/window.cuh computes the same bits.
#
# A sum is taken in float64, one sample after the other from the oldest to the newest, divided and, for rms, rooted in
# float64, and rounded once to float32.


def window_values(source: Tensor, rows: Int64, counts: Int64, reduce: str = "") -> Tensor:
    """The values of T windows.

    Args:
        source: (S, D) float32 samples.
        rows: (T, n) int64 rows of each window's samples, the oldest first, -1 after the last one.
        counts: (T,) int64 number of samples of each window.
        reduce: mean, rms, max or min; empty for the samples themselves.

    Returns:
        (T, D) float32, zeros for a window without samples; or (T, n, D), zeros after the last sample.
    """
    if not reduce:
        values = source[torch.from_numpy(np.maximum(rows, 0))]
        return values.masked_fill_(torch.from_numpy(rows < 0)[..., None], 0)
    samples = source.numpy()
    reduced = _extreme(samples, rows, reduce) if reduce in ("max", "min") else _mean(samples, rows, counts, reduce)
    reduced[counts == 0] = 0
    return canonical(torch.from_numpy(reduced))


def _mean(samples: NDArray[np.float32], rows: Int64, counts: Int64, reduce: str) -> NDArray[np.float32]:
    total = np.zeros((len(rows), samples.shape[1]))
    with np.errstate(all="ignore"):  # NaN and infinities are ordinary values here
        for column in rows.T:
            value = samples[np.maximum(column, 0)].astype(np.float64)
            total = np.where((column >= 0)[:, None], total + (value * value if reduce == "rms" else value), total)
        mean = total / counts[:, None]
        return (np.sqrt(mean) if reduce == "rms" else mean).astype(np.float32)


def _extreme(samples: NDArray[np.float32], rows: Int64, reduce: str) -> NDArray[np.float32]:
    best = samples[np.maximum(rows[:, 0], 0)]
    for column in rows.T[1:]:
        value = samples[np.maximum(column, 0)]
        better = value > best if reduce == "max" else value < best
        best = np.where((column >= 0)[:, None] & better, value, best)
    return best
