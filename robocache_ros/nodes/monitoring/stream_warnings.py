"""Log warnings for streams that are invalid at most ticks."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping

import numpy as np

from robocache_ros.nodes.tick_loop import TickStats
from robocache_ros.spec import FusionSpec

MIN_TICKS = 150  # ticks that a share is computed from
INVALID_SHARE = 0.5  # share of the ticks above which a stream is reported
REPEAT_S = 30.0  # time between two warnings about a stream


class StreamWarnings:
    """Finds the streams that were invalid at most ticks since the last check.

    Args:
        spec: the streams.
        stats: counts of the ticks.
        now_s: returns the time of a monotonic clock.
    """

    def __init__(
        self,
        spec: FusionSpec,
        stats: TickStats,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = [stream.name for stream in spec.streams]
        self._stats = stats
        self._began: dict[str, int] = {}  # by stream: ticks emitted when its first message was seen
        self._now_s = now_s
        self._ticks = stats.emitted
        self._invalid = stats.invalid.copy()
        self._next_s = dict.fromkeys(self._names, -np.inf)

    def check(self, reasons: Mapping[str, str], received: Container[str]) -> list[str]:
        """A warning for each stream that was invalid at most ticks, once enough ticks are counted.

        The ticks until a stream's first message are its start-up, and not counted.

        Args:
            reasons: message of each stream's diagnostic status, by its name.
            received: names of the streams that have received a message.
        """
        for name in self._names:
            if name in received:
                self._began.setdefault(name, self._stats.emitted)
        begin = self._ticks
        ticks = self._stats.emitted - begin
        if ticks < MIN_TICKS:
            return []
        shares = (self._stats.invalid - self._invalid) / ticks
        self._ticks, self._invalid = self._stats.emitted, self._stats.invalid.copy()
        now_s = self._now_s()
        lines = []
        for name, share in zip(self._names, shares.tolist(), strict=True):
            if share <= INVALID_SHARE or now_s < self._next_s[name] or self._began.get(name, 0) > begin:
                continue
            self._next_s[name] = now_s + REPEAT_S
            reason = reasons.get(name, "no reason known")
            lines.append(f"{name}: invalid at {share:.0%} of the last {ticks} ticks ({reason})")
        return lines
