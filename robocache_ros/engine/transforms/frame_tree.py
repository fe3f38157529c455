"""A tree of frames over time: the pose of any frame in any other frame at given times, computed as in tf2.

Each frame has a parent and a pose in that parent. The path between two frames goes through their first common
ancestor. Every transform on the path is interpolated at the requested time. The transforms are then composed in
float64.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.decode.payloads import DecodeError
from robocache_ros.decode.transforms import Transform
from robocache_ros.engine.sample_index import Int64
from robocache_ros.engine.stream_samples import prune
from robocache_ros.engine.transforms.edge_samples import EdgeAtTicks, EdgeSamples, blend
from robocache_ros.engine.transforms.pose import IDENTITY, Pose, compose, inverse, normalized, pose_of
from robocache_ros.engine.transforms.static_transforms import StaticTransforms
from robocache_ros.errors import printable
from robocache_ros.ops.resample.selection import Rule

MAX_FRAMES = 1024  # moving frames; a humanoid has 100
MAX_CHAIN = 256  # transforms between a frame and its root; arms and humanoids have 30
MAX_ARRIVALS = 256  # arrivals after a tick that are checked to find when an eager tick is complete
NEVER = np.iinfo(np.int64).max


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


class FrameTree:
    """The samples of /tf, by frame, and the transforms of /tf_static, which take precedence.

    Args:
        static: the static transforms.
        most: maximum number of samples kept for a frame; None: keep all samples until `prune`.
        reach_ns: how far back a tick can look.
        holds: keep the newest sample of each frame, whatever its age.
    """

    def __init__(self, static: StaticTransforms, most: int | None, reach_ns: int = 0, *, holds: bool = False) -> None:
        self.static = static
        self.reach_ns = reach_ns
        self._holds = holds
        self.overrun = 0  # samples dropped because a frame had too many
        self._most = most
        self._edges: dict[str, EdgeSamples] = {}

    def __contains__(self, frame: str) -> bool:
        return frame in self._edges

    def __len__(self) -> int:
        return len(self._edges)

    def add(self, transform: Transform, stamp_ns: int, arrival_ns: int) -> bool:
        """Add a sample; returns False if its frame has a sample with this stamp (the first one is kept).

        Raises:
            DecodeError: the sample adds a frame, and there are already MAX_FRAMES.
        """
        edge = self._edges.get(transform.child)
        if edge is None:
            if len(self._edges) >= MAX_FRAMES:
                raise DecodeError("frames", f"more than {MAX_FRAMES} frames move; {transform.child} is not used")
            edge = self._edges[transform.child] = EdgeSamples(self._most)
        if stamp_ns in edge.index:
            return False
        self.overrun += edge.add(transform.parent, pose_of(transform), stamp_ns, arrival_ns)
        return True

    def newest_ns(self, frame: str | None = None) -> int:
        """The newest stamp of a frame or of all frames; a value below any stamp if there are no samples."""
        edges: Iterable[EdgeSamples | None] = self._edges.values() if frame is None else [self._edges.get(frame)]
        return max((edge.index.newest_ns for edge in edges if edge), default=-NEVER)

    def prune(self, before_ns: int, frame: str | None = None) -> None:
        """Drop samples older than `before_ns`, of one frame or of all, and remove frames without samples."""
        for name in list(self._edges) if frame is None else [frame]:
            edge = self._edges[name]
            prune(edge.index, before_ns, holds=self._holds)
            if not len(edge.index):
                del self._edges[name]

    def clear(self) -> None:
        """Drop every sample; the static transforms are kept."""
        self._edges.clear()

    def poses(self, target: str, source: str, ticks: Int64, rule: Rule, deadlines: Int64 | None = None) -> Poses:
        """T_target_source at (T,) ticks; a tick uses samples that arrived by its deadline (None: all samples)."""
        found = Poses(np.zeros((len(ticks), 7)), *_zeros(len(ticks)), {})
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
        """When every transform of the chain first has a sample at or after a tick; NEVER if that is after the limit."""
        ticks = np.array([tick_ns])
        arrivals = [edge.arrivals_from(tick_ns) for edge in self._edges.values()]
        candidates = np.unique(np.concatenate([*arrivals, ticks]))
        for time_ns in candidates[candidates <= limit_ns][:MAX_ARRIVALS].tolist():
            chain = _Lookup(self, ticks, rule, np.array([time_ns])).chain(target, source, 0)
            moving = [frame for frame in (*chain.up, *chain.down) if not self.static.edge(frame)]
            if not chain.missing and all(self._edges[f].has_at_or_after(tick_ns, time_ns) for f in moving):
                return int(time_ns)
        return int(NEVER)


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
        return np.asarray(parents == parents[0], bool)

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
        pose = IDENTITY
        for number, frame in enumerate(frames):
            pose = compose(at[frame], pose) if number else at[frame]
        return pose


def _zeros(count: int) -> tuple[NDArray[np.uint8], Int64]:
    return np.zeros(count, np.uint8), np.zeros(count, np.int64)
