"""The tree of frames: static transforms, samples of moving ones, and the pose between two frames at a time."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robocache_ros.alignments import linear, slerp
from robocache_ros.decode.payloads import DecodeError, Matrix
from robocache_ros.decode.transforms import Transform
from robocache_ros.engine.backends.interface import Backend, Selections, TickSelections
from robocache_ros.engine.device_clock import DeviceClock
from robocache_ros.engine.samples import Int64, SampleIndex, StreamSamples, WindowSamples, prune
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.ops.resample.selection import HELD, NONE, Rule, Selection, select, select_one
from robocache_ros.spec import Extrinsic, FusionSpec, StreamSpec
from robocache_ros.spec.layout import Layout
from robocache_ros.units import NS_PER_S

# Poses as a position and a unit quaternion, composed in float64.
#
# Only + - * / and sqrt are used, each with its own rounding, on floats or elementwise on arrays. The bits are the same
# for one tick and for many ticks, and on every machine.

# px, py, pz in metres and qx, qy, qz, qw: seven floats, or seven float64 arrays of the same shape.
Pose: TypeAlias = tuple[Any, ...]

IDENTITY_POSE: Pose = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)


def compose(a: Pose, b: Pose) -> Pose:
    """T_a_c from T_a_b and T_b_c."""
    ax, ay, az, ai, aj, ak, aw = a
    bx, by, bz, bi, bj, bk, bw = b
    rx, ry, rz = _rotated((ai, aj, ak, aw), (bx, by, bz))
    return (
        ax + rx,
        ay + ry,
        az + rz,
        aw * bi + ai * bw + aj * bk - ak * bj,
        aw * bj - ai * bk + aj * bw + ak * bi,
        aw * bk + ai * bj - aj * bi + ak * bw,
        aw * bw - ai * bi - aj * bj - ak * bk,
    )


def inverse(a: Pose) -> Pose:
    """T_b_a from T_a_b."""
    x, y, z, i, j, k, w = a
    rx, ry, rz = _rotated((-i, -j, -k, w), (x, y, z))
    return (-rx, -ry, -rz, -i, -j, -k, w)


def normalized(a: Pose) -> Pose:
    """The same pose, with its quaternion normalized to length one."""
    x, y, z, i, j, k, w = a
    square = i * i + j * j + k * k + w * w
    length = math.sqrt(square) if isinstance(square, float) else np.sqrt(square)  # both are correctly rounded
    return (x, y, z, i / length, j / length, k / length, w / length)


def pose_of(transform: Transform) -> Pose:
    """The pose of a transform; its quaternion must not be zero."""
    return normalized((*transform.translation_m, *transform.rotation_xyzw))


def _rotated(q: tuple[Any, ...], v: tuple[Any, ...]) -> tuple[Any, ...]:
    """A vector rotated by a unit quaternion: v + w t + u x t, with t = 2 u x v."""
    i, j, k, w = q
    x, y, z = v
    tx, ty, tz = 2.0 * (j * z - k * y), 2.0 * (k * x - i * z), 2.0 * (i * y - j * x)
    return (
        x + w * tx + (j * tz - k * ty),
        y + w * ty + (k * tx - i * tz),
        z + w * tz + (i * ty - j * tx),
    )


# Static transforms between frames: a tree, and the pose of any frame in any other frame.
#
# They are composed here in float64 and not by tf2: the same operations in the same order give the same bits on a robot
# and on a server without ROS.

log = logging.getLogger(__name__)

MAX_STATIC_FRAMES = 4096  # frames with a parent; also the maximum number of cached lookups
IDENTITY_MATRIX: Matrix = ((1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0))


class StaticTransforms:
    """The transforms of /tf_static; the last transform of each child frame is used, as in tf2.

    Frame names come from outside: at most MAX_FRAMES transforms and as many cached lookups are kept.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # a node receives transforms and clouds in different threads
        self._parents: dict[str, tuple[str, Matrix]] = {}
        self._edges: dict[str, tuple[str, Pose]] = {}
        self.version = 0  # increases with each transform
        self._full = False  # a transform was refused because there are MAX_FRAMES, and the warning was logged
        self._found: dict[tuple[str, str], Matrix | None] = {}

    def add(self, transform: Transform) -> bool:
        """Add a transform; logs and returns False if it is not rigid, not between two frames, or one too many."""
        try:
            matrix = Extrinsic(transform.translation_m, transform.rotation_xyzw).matrix
        except (RoboCacheError, OverflowError) as error:
            problem = str(error)
        else:
            finite = all(math.isfinite(value) for row in matrix for value in row)
            problem = "" if finite else "it is not finite"
            if transform.parent == transform.child:
                problem = "both frames are the same"
        if problem:
            log.warning(
                "/tf_static: the transform from %s to %s is ignored: %s", transform.parent, transform.child, problem
            )
            return False
        with self._lock:
            if len(self._parents) >= MAX_STATIC_FRAMES and transform.child not in self._parents:
                if not self._full:
                    log.warning("/tf_static: more than %d frames; the others are ignored", MAX_STATIC_FRAMES)
                self._full = True
                return False
            self._parents[transform.child] = (transform.parent, matrix)
            self._edges[transform.child] = (transform.parent, pose_of(transform))
            self.version += 1
            self._found.clear()
        return True

    def edge(self, child: str) -> tuple[str, Pose] | None:
        """The parent of a frame and T_parent_child; None if /tf_static has no parent for it."""
        return self._edges.get(child)  # a tuple or None, even while another thread adds a transform

    def lookup(self, target: str, source: str) -> Matrix | None:
        """T_target_source, the pose of the frame `source` in `target`; None if they are not connected."""
        key = target.lstrip("/"), source.lstrip("/")
        with self._lock:
            if key not in self._found:
                if len(self._found) >= MAX_STATIC_FRAMES:
                    self._found.clear()
                self._found[key] = self._between(*key)
            return self._found[key]

    def _between(self, target: str, source: str) -> Matrix | None:
        above = dict(self._upwards(target))
        for frame, matrix in self._upwards(source):
            if frame in above:
                return _product(_inverse(above[frame]), matrix)
        return None

    def _upwards(self, frame: str) -> list[tuple[str, Matrix]]:
        """The frame and its ancestors, each with T_ancestor_frame; stops at a loop."""
        path = [(frame, IDENTITY_MATRIX)]
        seen = {frame}
        while frame in self._parents:
            frame, matrix = self._parents[frame]
            if frame in seen:
                break
            seen.add(frame)
            path.append((frame, _product(matrix, path[-1][1])))
        return path


def _product(a: Matrix, b: Matrix) -> Matrix:
    return tuple(
        tuple(row[0] * b[0][j] + row[1] * b[1][j] + row[2] * b[2][j] + (row[3] if j == 3 else 0.0) for j in range(4))
        for row in a
    )


def _inverse(a: Matrix) -> Matrix:
    """The inverse [R' | -R' t] of a transform [R | t]."""
    columns = tuple(zip(*a, strict=True))
    x, y, z = columns[3]
    return tuple((*column, -(column[0] * x + column[1] * y + column[2] * z)) for column in columns[:3])


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
            stamps, arrivals, _ = index.numbers
            low, high, _, valid_one, age_one = select_one(stamps, int(ticks[0]), rule, arrivals, deadline)
            lower, upper, age = np.array([[low], [high], [age_one]], np.int64)
            found = Selection(lower, upper, np.zeros(1, np.float32), np.array([valid_one], np.uint8), age)
        else:
            found = select(index.stamps_ns, ticks, rule, index.arrivals_ns, deadlines)
        if not len(index):
            return EdgeAtTicks(np.full(len(ticks), None, object), *_nothing(len(ticks)))
        stamps_ns, slots = index.stamps_ns, index.slots
        lower, upper = slots[found.lower], slots[found.upper]
        parents = self._parents[lower]
        parents[found.valid == NONE] = None
        # Samples before a change of the parent are held until the change and not blended with later ones, as in tf2.
        ends = (self._parents[upper] != parents) & (found.lower != found.upper)
        held = ends & ((found.age_ns <= rule.max_age_ns) | rule.holds)
        valid = np.where(ends, np.where(held, HELD, NONE), found.valid).astype(np.uint8)
        parents[valid == NONE] = None
        upper = np.asarray(np.where(ends, lower, upper), np.int64)
        gap = stamps_ns[found.upper] - stamps_ns[found.lower]
        share = (ticks - stamps_ns[found.lower]).astype(np.float64) / np.maximum(gap, 1).astype(np.float64)
        weight = np.where(lower != upper, share, 0.0)
        return EdgeAtTicks(parents, lower, upper, weight, valid, found.age_ns)

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


# A tree of frames over time: the pose of any frame in any other frame at given times, computed as in tf2.
#
# Each frame has a parent and a pose in that parent. The path between two frames goes through their first common
# ancestor. Every transform on the path is interpolated at the requested time. The transforms are then composed in
# float64.

MAX_MOVING_FRAMES = 1024  # moving frames; a humanoid has 100
MAX_CHAIN = 256  # transforms between a frame and its root; arms and humanoids have 30
MAX_ARRIVALS = 256  # arrivals after a tick that are checked to find when an eager tick is complete
NO_TIME_NS = np.iinfo(np.int64).max


class Poses(NamedTuple):
    """The pose of a frame in another one at T ticks."""

    values: NDArray[np.float64]  # (T, 7) px py pz qx qy qz qw; zeros if not available
    valid: NDArray[np.uint8]  # (T,) 0 none, 1 aligned, 2 at least one transform is held
    age_ns: Int64  # (T,) age of the oldest transform; 0 if all are static
    missing: dict[str, int]  # what is missing, with the number of ticks


class _Chain(NamedTuple):
    up: list[str]  # frames from the source to just below the common ancestor
    down: list[str]  # frames from the target to just below the common ancestor
    seen: list[str]  # every frame whose parent was looked up
    missing: str  # what is missing; empty if the frames are connected


@dataclass(eq=False)
class FrameTree:
    """The samples of /tf, by frame, and the transforms of /tf_static, which take precedence."""

    static: StaticTransforms
    most: int | None  # samples kept for a frame, at most; None: all until `prune`
    reach_ns: int = 0  # how far back a tick can look
    holds: bool = False  # keep the newest sample of each frame, whatever its age

    def __post_init__(self) -> None:
        self.overrun = 0  # samples dropped because a frame had too many
        self._edges: dict[str, EdgeSamples] = {}

    def __len__(self) -> int:
        return len(self._edges)

    def add(self, transform: Transform, stamp_ns: int, arrival_ns: int) -> bool:
        """Add a sample; returns False if its frame has a sample with this stamp (the first one is kept).

        Raises:
            DecodeError: the sample adds a frame, and there are already MAX_FRAMES.
        """
        edge = self._edges.get(transform.child)
        if edge is None:
            if len(self._edges) >= MAX_MOVING_FRAMES:
                raise DecodeError("frames", f"more than {MAX_MOVING_FRAMES} frames move; {transform.child} is not used")
            edge = self._edges[transform.child] = EdgeSamples(self.most)
        if stamp_ns in edge.index:
            return False
        self.overrun += edge.add(transform.parent, pose_of(transform), stamp_ns, arrival_ns)
        return True

    def newest_ns(self, frame: str | None = None) -> int:
        """The newest stamp of a frame or of all frames; a value below any stamp if there are no samples."""
        edges: Iterable[EdgeSamples | None] = self._edges.values() if frame is None else [self._edges.get(frame)]
        return max((edge.index.newest_ns for edge in edges if edge), default=-NO_TIME_NS)

    def prune(self, before_ns: int, frame: str | None = None) -> None:
        """Drop samples older than `before_ns`, of one frame or of all, and remove frames without samples."""
        for name in list(self._edges) if frame is None else [frame]:
            edge = self._edges[name]
            prune(edge.index, before_ns, holds=self.holds)
            if not len(edge.index):
                del self._edges[name]

    def clear(self) -> None:
        """Drop every sample; the static transforms are kept."""
        self._edges.clear()

    def poses(self, target: str, source: str, ticks: Int64, rule: Rule, deadlines: Int64 | None = None) -> Poses:
        """T_target_source at (T,) ticks; a tick uses samples that arrived by its deadline (None: all samples)."""
        count = len(ticks)
        found = Poses(np.zeros((count, 7)), np.zeros(count, np.uint8), np.zeros(count, np.int64), {})
        at = _Lookup(self, ticks, rule, deadlines)
        todo = np.arange(len(ticks))
        while len(todo):  # ticks with the same chain are processed together; usually there is only one chain
            chain = at.chain(target, source, int(todo[0]))
            alike = np.logical_and.reduce([at.same_parent(frame, todo) for frame in chain.seen])
            rows = todo[alike]
            todo = todo[~alike]
            if chain.missing:
                found.missing[chain.missing] = found.missing.get(chain.missing, 0) + len(rows)
            else:
                at.evaluate(chain, rows, found)
        return found

    def shown_ns(self, target: str, source: str, tick_ns: int, rule: Rule, limit_ns: int) -> int:
        """When all transforms of the chain have a sample at or after a tick; NO_TIME_NS: not within the limit."""
        ticks = np.array([tick_ns])
        arrivals = [edge.arrivals_from(tick_ns) for edge in self._edges.values()]
        candidates = np.unique(np.concatenate([*arrivals, ticks]))
        for time_ns in candidates[candidates <= limit_ns][:MAX_ARRIVALS].tolist():
            chain = _Lookup(self, ticks, rule, np.array([time_ns])).chain(target, source, 0)
            moving = [frame for frame in (*chain.up, *chain.down) if not self.static.edge(frame)]
            if not chain.missing and all(
                (self._edges[frame].arrivals_from(tick_ns) <= time_ns).any() for frame in moving
            ):
                return int(time_ns)
        return int(NO_TIME_NS)


class _Lookup:
    """The transforms of a tree at given ticks; each one is selected once."""

    def __init__(self, tree: FrameTree, ticks: Int64, rule: Rule, deadlines: Int64 | None) -> None:
        self._tree = tree
        self._ticks, self._rule, self._deadlines = ticks, rule, deadlines
        self._found: dict[str, EdgeAtTicks | tuple[str, Pose] | None] = {}

    def edge(self, frame: str) -> EdgeAtTicks | tuple[str, Pose] | None:
        """The samples that the ticks use, the static transform, or None."""
        if frame not in self._found:
            moving = self._tree._edges.get(frame)
            at = moving.at(self._ticks, self._rule, self._deadlines) if moving else None
            self._found[frame] = self._tree.static.edge(frame) or at
        return self._found[frame]

    def parent(self, frame: str, row: int) -> str | None:
        """The parent of a frame at a tick, or None."""
        edge = self.edge(frame)
        name = edge.parents[row] if isinstance(edge, EdgeAtTicks) else edge[0] if edge else None
        return None if name is None else str(name)

    def same_parent(self, frame: str, rows: Int64) -> NDArray[np.bool_]:
        """Whether the frame has the same parent at each tick as at the first one."""
        edge = self.edge(frame)
        if not isinstance(edge, EdgeAtTicks):
            return np.ones(len(rows), bool)
        parents = edge.parents[rows]
        return np.asarray(parents == parents[:1], bool)  # not [0]: NumPy cuts NULs at the end of a text

    def chain(self, target: str, source: str, row: int) -> _Chain:
        """The chain between two frames at a tick."""
        up, problem = self._walk(source, row, {target})
        if up[-1] == target:
            return _Chain(up[:-1], [], up[:-1], "")
        down, other = self._walk(target, row, set(up))
        seen = [*up, *(frame for frame in down if frame not in up)]
        if down[-1] in up:
            return _Chain(up[: up.index(down[-1])], down[:-1], seen, "")
        reasons = []
        for frame, why in ((up[-1], problem), (down[-1], other)):
            why = why or ("has no transform near that time" if self.edge(frame) else "")
            reasons += [f"{printable(frame, 40)} {why}"] if why else []
        if not reasons:
            reasons = [f"no transform from {printable(up[-1], 40)} to {printable(down[-1], 40)}"]
        return _Chain([], [], seen, f"{'; '.join(reasons)} (of {printable(source, 30)} in {printable(target, 30)})")

    def _walk(self, frame: str, row: int, ends: set[str]) -> tuple[list[str], str]:
        """A frame and its ancestors, up to one of `ends` or the root; and why the walk stopped early, if it did."""
        path = [frame]
        while path[-1] not in ends:
            parent = self.parent(path[-1], row)
            if parent is None:
                return path, ""
            if parent in path:
                return path, "is in a loop"
            if len(path) > MAX_CHAIN:
                return path, f"is more than {MAX_CHAIN} transforms away"
            path.append(parent)
        return path, ""

    def evaluate(self, chain: _Chain, rows: Int64, found: Poses) -> None:
        """Fill the rows of `found` for the ticks with this chain."""
        at = self._at(chain, rows)
        up, down = (self._composed(frames, at) for frames in (chain.up, chain.down))
        result = normalized(up if not chain.down else compose(inverse(down), up) if chain.up else inverse(down))
        found.values[rows] = np.stack(np.broadcast_arrays(*result, np.empty(len(rows)))[:7], axis=1)
        valid, age = np.ones(len(rows), np.uint8), np.zeros(len(rows), np.int64)
        first = True
        for frame in (*chain.up, *chain.down):
            edge = self.edge(frame)
            if isinstance(edge, EdgeAtTicks):
                valid = np.maximum(valid, edge.valid[rows])
                age = edge.age_ns[rows] if first else np.maximum(age, edge.age_ns[rows])
                first = False
        found.valid[rows], found.age_ns[rows] = valid, age

    def _at(self, chain: _Chain, rows: Int64) -> dict[str, Pose]:
        """The pose of each frame in its parent: floats for static frames and for a single tick, else arrays."""
        edges = {frame: self.edge(frame) for frame in (*chain.up, *chain.down)}
        poses: dict[str, Pose] = {f: edge[1] for f, edge in edges.items() if edge and not isinstance(edge, EdgeAtTicks)}
        moving = {f: edge for f, edge in edges.items() if isinstance(edge, EdgeAtTicks)}
        if moving:
            samples = [(self._tree._edges[frame], edge) for frame, edge in moving.items()]
            before = np.concatenate([frame.rows(edge.lower[rows]) for frame, edge in samples])
            after = np.concatenate([frame.rows(edge.upper[rows]) for frame, edge in samples])
            weight = np.concatenate([edge.weight[rows] for edge in moving.values()])
            between = np.concatenate([(edge.lower != edge.upper)[rows] for edge in moving.values()])
            blended = blend(before, after, weight, between).reshape(len(moving), len(rows), 7)
            for frame, values in zip(moving, blended, strict=True):
                poses[frame] = tuple(values[0].tolist()) if len(rows) == 1 else tuple(values.T)
        return poses

    def _composed(self, frames: list[str], at: dict[str, Pose]) -> Pose:
        pose = IDENTITY_POSE
        for number, frame in enumerate(frames):
            pose = compose(at[frame], pose) if number else at[frame]
        return pose


# Pose streams: one frame tree for all streams that read a topic in the same way, and each stream's pose at a tick.
#
# Poses are composed on the host, also when frames are computed on a GPU: the bits are the same, and a tick has only
# seven numbers. The backend receives the poses like samples, one for each tick.

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
    """The pose of one stream at each tick."""

    def __init__(
        self, spec: StreamSpec, fusion: FusionSpec, tree: FrameTree, slots: int, leader: TransformSamples | None
    ) -> None:
        super().__init__(spec, 1, unbounded=False)
        self.pruned_when_full = False
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
        if len(self._clocks) >= MAX_MOVING_FRAMES:
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
        found, slots = self._compose(backend, ticks, deadlines)
        rows = np.where(found.valid > 0, np.arange(len(ticks)), -1)
        share: NDArray[np.float32] = np.zeros(len(ticks), np.float32)
        selections.set(number, Selection(rows, rows, share, found.valid, found.age_ns), slots)

    def select_one(self, backend: Backend, tick_ns: int, deadline_ns: int | None, selected: TickSelections) -> None:
        """Append the selection for a single tick, as `select`."""
        deadlines = None if deadline_ns is None else np.array([deadline_ns])
        found, slots = self._compose(backend, np.array([tick_ns]), deadlines)
        valid = int(found.valid[0])
        slot = int(slots[0]) if valid else -1
        selected.streams.append((slot, slot, 0.0, valid, int(found.age_ns[0])))

    def _compose(self, backend: Backend, ticks: Int64, deadlines: Int64 | None) -> tuple[Poses, Int64]:
        """The poses of the ticks, and the slots in which the backend has them."""
        found = self.tree.poses(self._target, self._source, ticks, self.rule, deadlines)
        slots = (self._turn + np.arange(len(ticks))) % max(self._slots, len(ticks))
        self._turn = int(slots[-1]) + 1
        for slot, value, valid in zip(slots.tolist(), found.values.astype(np.float32), found.valid, strict=True):
            if valid:
                backend.put(self.spec.name, slot, value)
        for reason, count in found.missing.items():
            self._explain(reason, count, int(ticks[-1]))
        return found, slots

    def shown_ns(self, ticks: Int64) -> Int64:
        """When every transform of the chain first has a sample at or after each tick; NO_TIME_NS if not in time."""
        show, way = self.tree.shown_ns, (self._target, self._source)
        return np.array([show(*way, tick, self.rule, tick + self._cut_ns) for tick in ticks.tolist()], np.int64)

    def _explain(self, reason: str, ticks: int, newest_ns: int) -> None:
        """Log a reason for missing poses once, when it applies to as many ticks as one second has."""
        before = self.missing.pop(reason, 0)
        self.missing[reason] = before + ticks
        if len(self.missing) > MAX_REASONS:
            del self.missing[next(iter(self.missing))]
        if before < self._patience <= before + ticks:
            log.warning("%s: no pose up to the tick of %.2f s: %s", self.spec.name, newest_ns / 1e9, reason)
