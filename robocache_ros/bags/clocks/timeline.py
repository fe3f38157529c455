"""The timeline of a recording: converts log times to arrivals on the clock of the header stamps."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.clocks.stamp_clock import difference
from robocache_ros.errors import printable

if TYPE_CHECKING:
    from robocache_ros.engine.device_clock import Line

Int64 = NDArray[np.int64]


class Mapping(Protocol):
    """A conversion of log times to times, without a jump."""

    def at(self, log_ns: int) -> int:
        """Return the time at a log time."""


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
        index = bisect_right(self.pieces, log_ns, key=_start_ns)
        return self.pieces[max(0, index - 1)].at(log_ns)


class Segment(NamedTuple):
    """The log times between two consecutive time jumps."""

    start_ns: int  # log time of its first message
    mapping: Mapping


def _start_ns(part: Piece | Segment) -> int:
    return part.start_ns


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
        index = bisect_right(self.segments, log_ns, key=_start_ns)
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
