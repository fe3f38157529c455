"""Detects a flood: messages that arrive faster than they can be pushed."""

from __future__ import annotations

import time

WINDOW_NS = 1_000_000_000  # a flood lasts for whole windows; it has pauses
SHARE = 0.25  # of the steps of a window that reach their limit in a flood


class Flood:
    """Whether messages arrive faster than they can be pushed.

    A flood begins with a step that reaches its time limit. It ends after a window in which few steps reached theirs: in
    normal operation a step reaches the short limit of a flood now and then, for example with two large images. A flood
    with pauses, of a reliable publisher that waits while its queue is full, is one flood.

    Attributes:
        active: whether a flood is going on.
    """

    def __init__(self) -> None:
        self.active = False
        self._begun_ns = 0
        self._steps = self._limited = 0

    def add(self, limited: bool) -> None:
        """Count a step; `limited`: whether it reached its time limit."""
        now_ns = time.monotonic_ns()
        if not self.active:
            if limited:
                self.active, self._begun_ns, self._steps, self._limited = True, now_ns, 0, 0
            return
        self._steps += 1
        self._limited += limited
        if now_ns - self._begun_ns >= WINDOW_NS:
            self.active = self._limited >= SHARE * self._steps
            self._begun_ns, self._steps, self._limited = now_ns, 0, 0
