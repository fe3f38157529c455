"""Determines whether the header stamps of a topic are on the clock of the timeline.

Simulators use simulated time, some drivers use the time since their start, and a replay keeps the original stamps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.spec import StreamSpec

Int64 = NDArray[np.int64]

LIMIT_NS = round(StreamSpec.max_skew_ms * 1e6)  # fusion drops samples with a larger difference of stamp and arrival
FEW = 0.1  # maximum share of unusable stamps


class Times(NamedTuple):
    """The messages of a topic in log order. An invalid stamp is -1.

    publishers: which publisher of the topic sent a message; None: there is one. The publishers of /tf stamp their
    transforms by rules of their own, so that its stamps are judged by publisher.
    """

    logs_ns: Int64  # (M,)
    stamps_ns: Int64  # (M,)
    publishers: Int64 | None = None  # (M,)

    @property
    def set_ones(self) -> Times:
        """Return the messages whose stamps are valid and set."""
        return self.where(self.stamps_ns > 0)

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
    return Clock("timeline" if np.mean(np.abs(delays) > LIMIT_NS) <= FEW else "device", offset_ns, unset)
