"""What a recording contains: topics, types, rates, clocks and frames."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.clocks import Clock, Timeline, clock_of, timeline_of
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import RawMessage, Topic
from robocache_ros.bags.stats import LOST_PERIODS, Recorder, TopicStats, clock_notes
from robocache_ros.decode import decode_compressed
from robocache_ros.decode.cdr import read_message
from robocache_ros.decode.definitions import message_type
from robocache_ros.decode.payloads import DecodeError, ImagePayload
from robocache_ros.decode.transforms import Transform, read_transforms
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec import CLOUD_TYPE, IMAGE_TYPES, JOINT_TYPE, TF_STATIC, TF_TYPE
from robocache_ros.spec.stream import POINT_DATATYPES
from robocache_ros.storage.paths import AnyPath, is_url

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


_FLOAT32 = POINT_DATATYPES.index("f4") + 1
SAMPLED = (
    "the index and a few chunks were read: losses and gaps are not known, rates are means, and some delays may be "
    "larger; download the recording to measure them"
)
NOT_CHECKED = "most messages were not read, and their checksums not verified"
SAMPLES = 8  # sample messages per topic, evenly spaced
LISTED_ITEMS = 16  # elements of a list of messages in which numbers that are not finite are looked for


@dataclass(frozen=True)
class TopicInfo:
    """A topic: its statistics, a few sample messages, and a one-line description of their content."""

    stats: TopicStats
    messages: tuple[Any, ...] = field(repr=False)  # as returned by `read_message`; empty if the type is unknown
    content: str
    not_finite: dict[str, int] = field(default_factory=dict)  # fields with NaN or infinity -> number of `messages`


@dataclass(frozen=True)
class BagInfo:
    """Description of a recording."""

    path: AnyPath
    size: int  # bytes on disk
    start_ns: int
    stop_ns: int
    notes: tuple[str, ...]
    integrity: str  # whether checksums of the messages were verified
    topics: dict[str, TopicInfo]
    definitions: dict[str, str] = field(default_factory=dict, repr=False)  # by message type, if recorded
    frames: dict[str, FrameInfo] = field(default_factory=dict, repr=False)  # frames with a parent, by name
    is_sampled: bool = False  # only a few chunks were read: losses, gaps and duplicates are not known

    @property
    def duration_s(self) -> float:
        """Time from the first to the last message in seconds."""
        return (self.stop_ns - self.start_ns) / 1e9


def describe(path: str | AnyPath, msg_path: Sequence[str | Path] = ()) -> BagInfo:
    """Read a recording in one pass and describe it. Of large mcap files at URLs, read the index and a few chunks.

    Args:
        path: the recording.
        msg_path: folders with definitions of its messages, as for `Bag`.
    """
    with ExitStack() as stack:
        bag = stack.enter_context(Bag(path, sampled=True, msg_path=msg_path))
        if is_url(path) and not bag.sampled_spans and any(file.suffix == ".mcap" for file in bag.files):
            bag = stack.enter_context(Bag(path, whole=True, msg_path=msg_path))
        # Odd, so that the samples include both publishers if two publishers alternate.
        strides = {name: int(topic.count * bag.share) // SAMPLES | 1 for name, topic in bag.topics.items()}
        recorder = Recorder(bag.topics.values(), bag.definitions, strides)
        frames = FrameRecorder(bag.topics.values())
        for message in recorder.watch(bag.messages(views=True)):
            if message.topic in frames.topics:
                frames.add(message)
        topics = {}
        timeline = timeline_of(recorder.times())
        for name, stats in recorder.stats(timeline, empty=True).items():
            if bag.sampled_spans:
                stats = _of_samples(stats, bag.sampled_spans.get(name, (bag.start_ns, bag.stop_ns)))
            messages = tuple(_messages(bag.definitions, bag.topics[name].type, recorder.samples[name]))
            fields = Counter(path for message in messages for path in set(_not_finite(message)))
            topics[name] = TopicInfo(stats, messages, _content(stats.type, messages), dict(sorted(fields.items())))
        size = sum(file.stat().st_size for file in bag.files)
        clocks = clock_notes(topic.stats for topic in topics.values())
        notes = (*bag.notes, *filter(None, [timeline.note]), *clocks, *_not_finite_notes(topics))
        return BagInfo(
            bag.path,
            size,
            bag.start_ns,
            bag.stop_ns,
            (*notes, SAMPLED) if bag.sampled_spans else notes,
            NOT_CHECKED if bag.sampled_spans else bag.integrity,
            topics,
            bag.definitions,
            frames.frames(timeline),
            bool(bag.sampled_spans),
        )


def image_size(message: Any) -> tuple[int, int] | None:
    """Return the height and width of an Image or CompressedImage message; None if unknown."""
    if hasattr(message, "height"):
        return int(message.height), int(message.width)
    data = np.asarray(message.data)
    is_png = bytes(data[:4]) == b"\x89PNG"
    compressed = "compressedDepth" if "compressedDepth" in message.format else "png" if is_png else "jpeg"
    try:
        raw = decode_compressed(ImagePayload(data, compressed))
    except RoboCacheError:
        return None
    return raw.height, raw.width


def cloud_points(message: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the (N, 3) float32 finite x, y, z of a PointCloud2 message; (0, 3) if rows are padded or invalid."""
    offsets = {f.name: f.offset for f in message.fields if f.datatype == _FLOAT32}
    data = np.asarray(message.data)
    count = message.width * message.height
    unpadded = message.row_step == message.width * message.point_step and len(data) == count * message.point_step
    if not {"x", "y", "z"} <= set(offsets) or not unpadded or not count:
        return np.empty((0, 3), np.float32)
    rows = data.reshape(count, message.point_step)
    order = ">" if message.is_bigendian else "<"
    columns = [rows[:, o : o + 4].copy().view(f"{order}f4")[:, 0] for o in (offsets[axis] for axis in "xyz")]
    points = np.stack(columns, axis=1).astype(np.float32)
    finite: np.ndarray[Any, np.dtype[np.float32]] = points[np.isfinite(points).all(axis=1)]
    return finite


def _of_samples(stats: TopicStats, span_ns: tuple[int, int]) -> TopicStats:
    """Return the statistics of a topic of which a few parts were read, with what is known of the whole.

    Args:
        stats: of these parts, with the number of all messages.
        span_ns: first and last time of the topic.
    """
    first_ns, last_ns = span_ns
    mean_ms = (last_ns - first_ns) / max(stats.count - 1, 1) / 1e6
    if not mean_ms:
        return replace(stats, start_ns=first_ns, stop_ns=last_ns)
    period_ms = min(stats.period_ms, mean_ms) if stats.period_ms else mean_ms  # of slow topics: that between the parts
    near = stats.intervals_ms[stats.intervals_ms <= LOST_PERIODS * period_ms]
    near = near if len(near) else np.array([period_ms])
    low, high = np.quantile(near, [0.05, 0.95])
    return replace(
        stats,
        start_ns=first_ns,
        stop_ns=last_ns,
        rate_hz=1000 / mean_ms,
        period_ms=period_ms,
        jitter_ms=float(high - low) / 2,
        missing=max(0, round((last_ns - first_ns) / 1e6 / float(near.mean())) - len(near)),  # lost ones and unread ones
        gaps=(),
        intervals_ms=near,
    )


def _messages(definitions: Mapping[str, str], name: str, kept: list[bytes]) -> Iterator[Any]:
    try:
        message = message_type(name, definitions)
    except RoboCacheError:  # unknown type or invalid definition: show the topic without content
        return
    for data in kept:
        try:
            yield read_message(message, data)
        except RoboCacheError:  # skip a damaged message
            continue


def _content(kind: str, messages: tuple[Any, ...]) -> str:
    if not messages:
        return ""
    first = messages[0]
    if kind == CLOUD_TYPE:
        shape = f"{first.width}x{first.height}" if first.height > 1 else f"{first.width}"
        return f"{shape} points: {' '.join(f.name for f in first.fields)}"
    if kind in IMAGE_TYPES:
        size = image_size(first)
        kind = getattr(first, "encoding", "") or first.format.split(";")[-1].strip()
        return f"{size[1]}x{size[0]} {kind}" if size else kind
    if kind == JOINT_TYPE:
        values = [name for name in ("position", "velocity", "effort") if len(getattr(first, name))]
        return f"{len(first.name)} joints: {' '.join(values)}"
    if kind.startswith("std_msgs/msg/") and kind.endswith("MultiArray"):
        return f"{len(first.data)} values"
    names = [name for name in vars(first) if name != "header"]
    return " ".join(names[:4])


def _not_finite(message: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of the fields of a message that have a NaN or infinite number."""
    for name, value in vars(message).items():
        inner = f"{path}.{name}" if path else name
        if isinstance(value, (float, np.ndarray)):
            values = np.asarray(value)
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                yield inner
        else:
            for index, item in enumerate(value[:LISTED_ITEMS]) if isinstance(value, list) else [("", value)]:
                if hasattr(item, "__dict__"):
                    yield from _not_finite(item, f"{inner}[{index}]" if isinstance(value, list) else inner)


def _not_finite_notes(topics: Mapping[str, TopicInfo]) -> Iterator[str]:
    """Yield a note for each topic that has NaN or infinite numbers in the messages that were looked at."""
    for name, topic in topics.items():
        if topic.not_finite:
            paths = list(topic.not_finite)
            more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
            most = max(topic.not_finite.values())
            sampled = " that were looked at" if len(topic.messages) < topic.stats.count else ""
            yield (
                f"{printable(name, 60)}: NaN or infinite in {printable(', '.join(paths[:3]), 90)}{more} of {most} of "
                f"{len(topic.messages)} messages{sampled}; an export drops such messages of a stream of these fields"
            )
