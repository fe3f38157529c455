"""Whether a topic's header stamps run on the clock of the log times.

Simulators stamp in simulated time, some drivers since their start, and a replayed recording keeps its old stamps. Such
stamps do not tell where a message is on the recording's timeline, which is that of the log times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.spec import StreamSpec

LIMIT_NS = round(StreamSpec.max_skew_ms * 1e6)  # fusion drops a sample whose stamp is further from its arrival
FEW = 0.1  # up to this share of the stamps may be unusable


class Clock(NamedTuple):
    """What a topic's header stamps are.

    kind: `log`: on the clock of the log times; `other`: on another one; `unset`: zero or not valid; `none`: the type
    has no header. offset_ns, spread_ns: of `other`, the median of log time - stamp, and the spread of its middle 90 %.
    """

    kind: str = "none"
    offset_ns: int = 0
    spread_ns: int = 0

    @property
    def is_usable(self) -> bool:
        """Whether the stamps tell where a message is on the recording's timeline."""
        return self.kind == "log"

    @property
    def text(self) -> str:
        """What is wrong with the stamps; empty where nothing is."""
        if self.kind == "unset":
            return "stamps are not set"
        if self.kind != "other":
            return ""
        side = "behind" if self.offset_ns > 0 else "ahead of"
        return f"stamps are {_seconds(abs(self.offset_ns) / 1e9)} {side} the log time: another clock"


def clock_of(logs: NDArray[np.int64], stamps: NDArray[np.int64]) -> Clock:
    """The clock of (N,) header stamps in ns, -1 where one is not valid, by the (N,) log times of their messages."""
    delays = logs - stamps
    lost = (stamps < 0) | ((stamps == 0) & (delays > LIMIT_NS))
    if not len(stamps) or 2 * int(lost.sum()) > len(stamps):
        return Clock("unset")
    delays = delays[~lost]
    if np.mean(np.abs(delays) > LIMIT_NS) <= FEW:
        return Clock("log")
    low, middle, high = np.quantile(delays, [0.05, 0.5, 0.95])
    return Clock("other", int(middle), int(high - low))


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 1000 else f"{value:.2e} s".replace("e+0", "e")
