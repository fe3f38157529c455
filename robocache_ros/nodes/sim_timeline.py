"""Sim time from the messages of /clock."""

from __future__ import annotations

import struct
from bisect import bisect_right

CLOCK_HISTORY = 4096  # /clock messages kept, for messages that are received after a later /clock message


class SimTimeline:
    """The sim time at which each message was published.

    A message arrives at the sim time of the last /clock message that was published at or before it, by the source
    timestamps of the middleware. A replay that publishes the log time of each message on /clock before the message
    therefore reproduces the arrivals exactly.
    """

    def __init__(self) -> None:
        self._source_ns: list[int] = []
        self._sim_ns: list[int] = []

    def add(self, source_ns: int, sim_ns: int) -> None:
        """Store a /clock message."""
        self._source_ns.append(source_ns)
        self._sim_ns.append(sim_ns)
        if len(self._source_ns) >= 2 * CLOCK_HISTORY:
            del self._source_ns[:-CLOCK_HISTORY], self._sim_ns[:-CLOCK_HISTORY]

    def restart(self) -> None:
        """Discard the times before a jump."""
        self._source_ns.clear()
        self._sim_ns.clear()

    @property
    def now_ns(self) -> int | None:
        """The newest sim time."""
        return self._sim_ns[-1] if self._sim_ns else None

    def arrival_ns(self, source_ns: int) -> int:
        """The sim time at which a message was published; the earliest known sim time for messages before it."""
        return self._sim_ns[max(0, bisect_right(self._source_ns, source_ns) - 1)]


def read_clock(data: bytes | memoryview) -> int | None:
    """The time in ns of a serialized rosgraph_msgs/Clock; None if it is truncated, negative or not normalized."""
    if len(data) < 12:
        return None
    seconds, nanoseconds = struct.unpack_from("<iI" if data[1] & 1 else ">iI", data, 4)
    if seconds < 0 or nanoseconds >= 1_000_000_000:
        return None
    return int(seconds) * 1_000_000_000 + int(nanoseconds)
