"""The samples of one frame of /tf: its pose in its parent over time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.alignments import linear, slerp
from robocache_ros.engine.sample_index import Int64, SampleIndex
from robocache_ros.engine.transforms.pose import Pose, normalized
from robocache_ros.ops.resample.selection import HELD, NONE, Rule, Selection, select, select_one

Float64 = NDArray[np.float64]

FIRST_SLOTS = 16  # for a frame; doubled when all are in use, up to the limit of its tree


class EdgeAtTicks(NamedTuple):
    """The samples of a frame that T ticks use."""

    parents: NDArray[Any]  # (T,) object: frame names; None if the tick has no sample
    lower: Int64  # (T,) slots; any value if the tick has no sample
    upper: Int64  # (T,) slots; equal to `lower` if nothing is blended
    weight: Float64  # (T,) share of `upper`
    valid: NDArray[np.uint8]  # (T,)
    age_ns: Int64  # (T,)


class EdgeSamples:
    """Poses of a frame in its parents, by stamp.

    Args:
        most: maximum number of samples kept; None: keep all samples until `prune`.
    """

    def __init__(self, most: int | None) -> None:
        self.index = SampleIndex(FIRST_SLOTS, growing=True)
        self._most = most
        self._poses = np.empty((FIRST_SLOTS, 7))
        self._parents = np.empty(FIRST_SLOTS, object)

    def add(self, parent: str, pose: Pose, stamp_ns: int, arrival_ns: int) -> bool:
        """Add a sample with a new stamp; returns True if the oldest sample was dropped to make room."""
        index = self.index
        index.growing = self._most is None or 2 * index.capacity <= self._most
        dropped = index.full
        slot = index.insert(stamp_ns, arrival_ns)
        if slot >= len(self._poses):
            self._poses = np.concatenate([self._poses, np.empty_like(self._poses)])
            self._parents = np.concatenate([self._parents, np.empty_like(self._parents)])
        self._poses[slot] = pose
        self._parents[slot] = parent
        return dropped

    def at(self, ticks: Int64, rule: Rule, deadlines: Int64 | None) -> EdgeAtTicks:
        """The samples that (T,) ticks use by the rule; a tick uses samples that arrived by its deadline."""
        index = self.index
        if len(ticks) == 1:
            deadline = None if deadlines is None else int(deadlines[0])
            one = select_one(index.stamps_ns, int(ticks[0]), rule, index.arrivals_ns, deadline)
            lower, upper, age = np.array([[one.lower], [one.upper], [one.age_ns]], np.int64)
            found = Selection(lower, upper, np.zeros(1, np.float32), np.array([one.valid], np.uint8), age)
        else:
            found = select(index.stamps_ns, ticks, rule, index.arrivals_ns, deadlines)
        if not len(index):
            return EdgeAtTicks(np.full(len(ticks), None, object), *_nothing(len(ticks)))
        stamps, slots = index.stamps_ns, index.slots
        lower, upper = slots[found.lower], slots[found.upper]
        parents = self._parents[lower]
        parents[found.valid == NONE] = None
        # Samples before a change of the parent are held until the change and not blended with later ones, as in tf2.
        ends = (self._parents[upper] != parents) & (found.lower != found.upper)
        held = ends & ((found.age_ns <= rule.max_age_ns) | rule.holds)
        valid = np.where(ends, np.where(held, HELD, NONE), found.valid).astype(np.uint8)
        parents[valid == NONE] = None
        upper = np.asarray(np.where(ends, lower, upper), np.int64)
        gap = stamps[found.upper] - stamps[found.lower]
        share = (ticks - stamps[found.lower]).astype(np.float64) / np.maximum(gap, 1).astype(np.float64)
        weight = np.where(lower != upper, share, 0.0)
        return EdgeAtTicks(parents, lower, upper, weight, valid, found.age_ns)

    def has_at_or_after(self, tick_ns: int, deadline_ns: int) -> bool:
        """Whether a sample at or after a tick arrived by a deadline."""
        row = int(np.searchsorted(self.index.stamps_ns, tick_ns))
        return bool((self.index.arrivals_ns[row:] <= deadline_ns).any())

    def arrivals_from(self, tick_ns: int) -> Int64:
        """The arrivals of the samples at or after a tick."""
        return self.index.arrivals_ns[int(np.searchsorted(self.index.stamps_ns, tick_ns)) :]

    def rows(self, slots: Int64) -> Float64:
        """(T, 7) float64 poses."""
        return self._poses[slots]


def blend(before: Float64, after: Float64, weight: Float64, blended: NDArray[np.bool_]) -> Float64:
    """(N, 7) poses between `before` and `after`: linear positions, slerp rotations; `before` if not blended."""
    share = weight[:, None]
    x, y, z = linear.blend(before[:, :3], after[:, :3], share).T  # type: ignore[arg-type]  # blended in float64 here
    turn = slerp.blend(before[:, 3:], after[:, 3:], share).T  # type: ignore[arg-type]
    between = np.stack(normalized((x, y, z, *turn)), axis=1)  # the slerp series leaves a length error of 1e-8
    return np.where(blended[:, None], between, before)


def _nothing(count: int) -> tuple[Any, ...]:
    zeros = np.zeros(count, np.int64)
    return zeros, zeros, np.zeros(count), np.zeros(count, np.uint8), zeros
