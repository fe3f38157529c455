"""Statistics of the topics of a recording: rate, jitter, gaps, drops, duplicates, order and transport delay."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.clocks import (
    CLOCK_TYPE,
    LIMIT_NS,
    MIN_SHARE,
    PROBE,
    Clock,
    Timeline,
    Times,
    clock_of,
    considered_topics,
    is_by_log,
    timeline_of,
)
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import RawMessage, Topic
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec import TF_STATIC, TF_TYPE
from robocache_ros.units import NS_PER_MS, NS_PER_S

Int64 = NDArray[np.int64]

GAP_PERIODS = 3.0  # a gap is at least three periods; shorter intervals are jitter, or one or two lost samples
LOST_PERIODS = 1.5  # minimum interval that counts as a lost sample
MAX_PUBLISHERS = 256  # of a topic of transforms; the messages of others are judged together
MAX_FRAME_BYTES = 256  # of the name of a frame
MIN_SPAN_NS = 10 * NS_PER_MS  # messages within a shorter time have no rate: they were latched, or published at once
APART_NS = NS_PER_S // 2  # a publisher whose stamps differ more from those of the others is named
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
    rate_hz: float  # distinct samples / time between the first and the last; 0 for /tf_static, and if that is too short
    period_ms: float  # median interval
    jitter_ms: float  # half the range of the middle 90 % of the intervals
    missing: int  # estimated number of lost samples; 0 for a topic with bursts
    gaps: tuple[Gap, ...]
    duplicates: int  # messages whose header stamp equals that of an earlier message
    out_of_order: int  # messages logged after a message with a newer header stamp
    intervals_ms: NDArray[np.float64] = field(repr=False)
    delays_ms: NDArray[np.float64] = field(repr=False)  # arrival - stamp; empty if `stamped` is False
    apart: tuple[str, ...] = ()  # publishers of /tf with stamps of their own, each with what is known of them

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
        strides: of every so many messages of a topic, the first one is kept in `samples`; of other topics, none.
    """

    def __init__(
        self, topics: Iterable[Topic], definitions: Mapping[str, str], strides: Mapping[str, int] | None = None
    ) -> None:
        self._topics = {t.name: t for t in topics}
        # Stamps of static transforms are ignored, because static transforms are valid for all times.
        self._stamped = {n: n != TF_STATIC and is_stamped(t.type, definitions) for n, t in self._topics.items()}
        # Arrays, not lists of objects: a recording has millions of messages.
        self._logs = {name: array("q") for name in self._topics}
        self._heads = {name: bytearray() for name in self._topics}  # _STAMPED_HEAD bytes of each message
        self._short: dict[str, list[int]] = {name: [] for name in self._topics}  # messages shorter than _STAMPED_HEAD
        self._sizes = dict.fromkeys(self._topics, 0)
        self._strides = dict(strides or {})
        self.samples: dict[str, list[bytes]] = {name: [] for name in self._topics}
        self._by = Timeline()
        # The frames of the first transform tell the publishers of /tf apart.
        self._senders = {name: _Senders() for name, t in self._topics.items() if t.type == TF_TYPE}

    def watch(self, messages: Iterable[RawMessage]) -> Iterator[RawMessage]:
        """Yield the messages unchanged and record their times."""
        sizes = self._sizes
        kept = {
            name: (self._logs[name], self._heads[name], self._senders.get(name), self._strides.get(name, 0))
            for name in self._topics
        }
        for message in messages:  # millions: each step counts
            topic, log_ns, data = message
            logs, heads, senders, stride = kept[topic]
            if stride and not len(logs) % stride:
                self.samples[topic].append(bytes(data))
            if senders is None:
                head = bytes(data[:_STAMPED_HEAD])
            else:  # a TFMessage starts with the number of transforms; the stamp of the first transform is used
                head = bytes(data[:4]) + bytes(data[8:16])
                senders.add(data)
            if len(head) < _STAMPED_HEAD:
                self._short[topic].append(len(logs))
                head = head.ljust(_STAMPED_HEAD, b"\xff")
            logs.append(log_ns)
            heads += head
            sizes[topic] += len(data)
            yield message

    def times(self) -> dict[str, Times]:
        """Return log times and stamps of the stamped topics, and the times of /clock."""
        names = [name for name, stamped in self._stamped.items() if stamped and self._logs[name]]
        return {
            name: Times(np.array(self._logs[name], np.int64), self._stamps(name), self._publishers(name))
            for name in names
        }

    def stats(self, timeline: Timeline | None = None, *, empty: bool = False) -> dict[str, TopicStats]:
        """Compute statistics by topic, on a timeline (None: the log times); `empty`: also of those without messages."""
        self._by = by = timeline or Timeline()
        found = {name: self._of(topic, by) for name, topic in self._topics.items() if empty or self._logs[name]}
        return {name: self._with_shared_stamps(stats, found) for name, stats in found.items()}

    def _with_shared_stamps(self, stats: TopicStats, others: Mapping[str, TopicStats]) -> TopicStats:
        """Return statistics by the stamps themselves if another topic has the same ones: late, but no other clock."""
        if stats.clock.kind != "device":
            return stats
        own = _distinct(self._stamps(stats.topic))
        for name, other in others.items():
            if other.clock.kind == "timeline" and 2 * np.isin(own, self._stamps(name)).sum() > len(own):
                return self._of(self._topics[stats.topic], self._by, is_shared=True)
        return stats

    def _publishers(self, name: str) -> Int64 | None:
        return self._senders[name].numbers if name in self._senders else None

    def _stamps(self, name: str) -> Int64:
        return _stamps(self._heads[name], self._short[name])

    def _of(self, topic: Topic, timeline: Timeline, *, is_shared: bool = False) -> TopicStats:
        arrivals = timeline.arrivals(np.array(self._logs[topic.name], np.int64))
        size = self._sizes[topic.name]
        if not self._stamped[topic.name] or not len(arrivals):
            return _describe(topic, arrivals, np.sort(arrivals), size, 0, 0, Clock(), None)
        every = Times(arrivals, self._stamps(topic.name), self._publishers(topic.name))
        used, clock, apart = _main_clock(every, self._senders.get(topic.name))
        if not clock.is_usable:
            return _describe(topic, arrivals, np.sort(arrivals), size, 0, 0, clock, None)
        if is_shared:
            clock = clock._replace(kind="timeline")
        # Messages without a time are only counted.
        parts = [t.where((t.stamps_ns > 0) | ((t.stamps_ns == 0) & (t.logs_ns <= LIMIT_NS))) for t in used]
        if clock.kind == "device":
            from robocache_ros.engine.device_clock import DeviceClock  # imports torch, which few recordings need

            for number, times in enumerate(parts):
                device = DeviceClock()
                pairs = zip(times.stamps_ns.tolist(), times.logs_ns.tolist(), strict=True)
                translated = np.array([device.translate(stamp, arrival) for stamp, arrival in pairs], np.int64)
                parts[number] = times._replace(stamps_ns=translated)
        distinct = _distinct(np.concatenate([times.stamps_ns for times in parts]))
        duplicates = sum(len(times.stamps_ns) - len(_distinct(times.stamps_ns)) for times in parts)
        delays = np.concatenate([times.logs_ns - times.stamps_ns for times in parts]) / 1e6
        swapped = sum(_out_of_order(times.stamps_ns) for times in parts)
        described = _describe(topic, arrivals, distinct, size, duplicates, swapped, clock, delays)
        return replace(described, apart=apart)


class _Senders:
    """The publishers of a topic of transforms, by the frames of the first transform of each message."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self._numbers = array("H")

    def add(self, data: bytes | memoryview) -> None:
        head = _frames_of(data)
        if head not in self._known and len(self._known) >= MAX_PUBLISHERS:
            head = b""
        self._numbers.append(self._known.setdefault(head, len(self._known)))

    @property
    def numbers(self) -> Int64:
        """(M,) numbers of the publishers of the messages."""
        return np.array(self._numbers, np.int64)

    def name(self, number: int) -> str:
        """Return the frames of a publisher."""
        parent, _, child = list(self._known)[number].decode("utf-8", "replace").partition("\0")
        return f"{printable(parent, 40)} -> {printable(child, 40)}" if child else "without frames"


def _frames_of(data: bytes | memoryview) -> bytes:
    """Return the parent and the child of the first transform of a serialized TFMessage; empty if there is none."""
    order = "little" if len(data) > 1 and data[1] % 2 else "big"
    found, at = [], 16  # encapsulation, number of transforms, stamp
    for _ in range(2):
        length = int.from_bytes(data[at : at + 4], order)  # type: ignore[arg-type]
        if not 0 < length <= MAX_FRAME_BYTES or at + 4 + length > len(data):
            return b""
        found.append(bytes(data[at + 4 : at + 4 + length - 1]))
        at += 4 + length + (-length) % 4
    return b"\0".join(found)


def _main_clock(every: Times, senders: _Senders | None) -> tuple[list[Times], Clock, tuple[str, ...]]:
    """Return the messages of the publishers whose stamps a topic is judged by, their clock, and notes on the others."""
    parts = every.by_publisher()
    clocks = [clock_of(part.logs_ns, part.stamps_ns) for part in parts]
    if senders is None or len(parts) == 1:
        return parts, clocks[0], ()
    largest = max(len(part.logs_ns) for part in parts)
    kinds = [clock.kind for clock, part in zip(clocks, parts, strict=True) if MIN_SHARE * len(part.logs_ns) >= largest]
    kind = next((kind for kind in ("timeline", "device") if kind in kinds), kinds[0])
    used = [part for part, clock in zip(parts, clocks, strict=True) if clock.kind == kind]
    main = Times(*(np.concatenate(of) for of in zip(*((part.logs_ns, part.stamps_ns) for part in used), strict=True)))
    clock = clock_of(main.logs_ns, main.stamps_ns)._replace(kind=kind)
    numbers = list(dict.fromkeys((every.publishers if every.publishers is not None else np.empty(0)).tolist()))
    apart = []
    for number, own in zip(numbers, clocks, strict=True):
        if abs(own.offset_ns - clock.offset_ns) > APART_NS and own.kind in ("timeline", "device", "constant"):
            seconds = abs(own.offset_ns) / 1e9
            apart.append(
                f"{senders.name(number)} is stamped {seconds:.1f} s {'late' if own.offset_ns > 0 else 'ahead'}"
            )
    return used, clock, tuple(apart)


def _distinct(times: Int64) -> Int64:
    """Return the distinct times, sorted. NumPy's own function hashes them, which takes ten times as long."""
    ordered = np.sort(times)
    distinct: Int64 = ordered[np.concatenate([ordered[:1] == ordered[:1], ordered[1:] != ordered[:-1]])]
    return distinct


def _out_of_order(stamps: Int64) -> int:
    """Return the number of stamps that are seen for the first time after a newer one."""
    if not len(stamps):
        return 0
    first_seen = np.zeros(len(stamps), bool)
    first_seen[np.unique(stamps, return_index=True)[1]] = True
    return int(((stamps < np.maximum.accumulate(stamps)) & first_seen).sum())


def clock_notes(topics: Iterable[TopicStats]) -> list[str]:
    """Return a note with topics for each kind of header stamps that are not on the timeline, and what to do."""
    found: dict[str, list[str]] = {}
    notes = []
    for stats in topics:
        name = printable(stats.topic, 60)
        if stats.clock.text:
            found.setdefault(stats.clock.text, []).append(name)
        if stats.apart:
            more = f" and {len(stats.apart) - 2} more" if len(stats.apart) > 2 else ""
            shown = f"{name}: {', '.join(stats.apart[:2])}{more}"
            notes.append(f"{shown}, as localisation and SLAM do; this is no jump of the clock and needs no setting")
    return [
        f"{', '.join(names[:2])}{f' and {len(names) - 2} more' if len(names) > 2 else ''}: {text}; {_advice(text)}"
        for text, names in found.items()
    ] + notes


def _advice(text: str) -> str:
    """Return what to do about the stamps of a clock with this text."""
    if "clock" in text:
        return "give their streams `stamp: device`, which translates them, as --write-spec does"
    how = "`stamp: header_or_receive`" if text[0].isdigit() else "`stamp: receive`"
    return f"give their streams {how}, which uses arrival times, as --write-spec does"


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
        rate_hz=(len(times) - 1) * NS_PER_S / span if span >= MIN_SPAN_NS and topic.name != TF_STATIC else 0.0,
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
    from robocache_ros.decode.definitions import HEADER, Struct, message_type

    try:
        fields = message_type(name, definitions).fields
    except RoboCacheError:
        return False
    return isinstance(fields[0][1], Struct) and fields[0][1].name == HEADER


def read_timeline(bag: Bag, devices: Collection[str] = ()) -> Timeline:
    """Return the timeline of a recording. `info`, exports and replays use the same rule, for any choice of streams.

    Reads the first messages of the stamped topics. Reads all of them only if stamps are not on the log clock.

    Args:
        bag: the recording.
        devices: topics with a clock of their own.
    """
    stamped = {name for name, topic in bag.topics.items() if is_stamped(topic.type, bag.definitions)} - {TF_STATIC}
    counts = {name: bag.topics[name].count for name in stamped}
    names = considered_topics(counts)
    recorder = Recorder([bag.topics[name] for name in names], bag.definitions)
    awaited = {name: min(PROBE, counts[name]) for name in names if name not in devices}
    for message in recorder.watch(bag.messages(names)) if names else ():
        if message.topic in awaited:
            awaited[message.topic] -= 1
            if not awaited[message.topic]:
                del awaited[message.topic]
                if not awaited and is_by_log({k: v for k, v in recorder.times().items() if k not in devices}):
                    return Timeline()
    return timeline_of(recorder.times(), devices)
