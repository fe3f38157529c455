"""What a recording says of its topics: rate, jitter, gaps, drops, duplicates, order and transport delay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import RawMessage, Topic
from robocache_ros.errors import RoboCacheError

if TYPE_CHECKING:
    from robocache_ros.spec import FusionSpec

Int64 = NDArray[np.int64]

NS_PER_S = 1_000_000_000
GAP_PERIODS = 3.0  # a silence is a gap from three periods on; below it is jitter, or a lost sample or two
LOST_PERIODS = 1.5  # an interval this long has lost its neighbour
_STAMPED_HEAD = 12  # bytes of a message until after its header's stamp: encapsulation, seconds, nanoseconds


@dataclass(frozen=True)
class Gap:
    """A silence of a topic."""

    start_ns: int  # the last sample before it
    length_ns: int


@dataclass(frozen=True)
class TopicStats:
    """One topic over a recording. Times are header stamps where the type has a header, else receive times."""

    topic: str
    type: str
    count: int
    size: int  # bytes
    stamped: bool  # whether its messages have a header
    start_ns: int
    stop_ns: int
    rate_hz: float  # distinct samples over the time between the first and the last; 0 of one sample
    period_ms: float  # median interval
    jitter_ms: float  # half the spread of the middle 90 % of the intervals
    missing: int  # samples that intervals of one and a half periods and more leave room for
    gaps: tuple[Gap, ...]
    duplicates: int  # messages whose header stamp was there already
    out_of_order: int  # messages logged behind a newer header stamp
    intervals_ms: NDArray[np.float64] = field(repr=False)
    delays_ms: NDArray[np.float64] = field(repr=False)  # log time - header stamp; empty without a header

    def delay_ms(self, share: float) -> float:
        """The delay that a share of the messages stays under; 0 without a header."""
        return float(np.quantile(self.delays_ms, share)) if len(self.delays_ms) else 0.0

    @property
    def longest_gap_ms(self) -> float:
        """The longest silence."""
        return max((gap.length_ns / 1e6 for gap in self.gaps), default=0.0)


class Recorder:
    """Notes the times of messages as they pass by.

    Args:
        topics: those of the recording.
        definitions: message definitions, where the recording holds them.
    """

    def __init__(self, topics: Iterable[Topic], definitions: Mapping[str, str]) -> None:
        self._topics = {t.name: t for t in topics}
        self._stamped = {name: _has_header(t.type, definitions) for name, t in self._topics.items()}
        self._logs: dict[str, list[int]] = {name: [] for name in self._topics}
        self._heads: dict[str, list[bytes]] = {name: [] for name in self._topics}
        self._sizes = dict.fromkeys(self._topics, 0)

    def watch(self, messages: Iterable[RawMessage]) -> Iterator[RawMessage]:
        """Pass messages on, noted."""
        logs, heads, sizes = self._logs, self._heads, self._sizes
        for message in messages:
            topic, log_ns, data = message
            logs[topic].append(log_ns)
            heads[topic].append(data[:_STAMPED_HEAD])
            sizes[topic] += len(data)
            yield message

    def stats(self) -> dict[str, TopicStats]:
        """What was seen, by topic; topics without a message are left out."""
        return {name: self._of(topic) for name, topic in self._topics.items() if self._logs[name]}

    def _of(self, topic: Topic) -> TopicStats:
        logs = np.array(self._logs[topic.name], np.int64)
        stamps = _stamps(self._heads[topic.name]) if self._stamped[topic.name] else None
        size = self._sizes[topic.name]
        if stamps is None:
            return _describe(topic, logs, np.sort(logs), size, 0, 0, None)
        known = stamps >= 0  # a message too short to have a stamp counts, and has no time
        stamps, logs = stamps[known], logs[known]
        if not len(stamps):
            return _describe(topic, logs, logs, size, 0, 0, None)
        distinct = np.unique(stamps)
        behind = stamps < np.maximum.accumulate(stamps)
        first_seen = np.zeros(len(stamps), bool)
        first_seen[np.unique(stamps, return_index=True)[1]] = True
        return _describe(
            topic,
            logs,
            distinct,
            size,
            len(stamps) - len(distinct),
            int((behind & first_seen).sum()),
            (logs - stamps) / 1e6,
        )


def measure(bag: Bag) -> dict[str, TopicStats]:
    """Read a whole recording and describe each of its topics."""
    recorder = Recorder(bag.topics.values(), bag.definitions)
    for _ in recorder.watch(bag.messages()):
        pass
    return recorder.stats()


def check_rates(spec: FusionSpec, stats: Mapping[str, TopicStats], tolerance: float = 0.2) -> list[str]:
    """Streams whose declared rate the recording does not keep, in words."""
    said = []
    for stream in spec.streams:
        found = stats.get(stream.topic)
        if stream.rate_hz and found and abs(found.rate_hz - stream.rate_hz) > tolerance * stream.rate_hz:
            said.append(f"{stream.name}: {stream.topic} runs at {found.rate_hz:.1f} Hz, declared {stream.rate_hz:g} Hz")
    return said


def _describe(
    topic: Topic,
    logs: Int64,
    times: Int64,
    size: int,
    duplicates: int,
    out_of_order: int,
    delays_ms: NDArray[np.float64] | None,
) -> TopicStats:
    intervals = np.diff(times)
    period = float(np.median(intervals)) if len(intervals) else 0.0
    span = int(times[-1] - times[0]) if len(times) else 0
    silent = np.flatnonzero(intervals > GAP_PERIODS * period) if period else np.empty(0, np.int64)
    lost = intervals[intervals > LOST_PERIODS * period] if period else intervals[:0]
    low, high = np.quantile(intervals, [0.05, 0.95]) if len(intervals) else (0.0, 0.0)
    return TopicStats(
        topic=topic.name,
        type=topic.type,
        count=max(len(logs), topic.count),
        size=size,
        stamped=delays_ms is not None,
        start_ns=int(times[0]) if len(times) else 0,
        stop_ns=int(times[-1]) if len(times) else 0,
        rate_hz=(len(times) - 1) * NS_PER_S / span if span else 0.0,
        period_ms=period / 1e6,
        jitter_ms=float(high - low) / 2e6,
        missing=int(np.sum(np.rint(lost / period) - 1)) if len(lost) else 0,
        gaps=tuple(Gap(int(times[i]), int(intervals[i])) for i in silent),
        duplicates=duplicates,
        out_of_order=out_of_order,
        intervals_ms=intervals / 1e6,
        delays_ms=delays_ms if delays_ms is not None else np.empty(0),
    )


def _stamps(heads: list[bytes]) -> Int64:
    """(S,) int64 header stamps in ns, -1 where the message is too short to have one."""
    whole = np.frombuffer(b"".join(head.ljust(_STAMPED_HEAD, b"\xff") for head in heads), np.uint8)
    rows = whole.reshape(-1, _STAMPED_HEAD)
    parts = np.ascontiguousarray(rows[:, 4:])
    little = rows[:, 1] % 2 == 1  # the encapsulation's second byte: odd is little endian
    stamps: Int64 = np.where(little, _join(parts, "<"), _join(parts, ">"))
    short = np.array([len(head) < _STAMPED_HEAD for head in heads])
    stamps[short] = -1
    return stamps


def _join(parts: NDArray[np.uint8], order: str) -> Int64:
    seconds = parts[:, :4].copy().view(f"{order}i4")[:, 0].astype(np.int64)
    nanoseconds = parts[:, 4:].copy().view(f"{order}u4")[:, 0].astype(np.int64)
    return np.asarray(seconds * NS_PER_S + nanoseconds)


def _has_header(name: str, definitions: Mapping[str, str]) -> bool:
    """Whether a type starts with a std_msgs/Header; without any definition of it: no."""
    from robocache_ros.decode.definitions import HEADER, message_type
    from robocache_ros.decode.types import Struct

    try:
        fields = message_type(name, definitions).fields
    except RoboCacheError:
        return False
    return isinstance(fields[0][1], Struct) and fields[0][1].name == HEADER
