"""The reference of windows: plain float64 NumPy, one tick at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def window(source: Array, times_ns: Array, start_ns: int, tick_ns: int, samples: int) -> tuple[Array, Array, int]:
    """The samples with a time in (start, tick].

    Args:
        source: (S, D).
        times_ns: (S,) int64, in any order.
        start_ns: the last tick.
        tick_ns: the tick.
        samples: n; the newest n are used.

    Returns:
        (m, D) float64 samples, the oldest first, m <= n; their (m,) ages in ns; and how many more there were.
    """
    inside = sorted((int(t), i) for i, t in enumerate(times_ns) if start_ns < t <= tick_ns)
    used = inside[max(len(inside) - samples, 0) :]
    values = np.array([source[i] for _, i in used], np.float64).reshape(len(used), source.shape[1])
    return values, np.array([tick_ns - t for t, _ in used], np.int64), len(inside) - len(used)


def reduced(values: Array, reduce: str) -> Array:
    """(D,) mean, rms, max or min of (m, D) samples; zeros where there is none."""
    if not len(values):
        return np.zeros(values.shape[1])
    if reduce == "rms":
        return np.asarray(np.sqrt((values**2).mean(axis=0)))
    if reduce == "mean":
        return np.asarray(values.mean(axis=0))
    return np.asarray(values.max(axis=0) if reduce == "max" else values.min(axis=0))
