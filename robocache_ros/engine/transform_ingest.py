"""Messages of /tf and /tf_static: streams of poses, and clouds of moving sensors."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from robocache_ros.decode import DecodeError, Sample
from robocache_ros.decode.payloads import Matrix
from robocache_ros.decode.transforms import Transform, read_transforms
from robocache_ros.engine.engine import FusionEngine, Outcome
from robocache_ros.engine.tick_grid import JUMP_BACK_NS
from robocache_ros.engine.transforms import (
    MAX_CHAIN,
    MAX_MOVING_FRAMES,
    NO_TIME_NS,
    FrameTree,
    StaticTransforms,
    groups,
)
from robocache_ros.ops.resample.selection import ALIGNED, Rule
from robocache_ros.spec import Extrinsic, FusionSpec, StreamSpec
from robocache_ros.units import NS_PER_S

log = logging.getLogger(__name__)

MAX_POSITION_M = 1e9  # larger than the distance between any two frames on earth
QUATERNION_TOLERANCE = 0.01  # on the squared length, as in tf2
MAX_LOGGED = 8  # maximum number of parent changes that are logged for a stream
_NO_VALUE = np.empty(0, np.float32)


class Checked(NamedTuple):
    """A transform of a message, and why it cannot be used, if so."""

    transform: Transform
    error: DecodeError | None


class TransformIngest:
    """Pushes the transforms of /tf messages.

    `received` and `decoded` count messages. The other counters count transforms in a stream's own chain: the outcomes,
    `dropped:<cause>`, `static_frame` (/tf_static also has the frame and takes precedence) and `reparented` (the parent
    differs from that in the previous transform).

    Args:
        engine: receives the transforms; its spec names the streams.
        counters: the counters of each feed.
        count: counts and logs an outcome of `push`.
        dropped: counts and logs an error.
    """

    def __init__(
        self,
        engine: FusionEngine,
        counters: dict[str, Counter[str]],
        count: Callable[[str, Outcome, Sample, int], Outcome],
        dropped: Callable[[str, DecodeError], Outcome],
    ) -> None:
        self._counters, self._count, self._dropped = counters, count, dropped
        self._groups: dict[str, _Group] = {}
        for streams in groups(engine.spec):
            group = _Group(streams, engine)
            self._groups |= {stream.name: group for stream in streams}
        self._data: object = None
        self._checked: list[Checked] = []
        self._logged: Counter[str] = Counter()

    def __contains__(self, feed: str) -> bool:
        return feed in self._groups

    def decode(self, data: bytes | memoryview) -> list[Checked]:
        """The transforms of a message, decoded once for all streams that get it in a row; raises DecodeError."""
        if self._data is not data:
            self._data, self._checked = None, [Checked(t, _problem(t)) for t in read_transforms(data)]
            self._data = data
        return self._checked

    def message(self, feed: str, data: bytes | memoryview, arrival_ns: int) -> tuple[Outcome, int | None]:
        """Push a message for a stream; returns the outcome and the stamp of its last transform in the chain."""
        counters, group = self._counters[feed], self._groups[feed]
        counters["received"] += 1
        try:
            checked = self.decode(data)
        except DecodeError as error:
            return self._dropped(feed, error), None
        counters["decoded"] += 1
        outcome, stamp_ns = Outcome.ACCEPTED, None
        for transform, result, before in group.push(feed, data, checked, arrival_ns):
            if isinstance(result, DecodeError):
                if transform.child in group.chain(feed) or result.cause == "frames":
                    outcome = self._dropped(feed, result)
            elif transform.child in group.chain(feed):
                if before:
                    self._note_parent(feed, transform, before)
                stamp_ns = transform.stamp_ns
                if result is None:
                    counters["static_frame"] += 1
                else:
                    outcome = self._count(feed, result, Sample(stamp_ns, _NO_VALUE), arrival_ns)
        return outcome, stamp_ns

    def _note_parent(self, feed: str, transform: Transform, before: str) -> None:
        self._counters[feed]["reparented"] += 1
        self._logged[feed] += 1
        if self._logged[feed] <= MAX_LOGGED:
            text = "%s: the parent of %s is now %s, not %s; its transform from the old parent ends"
            log.warning(text, feed, transform.child, transform.parent, before)


# A transform, its outcome (None: the frame is static), and the frame's previous parent if it has changed.
_Pushed = tuple[Transform, "Outcome | DecodeError | None", str]


class _Group:
    """The streams that share a tree; each message is pushed once for all of them."""

    def __init__(self, streams: Sequence[StreamSpec], engine: FusionEngine) -> None:
        self._leader = streams[0].name
        self._ends = {s.name: tuple(frame.lstrip("/") for frame in s.frames) for s in streams}
        self._engine = engine
        self._static: StaticTransforms = engine.static_transforms
        self._parents: dict[str, str] = {}  # of each frame, from its latest transform
        self._chains: dict[str, frozenset[str]] = {}
        self._known = -1  # version of the static transforms that the cached chains use
        self._pushed: tuple[object, int, list[_Pushed]] = (None, 0, [])
        self._served: set[str] = set()  # streams that have counted `_pushed`

    def push(self, feed: str, data: object, checked: Sequence[Checked], arrival_ns: int) -> list[_Pushed]:
        """Push a message, unless another stream of the group has just pushed it."""
        if self._pushed[0] is not data or self._pushed[1] != arrival_ns or feed in self._served:
            self._pushed = data, arrival_ns, [self._push(*one, arrival_ns) for one in checked]
            self._served = set()
        self._served.add(feed)
        return self._pushed[2]

    def chain(self, feed: str) -> frozenset[str]:
        """The frames on the path between the stream's two frames, or above either one, by the latest transforms."""
        if self._known != self._static.version:
            self._known = self._static.version
            self._chains.clear()
        if feed not in self._chains:
            target, source = (self._upwards(frame) for frame in self._ends[feed])
            common = set(target) & set(source)
            self._chains[feed] = frozenset((*target, *source)) - common if common else frozenset((*target, *source))
        return self._chains[feed]

    def _push(self, transform: Transform, error: DecodeError | None, arrival_ns: int) -> _Pushed:
        child = transform.child
        if error:
            return transform, error, ""
        before = self._parents.pop(child, "")
        self._parents[child] = transform.parent  # keeps the frames in the order of their latest transforms
        if before != transform.parent:
            self._chains.clear()
            if len(self._parents) > MAX_MOVING_FRAMES:
                del self._parents[next(iter(self._parents))]
        changed = before if before != transform.parent else ""
        if self._static.edge(child):
            return transform, None, ""
        try:
            return transform, self._engine.push(self._leader, transform.stamp_ns, arrival_ns, transform), changed
        except DecodeError as too_many:
            return transform, too_many, ""

    def _upwards(self, frame: str) -> list[str]:
        path = [frame]
        while len(path) <= MAX_CHAIN:
            static = self._static.edge(path[-1])
            parent = static[0] if static else self._parents.get(path[-1])
            if parent is None or parent in path:
                break
            path.append(parent)
        return path


def _problem(transform: Transform) -> DecodeError | None:
    """Why a transform cannot be used, by the rules of tf2; None if it can be used."""
    parent, child = transform.parent, transform.child
    length = math.fsum(value * value for value in transform.rotation_xyzw if math.isfinite(value))
    if not parent or not child:
        return DecodeError("no_frame", "a transform has an empty frame name")
    if parent == child:
        return DecodeError("one_frame", f"a transform from {child} to itself")
    if not all(map(math.isfinite, (*transform.translation_m, *transform.rotation_xyzw))):
        return DecodeError("not_finite", f"the transform from {parent} to {child} is not finite")
    if max(map(abs, transform.translation_m)) > MAX_POSITION_M:
        return DecodeError("too_far", f"{child} is more than {MAX_POSITION_M:g} m from {parent}")
    if abs(length - 1) > QUATERNION_TOLERANCE:
        return DecodeError("rotation", f"the rotation from {parent} to {child} is not a unit quaternion")
    return None


# Clouds and depth images of moving sensors: each one waits for the transforms at its stamp.
#
# A cloud is placed once every transform between its frame and the grid's frame has a sample at or after the cloud's
# stamp. All transforms are then interpolated, and none is extrapolated. The placement depends only on the messages and
# the order of their arrival, so a recording gives the same placement as the robot. A cloud counts as arrived when the
# last of its transforms arrives.

WAIT_NS = NS_PER_S // 2  # after the arrival of a cloud; the cloud is then dropped
WAITING = 8  # maximum number of waiting clouds of a stream
HISTORY_NS = 2 * NS_PER_S  # transforms are kept for this long before the newest one of each frame
MAX_TRANSFORMS_KEPT = 1024  # maximum number of transforms kept for a frame


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
        self._tree = FrameTree(static, MAX_TRANSFORMS_KEPT)
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
                self._tree.prune(NO_TIME_NS, child)
                newest_ns = stamp_ns
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
