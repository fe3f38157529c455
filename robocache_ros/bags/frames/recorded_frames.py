"""Records the frame tree of a recording: parents, rates, and which frames move."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.clocks.stamp_clock import Clock, clock_of
from robocache_ros.bags.clocks.timeline import Timeline
from robocache_ros.bags.source import RawMessage, Topic
from robocache_ros.decode.payloads import DecodeError
from robocache_ros.decode.transforms import Transform, read_transforms
from robocache_ros.spec import TF_STATIC, TF_TYPE

MAX_FRAMES = 1024
MAX_TRANSFORMS = 200_000  # maximum number to process: 100 s of a robot with 40 frames at 50 Hz
ON_TIMELINE = Clock("timeline")


@dataclass(frozen=True)
class FrameInfo:
    """A frame and its transforms from its parent.

    Attributes:
        parent: parent in the last transform.
        topic: topic of the transforms.
        is_static: whether the topic is /tf_static.
        moves: whether the pose changes.
        rate_hz, period_ms: mean rate and median interval; 0 if `is_static`, or for a single transform.
        parents: number of different consecutive parents; 1 if the parent never changes.
        clock: the clock of its stamps.
        delays_ms: arrival - stamp of its transforms on the timeline; None if not known.
    """

    parent: str
    topic: str
    is_static: bool
    moves: bool
    count: int
    rate_hz: float
    period_ms: float
    parents: int
    clock: Clock = field(default=ON_TIMELINE)
    delays_ms: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)


class _Frame:
    def __init__(self, topic: str, first: Transform) -> None:
        self.topic, self.first, self.last = topic, first, first
        self.moves, self.parents = False, 1
        self.times, self.stamps, self.logs = array("q"), array("q"), array("q")

    def add(self, transform: Transform, log_ns: int) -> None:
        self.moves = self.moves or transform[2:4] != self.first[2:4]
        self.parents += transform.parent != self.last.parent
        self.last = transform
        self.times.append(transform.stamp_ns or log_ns)
        self.stamps.append(transform.stamp_ns)
        self.logs.append(log_ns)

    def info(self, timeline: Timeline) -> FrameInfo:
        times = np.unique(np.array(self.times, np.int64))
        static = self.topic == TF_STATIC
        timed = len(times) > 1 and not static
        stamps, arrivals = np.array(self.stamps, np.int64), timeline.arrivals(np.array(self.logs, np.int64))
        clock = clock_of(arrivals, stamps)
        return FrameInfo(
            parent=self.last.parent,
            topic=self.topic,
            is_static=static,
            moves=self.moves and not static,
            count=len(self.times),
            rate_hz=(len(times) - 1) * 1e9 / float(times[-1] - times[0]) if timed else 0.0,
            period_ms=float(np.median(np.diff(times))) / 1e6 if timed else 0.0,
            parents=self.parents,
            clock=ON_TIMELINE if static else clock,
            delays_ms=(arrivals - stamps) / 1e6 if timed and clock.kind == "timeline" else None,
        )


class FrameRecorder:
    """Processes the messages of all topics with transforms.

    Args:
        topics: the topics of the recording.

    Attributes:
        complete: whether all transforms were processed, not only the first MAX_TRANSFORMS.
    """

    def __init__(self, topics: Iterable[Topic]) -> None:
        self.topics = frozenset(topic.name for topic in topics if topic.type == TF_TYPE)
        self.complete = True
        self._frames: dict[str, _Frame] = {}
        self._seen = 0

    def add(self, message: RawMessage) -> None:
        """Process a message of one of `topics`."""
        if self._seen >= MAX_TRANSFORMS:
            self.complete = False
            return
        try:
            transforms = read_transforms(message.data)
        except DecodeError:
            return
        self._seen += len(transforms)
        for transform in transforms:
            frame = self._frames.get(transform.child)
            if frame is None or (message.topic == TF_STATIC and frame.topic != TF_STATIC):  # /tf_static has priority
                if frame is None and len(self._frames) >= MAX_FRAMES:
                    self.complete = False
                    continue
                frame = self._frames[transform.child] = _Frame(message.topic, transform)
            if frame.topic == message.topic:
                frame.add(transform, message.log_ns)

    def frames(self, timeline: Timeline) -> dict[str, FrameInfo]:
        """Return the frames that have a parent, by name."""
        return {name: frame.info(timeline) for name, frame in self._frames.items()}


def upwards(frames: Mapping[str, FrameInfo], frame: str) -> list[str]:
    """Return a frame and its ancestors, up to the root or until a loop closes."""
    path = [frame]
    while path[-1] in frames and frames[path[-1]].parent not in path:
        path.append(frames[path[-1]].parent)
    return path


def tree_of(frames: Mapping[str, FrameInfo]) -> Iterator[tuple[int, str]]:
    """Yield each frame after its parent, with its depth. Roots are first; frames in a loop are last, at depth 0."""
    below: dict[str, list[str]] = {}
    for name in sorted(frames, reverse=True):
        below.setdefault(frames[name].parent, []).append(name)
    left = {*frames, *below}
    waiting = [(0, name) for name in sorted(set(below) - set(frames), reverse=True)]
    while left:
        depth, name = waiting.pop() if waiting else (0, min(left))
        if name in left:
            left.remove(name)
            yield depth, name
            waiting += [(depth + 1, child) for child in below.get(name, [])]
