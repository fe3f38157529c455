"""The clock of a recording: of its log times, or of its stamps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import printable
from robocache_ros.spec import StreamSpec
from robocache_ros.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from robocache_ros.engine.device_clock import Line

# Determines whether the header stamps of a topic are on the clock of the timeline.
#
# Simulators use simulated time, some drivers use the time since their start, and a replay keeps the original stamps.

Int64 = NDArray[np.int64]

LIMIT_NS = round(StreamSpec.max_skew_ms * 1e6)  # fusion drops samples with a larger difference of stamp and arrival
MAX_UNUSABLE_SHARE = 0.1  # maximum share of unusable stamps


class Times(NamedTuple):
    """The messages of a topic in log order. An invalid stamp is -1.

    publishers: which publisher of the topic sent a message; None: there is one. The publishers of /tf stamp their
    transforms by rules of their own, so that its stamps are judged by publisher.
    """

    logs_ns: Int64  # (M,)
    stamps_ns: Int64  # (M,)
    publishers: Int64 | None = None  # (M,)

    def where(self, chosen: NDArray[np.bool_] | slice) -> Times:
        """Return some of the messages."""
        of = None if self.publishers is None else self.publishers[chosen]
        return Times(self.logs_ns[chosen], self.stamps_ns[chosen], of)

    def by_publisher(self) -> list[Times]:
        """Return the messages of each publisher, in the order of their first messages."""
        if self.publishers is None:
            return [self]
        _, first = np.unique(self.publishers, return_index=True)
        return [
            self.where(self.publishers == self.publishers[index])._replace(publishers=None) for index in sorted(first)
        ]


class Clock(NamedTuple):
    """The clock of the header stamps of a topic.

    kind: `timeline`: on the clock of the timeline; `device`: on another clock; `unset`: zero or not valid; `constant`:
    all the same; `none`: the type has no header. offset_ns: the median of arrival - stamp. unset: number of messages
    without a stamp.
    """

    kind: str = "none"
    offset_ns: int = 0
    unset: int = 0

    @property
    def is_usable(self) -> bool:
        """Whether the stamps determine the time of a message on the timeline, directly or after conversion."""
        return self.kind in ("timeline", "device")

    @property
    def stamp(self) -> str:
        """The suitable `stamp` of a stream; empty for the default."""
        known = {"unset": "receive", "constant": "receive", "device": "device"}
        return known.get(self.kind, "header_or_receive" if self.unset else "")

    @property
    def text(self) -> str:
        """Describe deviations of the stamps; empty if there are none."""
        if self.kind in ("unset", "constant"):
            return "stamps are not set" if self.kind == "unset" else "stamps are all the same"
        if self.kind != "device":
            return f"{self.unset:,} stamps are not set" if self.unset else ""
        return f"stamps are {difference(self.offset_ns)} the timeline: they come from another clock"


def difference(offset_ns: int) -> str:
    """Format the difference of two clocks, such as `12.0 s behind`."""
    value = abs(offset_ns) / 1e9
    shown = f"{value:.1f} s" if value < 1000 else f"{value:.2e} s".replace("e+0", "e")
    return f"{shown} {'behind' if offset_ns > 0 else 'ahead of'}"


def clock_of(arrivals: Int64, stamps: Int64) -> Clock:
    """Determine the clock of (N,) header stamps in ns, -1 if invalid, from the (N,) arrivals of their messages."""
    delays = arrivals - stamps
    lost = (stamps < 0) | ((stamps == 0) & (delays > LIMIT_NS))
    unset = int(lost.sum())
    if not len(stamps) or 2 * unset > len(stamps):
        return Clock("unset", unset=unset)
    delays, stamps = delays[~lost], stamps[~lost]
    offset_ns = int(np.median(delays))
    if len(stamps) > 1 and stamps.min() == stamps.max():
        return Clock("constant", offset_ns, unset)
    return Clock("timeline" if np.mean(np.abs(delays) > LIMIT_NS) <= MAX_UNUSABLE_SHARE else "device", offset_ns, unset)


class ClockSteps(NamedTuple):
    """Uses the time of the last /clock message, as a node in simulated time does."""

    logs_ns: Int64
    times_ns: Int64

    def at(self, log_ns: int) -> int:
        """Return the time at a log time; before the first /clock message, the first known time."""
        return int(self.times_ns[max(0, int(np.searchsorted(self.logs_ns, log_ns, side="right")) - 1)])


class Piece(NamedTuple):
    """A line between stamps and log times. It starts at a log time and is valid for times up to a limit."""

    start_ns: int
    line: Line
    limit_ns: int

    def at(self, log_ns: int) -> int:
        """Return the time at a log time."""
        x, y, dx, dy = self.line
        return max(0, min(x + (log_ns - y) * dx // dy, self.limit_ns))


class Lines(NamedTuple):
    """Consecutive pieces. A clock with a constant rate has one piece."""

    pieces: tuple[Piece, ...]

    def at(self, log_ns: int) -> int:
        """Return the time at a log time."""
        if len(self.pieces) == 1:
            return self.pieces[0].at(log_ns)
        index = bisect_right(self.pieces, log_ns, key=attrgetter("start_ns"))
        return self.pieces[max(0, index - 1)].at(log_ns)


class Segment(NamedTuple):
    """The log times between two consecutive time jumps."""

    start_ns: int  # log time of its first message
    mapping: ClockSteps | Lines


class Span(NamedTuple):
    """Messages with start_ns <= log time < stop_ns, and times from first_ns to last_ns."""

    start_ns: int
    stop_ns: int
    first_ns: int
    last_ns: int


@dataclass(frozen=True)
class Timeline:
    """The time of a recording, as a function of the log time.

    Attributes:
        source: `log`: the clock of the log times; `/clock`: the recorded simulated time; `stamps`: the header stamps of
            some topics, with an estimate of offset and skew.
        segments: segments between time jumps; empty for `log`.
        topics: topics whose stamps are on the timeline, if it is not the clock of the log times.
        offset_ns: log time - time, at the first stamped message.
        rate: seconds of the timeline per second of log time.
    """

    source: str = "log"
    segments: tuple[Segment, ...] = ()
    topics: tuple[str, ...] = ()
    offset_ns: int = 0
    rate: float = 1.0

    def at(self, log_ns: int) -> int:
        """Return the time at a log time."""
        if not self.segments:
            return log_ns
        if len(self.segments) == 1:  # of most recordings, and called for each message
            return self.segments[0].mapping.at(log_ns)
        index = bisect_right(self.segments, log_ns, key=attrgetter("start_ns"))
        return self.segments[max(0, index - 1)].mapping.at(log_ns)

    def arrivals(self, logs_ns: Int64) -> Int64:
        """Return (M,) times at (M,) log times."""
        if not self.segments:
            return logs_ns
        return np.array([self.at(log_ns) for log_ns in logs_ns.tolist()], np.int64)

    def spans(self, start_ns: int, stop_ns: int) -> list[Span]:
        """Split the messages with start_ns <= log time < stop_ns at the time jumps."""
        starts = [segment.start_ns for segment in self.segments[1:] if start_ns < segment.start_ns < stop_ns]
        logs = zip([start_ns, *starts], [*starts, stop_ns], strict=True)
        return [Span(a, b, self.at(a), self.at(b if b == stop_ns else b - 1)) for a, b in logs]

    def around(self, log_ns: int, start_ns: int, stop_ns: int) -> tuple[int, int]:
        """Return the range within start_ns <= log time < stop_ns, without a time jump, that contains a log time."""
        starts = [segment.start_ns for segment in self.segments[1:]]
        return (
            max([start_ns, *(start for start in starts if start <= log_ns)]),
            min([stop_ns, *(start for start in starts if start > log_ns)]),
        )

    @property
    def note(self) -> str:
        """Describe the timeline; empty if it is the clock of the log times."""
        if not self.segments:
            return ""
        shown = ", ".join(printable(name, 60) for name in self.topics[:2])
        more = f" and {len(self.topics) - 2} more" if len(self.topics) > 2 else ""
        whose = "/clock" if self.source == "/clock" else f"the header stamps of {shown}{more}"
        how = "by /clock" if self.source == "/clock" else "from the fastest messages"
        count = len(self.segments) - 1
        jumps = f"; the time jumps {count} time{'s' if count > 1 else ''}, and the timeline restarts" if count else ""
        return (
            f"the timeline follows {whose}, {difference(self.offset_ns)} the log times, at {self.rate:.5f} of their "
            f"rate; arrivals are converted to it {how}{jumps}; nothing needs to be set"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters of the timeline, for the provenance of a dataset."""
        found: dict[str, Any] = {"source": self.source}
        if self.segments:
            found |= {"topics": list(self.topics), "offset_ns": self.offset_ns, "rate": self.rate}
            found["segments"] = [
                {"start_ns": segment.start_ns, "time_ns": segment.mapping.at(segment.start_ns)}
                for segment in self.segments
            ]
        return found


# Estimates the time on a clock as a function of log time, from its stamped messages with the least delay.
#
# The difference log time - stamp is the offset of the clocks plus a delay that is never negative, so the messages with
# the least delay give the offset. The method:
#
# 1. For each 0.1 s of the log, select the message with the smallest log time - stamp. A message that deviates by more
#    than 0.5 s from the median of five is excluded, because its stamp is damaged.
# 2. A segment ends where the stamps jump back by more than 0.5 s, or ahead by more than 10 s, as the engine does.
# 3. A segment is one line, with an offset and a skew, fitted by the lower convex hull of its points (`LowerHull`), if
#    the fastest messages of nine out of ten half seconds are within 20 ms of the line, and none deviates by 0.5 s.
#    Otherwise, as in a simulation with varying speed, the segment is split at the point with the largest distance from
#    the straight line between its ends.

BIN_NS = 100 * NS_PER_MS
WINDOW_NS = NS_PER_S // 2
NEAR_NS = 20 * NS_PER_MS
MAX_FAR_SHARE = 0.1  # maximum share of windows further from a line than NEAR_NS
MEDIAN = 5  # points
MIN_WINDOWS = 3  # minimum number of windows for a split
MAX_SPLITS = 64  # maximum depth of splits: the runtime stays proportional to the length of the recording
ENDLESS = 2**63 - 1


def estimated(times: Times) -> list[Segment]:
    """Return the segments of a clock, from the stamped messages of all its topics in log order."""
    points = _without_damage(_fastest(times, BIN_NS))
    segments = []
    for first, part in _between_jumps(points, jumps(points)) if len(points.logs_ns) else ():
        start_ns = _first_after_jump(times, points, first) if first else int(times.logs_ns[0])
        segments.append(Segment(start_ns, Lines(tuple(_pieces(part)))))
    return segments


def jumps(times: Times) -> Int64:
    """Return the indices of the first messages after each jump of the stamps."""
    steps = np.diff(times.stamps_ns)
    from robocache_ros.engine.tick_grid import JUMP_AHEAD_NS, JUMP_BACK_NS  # imports torch, which few recordings need

    back, ahead = steps < -JUMP_BACK_NS, steps - np.diff(times.logs_ns) > JUMP_AHEAD_NS
    found: Int64 = np.flatnonzero(back | ahead) + 1
    return found


def _fastest(times: Times, width_ns: int) -> Times:
    """Return the message with the least delay in each bin of log time."""
    bins = (times.logs_ns - times.logs_ns[0]) // width_ns
    order = np.lexsort((times.logs_ns - times.stamps_ns, bins))
    first = order[np.diff(bins[order], prepend=-1) > 0]
    return Times(times.logs_ns[first], times.stamps_ns[first])


def _without_damage(points: Times) -> Times:
    if len(points.logs_ns) < MEDIAN:
        return points
    from robocache_ros.engine.device_clock import JUMP_NS

    delays = points.logs_ns - points.stamps_ns
    padded = np.pad(delays, MEDIAN // 2, mode="reflect")
    medians = np.sort(np.lib.stride_tricks.sliding_window_view(padded, MEDIAN), axis=1)[:, MEDIAN // 2]
    good = np.abs(delays - medians) <= JUMP_NS
    return Times(points.logs_ns[good], points.stamps_ns[good])


def _between_jumps(times: Times, cuts: Int64) -> Iterator[tuple[int, Times]]:
    """Yield the index of the first message of each part, and the part."""
    for first, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(times.logs_ns)], strict=True):
        yield first, Times(times.logs_ns[first:stop], times.stamps_ns[first:stop])


def _first_after_jump(times: Times, points: Times, first: int) -> int:
    """Return the log time of the first message whose stamp is closer to the clock after a jump than before it."""
    between = (times.logs_ns > points.logs_ns[first - 1]) & (times.logs_ns <= points.logs_ns[first])
    delays = points.logs_ns[first - 1 : first + 1] - points.stamps_ns[first - 1 : first + 1]
    found = times.logs_ns[between] - times.stamps_ns[between]
    after = np.abs(found - delays[1]) < np.abs(found - delays[0])
    return int(times.logs_ns[between][int(after.argmax())])


def _pieces(points: Times) -> list[Piece]:
    lines: list[tuple[int, Line]] = []
    waiting = [(points, 0)]
    while waiting:
        part, splits = waiting.pop()
        line = _line(part)
        windows = _fastest(part, WINDOW_NS)
        if len(windows.logs_ns) < MIN_WINDOWS or splits == MAX_SPLITS or _fits(windows, line):
            lines.append((int(part.logs_ns[0]), line))
            continue
        at = int(np.searchsorted(part.logs_ns, _corner(windows)))
        waiting.append((Times(part.logs_ns[at:], part.stamps_ns[at:]), splits + 1))
        waiting.append((Times(part.logs_ns[:at], part.stamps_ns[:at]), splits + 1))
    found: list[Piece] = []
    limit = ENDLESS
    for start, line in reversed(lines):  # each piece is limited by the start of the next one, so time never steps back
        found.append(Piece(start, line, limit))
        limit = found[-1].at(start)
    return found[::-1]


def _line(points: Times) -> Line:
    from robocache_ros.engine.device_clock import LowerHull  # imports torch, which few recordings need

    hull = LowerHull()
    newest = -1
    for log_ns, stamp_ns in zip(points.logs_ns.tolist(), points.stamps_ns.tolist(), strict=True):
        if stamp_ns > newest:
            hull.add(stamp_ns, log_ns)
            newest = stamp_ns
    return hull.line()


def _fits(windows: Times, line: Line) -> bool:
    from robocache_ros.engine.device_clock import JUMP_NS

    pairs = zip(windows.logs_ns.tolist(), windows.stamps_ns.tolist(), strict=True)
    above = np.array([log_ns - line.at(stamp_ns) for log_ns, stamp_ns in pairs])
    return bool(np.mean(np.abs(above) > NEAR_NS) <= MAX_FAR_SHARE and np.abs(above).max() <= JUMP_NS)


def _corner(windows: Times) -> int:
    """Return the log time after the point that is furthest from the line between the first and the last point."""
    logs = (windows.logs_ns - windows.logs_ns[0]).astype(np.float64)
    delays = windows.logs_ns - windows.stamps_ns
    above = (delays - delays[0]) - logs / logs[-1] * float(delays[-1] - delays[0])
    furthest = int(np.abs(above[1:-1]).argmax()) + 1
    return int(windows.logs_ns[furthest if above[furthest] > 0 else furthest + 1])


# Selects the clock of the timeline of a recording.
#
# The header stamps of a topic are on the clock of the log times, on /clock, on the clock of other topics, or on a clock
# of their own. Two clocks are the same if the median difference of the stamps, at equal log times, is at most the limit
# of fusion (`max_skew_ms`, 5 s). The publishers of /tf are judged one by one: AMCL stamps its transforms in the future,
# and SLAM repeats old ones. The rule:
#
# 1. A topic is considered if it has at least two messages, and at least a hundredth of those of the largest topic.
# 2. If the first messages of all considered topics are on the clock of the log times, this clock is the timeline.
# 3. Else, if /clock is recorded, and the stamps of a topic are on it or no topic is stamped: /clock.
# 4. Else the clock of the most topics; in a tie, the clock of the log times, else that of the first topic by name.
#
# 5. Publishers whose stamps are ahead of those of the others, or behind them, by more than a jump of the clock do not
#    take part in the estimate of the clock: they are neither a jump nor another clock.
#
# Streams on a clock other than the timeline need `stamp: device`. Topics that a spec declares so are not considered.

CLOCK, CLOCK_TYPE = "/clock", "rosgraph_msgs/msg/Clock"
PROBE = 8  # number of messages per topic that are checked first
MAX_SEGMENTS = 1000  # with more jumps, stamps do not follow a clock; log times are the timeline
MIN_SHARE = 100  # a topic with less than 1 / SHARE of the messages of the largest topic is not considered


def considered_topics(counts: Mapping[str, int]) -> list[str]:
    """Return the considered topics, given the message counts of all stamped topics; sorted by name."""
    largest = max((count for name, count in counts.items() if name != CLOCK), default=0)
    least = max(2, largest // MIN_SHARE)
    return sorted(name for name, count in counts.items() if count >= least or (name == CLOCK and count > 1))


def is_by_log(times: Mapping[str, Times]) -> bool:
    """Whether the first messages of all topics are on the clock of the log times, or have no stamps."""
    probes = [part for one in times.values() for part in one.where(slice(PROBE)).by_publisher()]
    clocks = [clock_of(part.logs_ns, part.stamps_ns) for part in probes]
    return all(clock.kind == "timeline" or abs(clock.offset_ns) <= LIMIT_NS for clock in clocks)


def timeline_of(times: Mapping[str, Times], devices: Collection[str] = ()) -> Timeline:
    """Select the timeline of a recording.

    Args:
        times: all messages by stamped topic, and those of /clock if it is recorded.
        devices: topics with a clock of their own.
    """
    chosen = {name: times[name] for name in considered_topics({name: len(one.logs_ns) for name, one in times.items()})}
    if is_by_log({name: one for name, one in chosen.items() if name not in devices}):
        return Timeline()
    clock = chosen.pop(CLOCK, None)
    stamped = [
        _Publisher(name, part.where(part.stamps_ns > 0))
        for name, one in chosen.items()
        for part in one.by_publisher()
        if MIN_SHARE * len(part.logs_ns) >= len(one.logs_ns) and clock_of(part.logs_ns, part.stamps_ns).is_usable
    ]
    if clock is not None and clock_of(clock.logs_ns, clock.stamps_ns).kind == "device":
        on_it = tuple(dict.fromkeys(one.topic for one in stamped if _same(one.times, clock)))
        if on_it or not {one.topic for one in stamped} - set(devices):
            return _timeline(CLOCK, on_it, clock, _steps(clock))
    main = _largest(stamped, devices)
    if not main:
        return Timeline()
    used = _in_step(main)
    logs = np.concatenate([one.times.logs_ns for one in used])
    stamps = np.concatenate([one.times.stamps_ns for one in used])
    order = np.argsort(logs, kind="stable")
    merged = Times(logs[order], stamps[order])
    return _timeline("stamps", tuple(dict.fromkeys(one.topic for one in main)), merged, estimated(merged))


class _Publisher(NamedTuple):
    topic: str
    times: Times


def _largest(stamped: Sequence[_Publisher], devices: Collection[str]) -> list[_Publisher]:
    """Return the publishers on the clock of the most topics; empty if this is the clock of the log times."""
    by_log: list[_Publisher] = []
    groups: list[list[_Publisher]] = []
    for one in stamped:  # in the order of the topics' names
        if clock_of(one.times.logs_ns, one.times.stamps_ns).kind == "timeline":
            by_log.append(one)
            continue
        found = next((group for group in groups if _same(one.times, group[0].times)), None)
        if found is None:
            groups.append([one])
        else:
            found.append(one)

    def votes(group: list[_Publisher]) -> int:
        return len({one.topic for one in group} - set(devices))

    largest = max(groups, key=votes, default=[])
    return largest if votes(largest) > votes(by_log) else []


def _in_step(publishers: Sequence[_Publisher]) -> list[_Publisher]:
    """Return the publishers whose stamps differ from those of the largest one by less than a jump of the clock."""
    from robocache_ros.engine.tick_grid import JUMP_BACK_NS  # imports torch, which few recordings need

    largest = max(publishers, key=lambda one: len(one.times.logs_ns))
    first, last = largest.times.logs_ns[[0, -1]]
    kept = []
    for one in publishers:
        during = one.times.where((one.times.logs_ns >= first) & (one.times.logs_ns <= last))
        # Messages that came at once, with different stamps, are not in step even with themselves.
        is_kept = one is largest or not len(during.logs_ns)
        if is_kept or abs(float(np.median(_behind(during, largest.times)))) <= JUMP_BACK_NS:
            kept.append(one)
    return kept


def _same(one: Times, other: Times) -> bool:
    """Whether the stamps of two publishers are on the same clock."""
    return bool(np.median(np.abs(_behind(one, other))) <= LIMIT_NS)


def _behind(one: Times, other: Times) -> NDArray[np.float64]:
    """Return by how many ns the stamps of a publisher are behind those of another one at the same log times."""
    base = int(other.logs_ns[0] - other.stamps_ns[0])
    known = (other.logs_ns - other.stamps_ns - base).astype(np.float64)
    start = int(other.logs_ns[0])
    expected = np.interp((one.logs_ns - start).astype(np.float64), (other.logs_ns - start).astype(np.float64), known)
    behind: NDArray[np.float64] = (one.logs_ns - one.stamps_ns - base).astype(np.float64) - expected
    return behind


def _steps(clock: Times) -> list[Segment]:
    good = clock.where(clock.stamps_ns >= 0)
    cuts = jumps(good._replace(logs_ns=np.zeros_like(good.stamps_ns)))  # as in a node, which has no log times
    return [Segment(int(part.logs_ns[0]), ClockSteps(*part[:2])) for _, part in _between_jumps(good, cuts)]


def _timeline(source: str, topics: tuple[str, ...], times: Times, segments: list[Segment]) -> Timeline:
    if not 0 < len(segments) <= MAX_SEGMENTS:
        return Timeline()
    first, last = int(times.logs_ns[0]), int(times.logs_ns[-1])
    found = Timeline(source, tuple(segments), topics)
    longest = max(found.spans(first, last), key=lambda span: span.stop_ns - span.start_ns)
    length_ns = longest.stop_ns - longest.start_ns
    rate = (longest.last_ns - longest.first_ns) / length_ns if length_ns else 1.0
    return replace(found, offset_ns=first - found.at(first), rate=rate)
