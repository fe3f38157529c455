"""Pose streams: one frame tree for all streams that read a topic in the same way, and each stream's pose at a tick.

Poses are composed on the host, also when frames are computed on a GPU: the bits are the same, and a tick has only
seven numbers. The backend receives the poses like samples, one for each tick.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from robocache_ros.decode.transforms import Transform
from robocache_ros.engine.backends.interface import Backend, Selections
from robocache_ros.engine.device_clock import DeviceClock
from robocache_ros.engine.sample_index import Int64
from robocache_ros.engine.stream_samples import StreamSamples
from robocache_ros.engine.transforms.edge_samples import FIRST_SLOTS
from robocache_ros.engine.transforms.frame_tree import MAX_FRAMES, FrameTree
from robocache_ros.engine.transforms.static_transforms import StaticTransforms
from robocache_ros.engine.window_samples import WindowSamples
from robocache_ros.ops.resample.selection import Selection
from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.spec.layout import Layout
from robocache_ros.units import NS_PER_S

log = logging.getLogger(__name__)

DEFAULT_RATE_HZ = 250.0  # for a frame; sets the number of samples kept if the spec declares no rate
MAX_REASONS = 8  # maximum number of remembered reasons for missing poses

GroupKey = tuple[object, ...]


def groups(spec: FusionSpec) -> list[list[StreamSpec]]:
    """Groups of pose streams that read one topic with the same stamps; the first of each takes its transforms."""
    found: dict[GroupKey, list[StreamSpec]] = {}
    for s in spec.transforms:
        found.setdefault((s.topic, s.qos, s.stamp, s.latency_ms, s.max_skew_ms), []).append(s)
    return list(found.values())


def samples_of(
    spec: FusionSpec, capacities: Mapping[str, int], static: StaticTransforms, unbounded: bool
) -> dict[str, StreamSamples]:
    """The samples of every stream by name; the pose streams of one group share a tree."""
    poses: dict[str, TransformSamples] = {}
    for group in groups(spec):
        rate_hz = max(s.rate_hz or DEFAULT_RATE_HZ for s in group)
        reach_ns = max(max(s.max_gap_ns, s.max_age_ns) for s in group)
        most = math.ceil(2 * rate_hz * ((reach_ns + spec.delay_ns) / NS_PER_S + 0.5)) + FIRST_SLOTS
        holds = any(s.on_invalid == "hold" for s in group)
        tree = FrameTree(static, None if unbounded else most, reach_ns, holds=holds)
        for s in group:
            poses[s.name] = TransformSamples(s, spec, tree, capacities[s.name], poses.get(group[0].name))
    ages = Layout(spec).sample_ages

    def samples(s: StreamSpec) -> StreamSamples:
        if s.samples:
            return WindowSamples(s, capacities[s.name], unbounded, spec.rate_hz, ages.get(s.name, slice(0, 0)))
        return poses.get(s.name) or StreamSamples(s, capacities[s.name], unbounded)

    return {s.name: samples(s) for s in spec.streams}


class TransformSamples(StreamSamples):
    """The pose of one stream at each tick.

    Args:
        spec: the stream.
        fusion: the timeline.
        tree: the tree of the stream's group.
        slots: number of poses that the backend keeps.
        leader: the stream that takes the transforms of the group; None: this stream.
    """

    def __init__(
        self, spec: StreamSpec, fusion: FusionSpec, tree: FrameTree, slots: int, leader: TransformSamples | None
    ) -> None:
        super().__init__(spec, 1, unbounded=False)
        self.spec = spec
        self.tree = tree
        self.reach_ns = tree.reach_ns
        self.clock = leader.clock if leader else self.clock
        self._target, self._source = (frame.lstrip("/") for frame in spec.frames)
        self._leads = leader is None
        self._clocks: dict[str, DeviceClock] = {}  # by frame; `clock` is that of the first one, with the jumps of all
        self._cut_ns, self._patience = fusion.cut_ns, fusion.rate_hz
        self._slots, self._turn = slots, 0

    def add(self, backend: Backend, stamp_ns: int, arrival_ns: int, value: Transform) -> bool:
        """Add a transform to the tree; returns False if its frame has a sample with this stamp."""
        added = self.tree.add(value, stamp_ns, arrival_ns)
        self.overrun = self.tree.overrun
        return added

    def clock_of(self, value: Transform) -> DeviceClock | None:
        """The clock of a frame's publisher: one that stamps its transforms ahead does not move those of another one."""
        if self.clock is None or value.child in self._clocks:
            return self._clocks.get(value.child)
        if len(self._clocks) >= MAX_FRAMES:
            return self.clock
        return self._clocks.setdefault(value.child, self.clock.another() if self._clocks else self.clock)

    def newest_ns(self, now_ns: int) -> int:
        """The newest stamp of all frames; `now_ns` if no frame moves."""
        return self.tree.newest_ns() if len(self.tree) else now_ns

    def prune(self, backend: Backend, next_tick_ns: int) -> None:
        """Drop the transforms that no tick from `next_tick_ns` on can use."""
        if self._leads:
            self.tree.prune(next_tick_ns - self.reach_ns)

    def clear(self, backend: Backend) -> None:
        """Drop all moving transforms and restart the timeline."""
        self.tree.clear()
        if self.clock and self._leads:
            for clock in (self.clock, *self._clocks.values()):
                clock.restart()

    def select(
        self, backend: Backend, ticks: Int64, deadlines: Int64 | None, selections: Selections, number: int
    ) -> None:
        """Compose the poses of the ticks, pass them to the backend, and fill column `number` of the selections."""
        found = self.tree.poses(self._target, self._source, ticks, self.rule, deadlines)
        slots = (self._turn + np.arange(len(ticks))) % max(self._slots, len(ticks))
        self._turn = int(slots[-1]) + 1
        for slot, value, valid in zip(slots.tolist(), found.values.astype(np.float32), found.valid, strict=True):
            if valid:
                backend.put(self.spec.name, slot, value)
        rows = np.where(found.valid > 0, np.arange(len(ticks)), -1)
        share: NDArray[np.float32] = np.zeros(len(ticks), np.float32)
        selections.set(number, Selection(rows, rows, share, found.valid, found.age_ns), slots)
        for reason, count in found.missing.items():
            self._explain(reason, count)

    def shown_ns(self, ticks: Int64) -> Int64:
        """When every transform of the chain first has a sample at or after each tick; NEVER if not in time."""
        show, way = self.tree.shown_ns, (self._target, self._source)
        return np.array([show(*way, tick, self.rule, tick + self._cut_ns) for tick in ticks.tolist()], np.int64)

    def _explain(self, reason: str, ticks: int) -> None:
        """Log a reason for missing poses once, when it applies to as many ticks as one second has."""
        before = self.missing.pop(reason, 0)
        self.missing[reason] = before + ticks
        if len(self.missing) > MAX_REASONS:
            del self.missing[next(iter(self.missing))]
        if before < self._patience <= before + ticks:
            log.warning("%s: no pose: %s", self.spec.name, reason)
