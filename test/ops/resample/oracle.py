"""The reference of all backends of the vector operations: plain float64 NumPy, one target at a time.

Selection uses exact integers. The arithmetic is that of textbooks, and the backends differ from it by rounding alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.alignments import alignment

Array = NDArray[Any]


def resample(
    source: Array,
    times_ns: Array,
    targets_ns: Array,
    method: str = "linear",
    max_gap_ns: int | None = None,
    max_age_ns: int | None = None,
) -> tuple[Array, Array, Array]:
    """Resample one trajectory.

    Args:
        source: (S, D).
        times_ns: (S,) int64, in any order.
        targets_ns: (T,) int64.
        method: the name of an alignment.
        max_gap_ns: widest gap between neighbours that are blended; None for no limit.
        max_age_ns: longest time from a target to a sample that is copied; None for no limit.

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
    # Of samples with one stamp the first counts: min and max return the first of equal elements.
    lower = max(before, key=lambda i: int(times[i])) if before else None
    upper = min(after, key=lambda i: int(times[i])) if after else None

    def copied(i: int, valid: int) -> tuple[Array, int, int]:
        young = max_age is None or abs(target - int(times[i])) <= max_age
        return (source[i].astype(np.float64), valid, target - int(times[i])) if young else nothing

    selects = alignment(method).selects
    if selects == "nearest":
        if lower is None and upper is None:
            return nothing
        first = upper is None or (lower is not None and target - int(times[lower]) <= int(times[upper]) - target)
        return copied(lower if first else upper, 1)
    if selects == "next":
        first = lower if lower is not None and int(times[lower]) == target else upper
        return nothing if first is None else copied(first, 1)
    if lower is None:
        return nothing
    if selects == "newest":
        return copied(lower, 1)
    start = int(times[lower])
    if start == target:
        return source[lower].astype(np.float64), 1, 0
    if upper is None or (max_gap is not None and int(times[upper]) - start > max_gap):
        return copied(lower, 2)
    share = (target - start) / (int(times[upper]) - start)
    before, after = (source[i].astype(np.float64) for i in (lower, upper))
    return alignment(method).oracle(before, after, share), 1, target - start
