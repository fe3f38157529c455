"""Clouds and depth images of moving sensors: each one waits for the transforms at its stamp.

A cloud is placed once every transform between its frame and the grid's frame has a sample at or after the cloud's
stamp. All transforms are then interpolated, and none is extrapolated. The placement depends only on the messages and
the order of their arrival, so a recording gives the same placement as the robot. A cloud counts as arrived when the
last of its transforms arrives.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from robocache_ros.decode import DecodeError, Sample
from robocache_ros.decode.payloads import Matrix
from robocache_ros.decode.transforms import Transform
from robocache_ros.engine.tick_grid import JUMP_BACK_NS
from robocache_ros.engine.transforms.frame_tree import NEVER, FrameTree
from robocache_ros.engine.transforms.static_transforms import StaticTransforms
from robocache_ros.ops.resample.selection import ALIGNED, Rule
from robocache_ros.spec import Extrinsic, FusionSpec
from robocache_ros.units import NS_PER_S

log = logging.getLogger(__name__)

WAIT_NS = NS_PER_S // 2  # after the arrival of a cloud; the cloud is then dropped
WAITING = 8  # maximum number of waiting clouds of a stream
HISTORY_NS = 2 * NS_PER_S  # transforms are kept for this long before the newest one of each frame
MOST = 1024  # maximum number of transforms kept for a frame


class Placed(NamedTuple):
    """A cloud that no longer waits."""

    stream: str
    sample: Sample
    pose: Matrix | DecodeError | None  # T_grid_sensor, or the error if there is none; None for a cloud without a stamp


class _Waiting(NamedTuple):
    stream: str
    sample: Sample
    arrival_ns: int


class CloudPlacement:
    """The waiting clouds of all streams with a `voxels.frame`, and the transforms that they wait for.

    Args:
        spec: the streams.
        static: the static transforms.
    """

    def __init__(self, spec: FusionSpec, static: StaticTransforms) -> None:
        self._static = static
        self._tree = FrameTree(static, MOST)
        self._streams = {s.name: s for s in spec.framed}
        self._frames = {s.name: s.voxels.frame for s in spec.framed if s.voxels}
        self._waiting: list[_Waiting] = []
        self._full = False  # a frame was refused because there are too many, and the warning was logged

    def __contains__(self, stream: str) -> bool:
        return stream in self._frames

    def add_transforms(self, transforms: Iterable[Transform], arrival_ns: int) -> Iterator[Placed]:
        """Add the transforms of a message by their header stamps; yields the clouds that waited for them."""
        for transform in transforms:
            child, stamp_ns = transform.child, transform.stamp_ns
            if not stamp_ns:
                continue
            newest_ns = self._tree.newest_ns(child)
            if stamp_ns < newest_ns - JUMP_BACK_NS:  # the clock jumped back: drop the samples from before the jump
                self._tree.prune(NEVER, child)
            try:
                self._tree.add(transform, stamp_ns, arrival_ns)
            except DecodeError as error:
                if not self._full:
                    log.warning("/tf: a transform is ignored: %s", error)
                self._full = True
                continue
            self._tree.prune(max(stamp_ns, newest_ns) - HISTORY_NS, child)
        yield from self._ready(arrival_ns)

    def add(self, stream: str, sample: Sample, arrival_ns: int) -> Iterator[Placed]:
        """Add a cloud; yields the clouds that no longer wait."""
        frame = self._frames[stream]
        pose = self._static.lookup(frame, sample.frame_id)
        if pose is not None:
            yield Placed(stream, sample, pose)
        elif not len(self._tree):
            text = f"/tf_static has no transform from {sample.frame_id or 'no frame_id'} to {frame} (yet)"
            yield Placed(stream, sample, DecodeError("no_transform", text))
        elif not sample.stamp_ns:
            yield Placed(stream, sample, None)
        else:
            self._waiting.append(_Waiting(stream, sample, arrival_ns))
            yield from self._ready(arrival_ns)

    def _ready(self, arrival_ns: int) -> Iterator[Placed]:
        """The clouds that can be placed when a message arrives, and the clouds that have waited too long."""
        waiting, self._waiting = self._waiting, []
        behind = Counter(entry.stream for entry in waiting)
        for entry in waiting:
            behind[entry.stream] -= 1
            pose, missing = self._pose(entry)
            if pose is not None:
                yield Placed(entry.stream, entry.sample, pose)
            elif arrival_ns - entry.arrival_ns > WAIT_NS or behind[entry.stream] >= WAITING:
                yield Placed(entry.stream, entry.sample, DecodeError("no_transform", missing))
            elif arrival_ns < entry.arrival_ns - JUMP_BACK_NS:
                yield Placed(entry.stream, entry.sample, DecodeError("no_transform", "the clock jumped back"))
            else:
                self._waiting.append(entry)

    def _pose(self, entry: _Waiting) -> tuple[Matrix | None, str]:
        """T_grid_sensor at the time of a cloud, or None and what is missing."""
        stream, sample = self._streams[entry.stream], entry.sample
        assert sample.stamp_ns
        ticks = np.array([sample.stamp_ns - stream.latency_ns])
        rule = Rule("linear", stream.max_gap_ns, 0)
        target, source = self._frames[entry.stream].lstrip("/"), sample.frame_id.lstrip("/")
        found = self._tree.poses(target, source, ticks, rule)
        if found.valid[0] != ALIGNED:
            return None, f"{next(iter(found.missing), 'no transform')}, at its stamp"
        x, y, z, *rotation = found.values[0].tolist()
        return Extrinsic((x, y, z), tuple(rotation)).matrix, ""
