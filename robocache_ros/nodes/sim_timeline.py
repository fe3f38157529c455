"""Sim time by the messages of /clock."""

from __future__ import annotations

import struct
from bisect import bisect_right

CLOCK_HISTORY = 4096  # /clock messages remembered, for messages that come after a later one


class SimTimeline:
    """The sim time at which each message was published.

    A message arrives at the sim time of the last /clock message published no later than it, by the middleware's source
    timestamps: a replay that announces each message's log time before the message reproduces the arrivals exactly.
    """

    def __init__(self) -> None:
        self._source_ns: list[int] = []
        self._sim_ns: list[int] = []

    def add(self, source_ns: int, sim_ns: int) -> None:
        """Remember a /clock message."""
        self._source_ns.append(source_ns)
        self._sim_ns.append(sim_ns)
        if len(self._source_ns) >= 2 * CLOCK_HISTORY:
            del self._source_ns[:-CLOCK_HISTORY], self._sim_ns[:-CLOCK_HISTORY]

    def restart(self) -> None:
        """Forget the times before a jump."""
        self._source_ns.clear()
        self._sim_ns.clear()

    @property
    def now_ns(self) -> int | None:
        """The newest sim time."""
        return self._sim_ns[-1] if self._sim_ns else None

    def arrival_ns(self, source_ns: int) -> int:
        """The sim time at which a message was published; the earliest one known for those before it."""
        return self._sim_ns[max(0, bisect_right(self._source_ns, source_ns) - 1)]


def read_clock(data: bytes | memoryview) -> int | None:
    """The time in ns of a serialized rosgraph_msgs/Clock; None where it is cut short, negative or not normalized."""
    if len(data) < 12:
        return None
    seconds, nanoseconds = struct.unpack_from("<iI" if data[1] & 1 else ">iI", data, 4)
    if seconds < 0 or nanoseconds >= 1_000_000_000:
        return None
    return int(seconds) * 1_000_000_000 + int(nanoseconds)
