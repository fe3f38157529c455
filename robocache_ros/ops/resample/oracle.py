"""What the vector operations should give, in plain float64 NumPy, one target at a time: every backend's reference.

Written for reading. Selection is in exact integers; the arithmetic is the textbook's, sin and arccos included, and so
differs from the backends' by their rounding alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def resample(
    source: Array,
    times_ns: Array,
    targets_ns: Array,
    method: str = "linear",
    max_gap_ns: int | None = None,
    max_age_ns: int | None = None,
) -> tuple[Array, Array, Array]:
    """One trajectory onto new times.

    Args:
        source: (S, D).
        times_ns: (S,) int64, in any order.
        targets_ns: (T,) int64.
        method: linear, slerp, angle, hold or nearest.
        max_gap_ns: between neighbours that are blended.
        max_age_ns: from a target to a sample that is held or nearest.

    Returns:
        (T, D) float64 values, (T,) valid, (T,) age in ns.
    """
    values = np.zeros((len(targets_ns), source.shape[1]))
    valid = np.zeros(len(targets_ns), np.uint8)
    age = np.zeros(len(targets_ns), np.int64)
    for row, target in enumerate(targets_ns):
        values[row], valid[row], age[row] = _at(source, times_ns, int(target), method, max_gap_ns, max_age_ns)
    return values, valid, age


def _at(
    source: Array, times: Array, target: int, method: str, max_gap: int | None, max_age: int | None
) -> tuple[Array, int, int]:
    nothing = np.zeros(source.shape[1]), 0, 0
    before = [i for i in range(len(times)) if times[i] <= target]
    after = [i for i in range(len(times)) if times[i] > target]
    # min and max take the first of equals, as is wanted of samples with one stamp
    lower = max(before, key=lambda i: int(times[i])) if before else None
    upper = min(after, key=lambda i: int(times[i])) if after else None

    def copied(i: int, valid: int) -> tuple[Array, int, int]:
        young = max_age is None or abs(target - int(times[i])) <= max_age
        return (source[i].astype(np.float64), valid, target - int(times[i])) if young else nothing

    if method == "nearest":
        if lower is None and upper is None:
            return nothing
        if upper is None or (lower is not None and target - int(times[lower]) <= int(times[upper]) - target):
            assert lower is not None
            return copied(lower, 1)
        return copied(upper, 1)
    if lower is None:
        return nothing
    if method == "hold":
        return copied(lower, 1)
    start = int(times[lower])
    if start == target:
        return source[lower].astype(np.float64), 1, 0
    if upper is None or (max_gap is not None and int(times[upper]) - start > max_gap):
        return copied(lower, 2)
    share = (target - start) / (int(times[upper]) - start)
    return between(source[lower], source[upper], share, method), 1, target - start


def between(before: Array, after: Array, share: float, method: str) -> Array:
    """The blend of two (D,) samples in float64; `share` is the weight of the second."""
    before, after = before.astype(np.float64), after.astype(np.float64)
    if method == "linear":
        return before + share * (after - before)
    if method == "angle":
        turn = 2 * np.pi
        moved = before + share * (after - before - turn * np.round((after - before) / turn))
        wraps = (np.abs(before) <= np.pi) & (np.abs(after) <= np.pi)
        return np.where(wraps, moved - turn * np.round(moved / turn), moved)
    pairs = zip(before.reshape(-1, 4), after.reshape(-1, 4), strict=True)
    return np.concatenate([_slerp(p, q, share) for p, q in pairs])


def _slerp(p: Array, q: Array, share: float) -> Array:
    lengths = np.linalg.norm(p) * np.linalg.norm(q)
    if lengths == 0:
        return p + share * (q - p)
    if p @ q < 0:
        q = -q
    # the angle from the chord between unit vectors: accurate where arccos of a cosine near one is not
    chord = np.linalg.norm(p / np.linalg.norm(p) - q / np.linalg.norm(q))
    angle = 2 * np.arcsin(min(float(chord) / 2, 1.0))
    if angle < 1e-9:
        return p + share * (q - p)
    mixed: Array = (np.sin((1 - share) * angle) * p + np.sin(share * angle) * q) / np.sin(angle)
    return mixed
