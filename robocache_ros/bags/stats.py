"""Statistics of the topics of a recording: rate, jitter, gaps, drops, duplicates, order and transport delay."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.clocks.choose import CLOCK_TYPE
from robocache_ros.bags.clocks.stamp_clock import LIMIT_NS, Clock, Times, clock_of
from robocache_ros.bags.clocks.timeline import Timeline
from robocache_ros.bags.source import RawMessage, Topic
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec import TF_STATIC, TF_TYPE
from robocache_ros.units import NS_PER_S

Int64 = NDArray[np.int64]

GAP_PERIODS = 3.0  # a gap is at least three periods; shorter intervals are jitter, or one or two lost samples
LOST_PERIODS = 1.5  # minimum interval that counts as a lost sample
_STAMPED_HEAD = 12  # bytes of a message up to the end of the header stamp: encapsulation, seconds, nanoseconds


@dataclass(frozen=True)
class Gap:
    """An interval without messages on a topic."""

    start_ns: int  # time of the last sample before the gap
    length_ns: int


@dataclass(frozen=True)
class TopicStats:
    """Statistics of one topic of a recording, on its timeline.

    Times are header stamps, converted if the topic has its own clock. If stamps are not set, times are arrivals.

    `missing` is an estimate: for each interval of 1.5 periods or more, the number of lost samples follows from the
    median interval. The estimate requires a periodic topic. If shorter intervals cover less than half of the time,
    messages come in bursts or on events, and no loss is estimated. `gaps` contains long intervals in both cases.
    """

    topic: str
    type: str
    count: int
    size: int  # bytes
    clock: Clock  # clock of the header stamps
    start_ns: int
    stop_ns: int
    rate_hz: float  # distinct samples / time between the first and the last; 0 for one sample
    period_ms: float  # median interval
    jitter_ms: float  # half the range of the middle 90 % of the intervals
    missing: int  # estimated number of lost samples; 0 for a topic with bursts
    gaps: tuple[Gap, ...]
    duplicates: int  # messages whose header stamp equals that of an earlier message
    out_of_order: int  # messages logged after a message with a newer header stamp
    intervals_ms: NDArray[np.float64] = field(repr=False)
    delays_ms: NDArray[np.float64] = field(repr=False)  # arrival - stamp; empty if `stamped` is False

    @property
    def stamped(self) -> bool:
        """Whether the header stamps of the messages are usable."""
        return self.clock.is_usable

    def delay_ms(self, share: float) -> float:
        """Return the delay quantile at `share`; 0 if `stamped` is False."""
        return float(np.quantile(self.delays_ms, share)) if len(self.delays_ms) else 0.0

    @property
    def longest_gap_ms(self) -> float:
        """The longest gap."""
        return max((gap.length_ns / 1e6 for gap in self.gaps), default=0.0)


class Recorder:
    """Records the times of messages that pass through it.

    Args:
        topics: the topics of the recording.
        definitions: message definitions stored in the recording.
    """

    def __init__(self, topics: Iterable[Topic], definitions: Mapping[str, str]) -> None:
        self._topics = {t.name: t for t in topics}
        # Stamps of static transforms are ignored, because static transforms are valid for all times.
        self._stamped = {n: n != TF_STATIC and is_stamped(t.type, definitions) for n, t in self._topics.items()}
        # Arrays, not lists of objects: a recording has millions of messages.
        self._logs = {name: array("q") for name in self._topics}
        self._heads = {name: bytearray() for name in self._topics}  # _STAMPED_HEAD bytes of each message
        self._short: dict[str, list[int]] = {name: [] for name in self._topics}  # messages shorter than _STAMPED_HEAD
        self._sizes = dict.fromkeys(self._topics, 0)
        # A TFMessage starts with the number of transforms. The stamp of the first transform is used.
        self._starts = {name: 8 if t.type == TF_TYPE else 4 for name, t in self._topics.items()}

    def watch(self, messages: Iterable[RawMessage]) -> Iterator[RawMessage]:
        """Yield the messages unchanged and record their times."""
        logs, heads, sizes, starts = self._logs, self._heads, self._sizes, self._starts
        for message in messages:
            topic, log_ns, data = message
            start = starts[topic]
            head = bytes(data[:4]) + bytes(data[start : start + 8])
            if len(head) < _STAMPED_HEAD:
                self._short[topic].append(len(logs[topic]))
                head = head.ljust(_STAMPED_HEAD, b"\xff")
            logs[topic].append(log_ns)
            heads[topic] += head
            sizes[topic] += len(data)
            yield message

    def times(self) -> dict[str, Times]:
        """Return log times and stamps of the stamped topics, and the times of /clock."""
        names = [name for name, stamped in self._stamped.items() if stamped and self._logs[name]]
        return {name: Times(np.array(self._logs[name], np.int64), self._stamps(name)) for name in names}

    def stats(self, timeline: Timeline | None = None) -> dict[str, TopicStats]:
        """Compute statistics by topic, on a timeline (None: the log times). Topics without messages are omitted."""
        by = timeline or Timeline()
        return {name: self._of(topic, by) for name, topic in self._topics.items() if self._logs[name]}

    def _stamps(self, name: str) -> Int64:
        return _stamps(self._heads[name], self._short[name])

    def _of(self, topic: Topic, timeline: Timeline) -> TopicStats:
        arrivals = timeline.arrivals(np.array(self._logs[topic.name], np.int64))
        size = self._sizes[topic.name]
        stamps = self._stamps(topic.name) if self._stamped[topic.name] else None
        clock = Clock() if stamps is None else clock_of(arrivals, stamps)
        if stamps is None or not clock.is_usable:
            return _describe(topic, arrivals, np.sort(arrivals), size, 0, 0, clock, None)
        known = (stamps > 0) | ((stamps == 0) & (arrivals <= LIMIT_NS))  # messages without a time are only counted
        stamps, arrivals = stamps[known], arrivals[known]
        if clock.kind == "device":
            from robocache_ros.engine.device_clock import DeviceClock  # imports torch, which few recordings need

            device = DeviceClock()
            pairs = zip(stamps.tolist(), arrivals.tolist(), strict=True)
            stamps = np.array([device.translate(stamp, arrival) for stamp, arrival in pairs], np.int64)
        distinct = np.unique(stamps)
        behind = stamps < np.maximum.accumulate(stamps)
        first_seen = np.zeros(len(stamps), bool)
        first_seen[np.unique(stamps, return_index=True)[1]] = True
        return _describe(
            topic,
            arrivals,
            distinct,
            size,
            len(stamps) - len(distinct),
            int((behind & first_seen).sum()),
            clock,
            (arrivals - stamps) / 1e6,
        )


def clock_notes(topics: Iterable[TopicStats]) -> list[str]:
    """Return one note with topics for each type of header stamps that are not on the timeline."""
    found: dict[str, list[str]] = {}
    for stats in topics:
        if stats.clock.text:
            found.setdefault(stats.clock.text, []).append(printable(stats.topic, 60))
    return [
        f"{', '.join(names[:2])}{f' and {len(names) - 2} more' if len(names) > 2 else ''}: {text}; "
        f"{'stamp: device translates them' if 'clock' in text else 'their arrival times are used'}"
        for text, names in found.items()
    ]


def _describe(
    topic: Topic,
    logs: Int64,
    times: Int64,
    size: int,
    duplicates: int,
    out_of_order: int,
    clock: Clock,
    delays_ms: NDArray[np.float64] | None,
) -> TopicStats:
    intervals = np.diff(times)
    period = float(np.median(intervals)) if len(intervals) else 0.0
    span = int(times[-1] - times[0]) if len(times) else 0
    silent = np.flatnonzero(intervals > GAP_PERIODS * period) if period else np.empty(0, np.int64)
    lost = intervals[intervals > LOST_PERIODS * period] if period else intervals[:0]
    if 2 * (span - lost.sum()) < span:  # bursts or events have no period, so no loss is estimated
        lost = lost[:0]
    low, high = np.quantile(intervals, [0.05, 0.95]) if len(intervals) else (0.0, 0.0)
    return TopicStats(
        topic=topic.name,
        type=topic.type,
        count=max(len(logs), topic.count),
        size=size,
        clock=clock,
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


def _stamps(heads: bytearray, short: list[int]) -> Int64:
    """Return (S,) int64 header stamps in ns, -1 if invalid or if the message is too short."""
    rows = np.frombuffer(bytes(heads), np.uint8).reshape(-1, _STAMPED_HEAD)
    parts = np.ascontiguousarray(rows[:, 4:])
    little = rows[:, 1] % 2 == 1  # second byte of the encapsulation: odd means little endian
    stamps: Int64 = np.where(little, _join(parts, "<"), _join(parts, ">"))
    stamps[short] = -1
    return stamps


def _join(parts: NDArray[np.uint8], order: str) -> Int64:
    seconds = parts[:, :4].copy().view(f"{order}i4")[:, 0].astype(np.int64)
    nanoseconds = parts[:, 4:].copy().view(f"{order}u4")[:, 0].astype(np.int64)
    return np.where(nanoseconds < NS_PER_S, seconds * NS_PER_S + nanoseconds, -1)


def is_stamped(name: str, definitions: Mapping[str, str]) -> bool:
    """Whether a type starts with a std_msgs/Header, or is Clock or TFMessage; False if the type is unknown."""
    if name in (CLOCK_TYPE, TF_TYPE):
        return True
    from robocache_ros.decode.cdr.definitions import HEADER, message_type
    from robocache_ros.decode.cdr.types import Struct

    try:
        fields = message_type(name, definitions).fields
    except RoboCacheError:
        return False
    return isinstance(fields[0][1], Struct) and fields[0][1].name == HEADER
