"""Translates stamps of a device with its own clock to the host's clock, from the sequence of (stamp, arrival) only.

A message arrives after its stamp by the offset between the clocks and a delay that is never negative. The fastest
messages are therefore on the lower convex hull of the points (stamp, arrival). The line through the edge of the hull at
the middle of the observed time gives the offset and the skew:

    Moon, Skelly, Towsley: Estimation and Removal of Clock Skew from Network Delay Measurements. INFOCOM 1999.

The minimum delay of the connection cannot be observed: it is part of the offset. `latency_ms` accounts for it.
All arithmetic uses integers, so that the result is the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from robocache_ros.units import NS_PER_MS, NS_PER_S

JUMP_NS = NS_PER_S // 2  # a larger step of a clock is a jump; a smaller one is forgotten with the samples before it
SPAN_NS = 60 * NS_PER_S  # a translation uses one to two spans of samples: temperature changes the skew in minutes
QUARTZ_PPM = 200  # the clocks of devices differ by less
EVIDENCE_NS = 10 * NS_PER_MS  # a larger skew is used once it has moved the clock by this much: simulated time
MAX_RATE_RATIO = 8  # maximum ratio between the rates of the device's clock and the host's, in either direction
SLOW_NS = 2 * NS_PER_S  # the translation restarts if every arrival is more than JUMP_NS behind it for this long
OVERTAKEN_NS = 10 * NS_PER_S  # a stamp that is further behind the newest one is not a late message
CONFIRMING_SAMPLES = 3  # samples in a row beyond a jump that confirm it; one or two are damaged or out of order
MAX_VERTICES = 512

Point = tuple[int, int]  # stamp and arrival in ns


class Line(NamedTuple):
    """Arrivals of messages without delay: a line through (x, y), with a rise of dy over dx > 0."""

    x: int
    y: int
    dx: int
    dy: int

    def at(self, stamp_ns: int) -> int:
        """The host's time at a stamp, rounded down."""
        return self.y + (stamp_ns - self.x) * self.dy // self.dx

    @property
    def skew_ppm(self) -> float:
        """How much faster the host's clock runs than the device's."""
        return 1e6 * (self.dy - self.dx) / self.dx


class LowerHull:
    """The lower convex hull of points with increasing stamps: amortized O(1) for a point, O(log n) for its line."""

    def __init__(self) -> None:
        self._points: list[Point] = []

    def __len__(self) -> int:
        return len(self._points)

    @property
    def span_ns(self) -> int:
        """Time from the first stamp to the last."""
        return self._points[-1][0] - self._points[0][0] if self._points else 0

    def add(self, stamp_ns: int, arrival_ns: int) -> None:
        """Add a point to the right of all others."""
        points = self._points
        while len(points) > 1:
            (x0, y0), (x1, y1) = points[-2], points[-1]
            if (y1 - y0) * (stamp_ns - x1) < (arrival_ns - y1) * (x1 - x0):
                break
            points.pop()
        points.append((stamp_ns, arrival_ns))
        if len(points) > MAX_VERTICES:
            del points[1:-2:2]

    def line(self) -> Line:
        """The line below all points with the smallest mean distance to them and a plausible skew.

        It is the edge at the middle of the span. If its skew is too large for a quartz clock and not yet evident, the
        line is the closest one below all points with the largest plausible skew.
        """
        points = self._points
        low, high = 0, len(points) - 1
        if low == high:
            return Line(*points[0], 1, 1)
        middle = points[0][0] + points[-1][0]  # twice the middle
        while high - low > 1:
            at = (low + high) // 2
            low, high = (at, high) if 2 * points[at][0] <= middle else (low, at)
        (x0, y0), (x1, y1) = points[low], points[high]
        dx, dy = x1 - x0, y1 - y0
        moved = abs(dy - dx) * self.span_ns // (2 * dx)
        if moved > EVIDENCE_NS:
            flattest, steepest = (MAX_RATE_RATIO, 1), (1, MAX_RATE_RATIO)
        else:
            flattest, steepest = (10**6, 10**6 - QUARTZ_PPM), (10**6, 10**6 + QUARTZ_PPM)
        if dy * flattest[0] < flattest[1] * dx:
            return self._touching(*flattest)
        if dy * steepest[0] > steepest[1] * dx:
            return self._touching(*steepest)
        return Line(x0, y0, dx, dy)

    def _touching(self, dx: int, dy: int) -> Line:
        """The highest line of a slope below all points: through the vertex between flatter and steeper edges."""
        points = self._points
        low, high = 0, len(points) - 1
        while low < high:
            at = (low + high) // 2
            (x0, y0), (x1, y1) = points[at], points[at + 1]
            low, high = (at + 1, high) if (y1 - y0) * dx < dy * (x1 - x0) else (low, at)
        return Line(*points[low], dx, dy)


@dataclass
class DeviceClock:
    """Translates the stamps of one stream as they arrive; the result depends only on the samples so far.

    A translated stamp is never after its arrival. Translated stamps increase where the stamps increase, as far as the
    arrivals allow it. Memory is bounded. After a jump of either clock (a device restarts, a simulation resets), the
    translation restarts from the first sample after the jump.

    Attributes:
        jumps: number of jumps of the device's clock, or of its translation by more than 0.5 s.
        line: from the device's clock to the host's, by the samples so far; None before the first sample.
        newest_ns: stamp of the newest sample on the host's clock.
    """

    jumps: int = 0
    line: Line | None = None
    newest_ns: int = 0
    _hull: LowerHull = field(default_factory=LowerHull)
    _next: LowerHull = field(default_factory=LowerHull)  # starts when the hull spans SPAN_NS, replaces it at twice that
    _last: Point | None = None  # stamp and arrival of the newest sample
    _slow_ns: int | None = None  # since this arrival, every sample was late by more than JUMP_NS
    _odd: int = 0  # samples in a row beyond a jump
    _counts_for: DeviceClock | None = None

    @property
    def offset_ns(self) -> int | None:
        """The host's time minus the device's time, at the newest sample; None before the first sample."""
        return self.line.at(self._last[0]) - self._last[0] if self.line and self._last else None

    @property
    def skew_ppm(self) -> float:
        """How much faster the host's clock runs than the device's."""
        return self.line.skew_ppm if self.line else 0.0

    def another(self) -> DeviceClock:
        """A clock for other samples, whose jumps this one counts too."""
        return DeviceClock(_counts_for=self)

    def restart(self) -> None:
        """Discard all samples: the host's clock has jumped."""
        self._hull, self._next = LowerHull(), LowerHull()
        self.line = self._last = self._slow_ns = None
        self._odd = 0

    def translate(self, stamp_ns: int, arrival_ns: int) -> int:
        """The host's time of a stamp, from this sample and the earlier ones.

        Args:
            stamp_ns: on the device's clock.
            arrival_ns: on the host's clock, in the order of arrival.
        """
        if self._last and self._jumped(stamp_ns, arrival_ns):
            self.jumps += 1
            if self._counts_for:
                self._counts_for.jumps += 1
            self.restart()
        if self._last and self.line and (self._odd or stamp_ns <= self._last[0]):
            if stamp_ns > self._last[0]:
                return arrival_ns
            older = self.line.at(stamp_ns) if stamp_ns < self._last[0] else self.newest_ns
            return min(older, self.newest_ns, arrival_ns)
        if self.line is None or self._slow_ns is None:  # a slow sample is delayed, or the first ones after a jump
            self._add(stamp_ns, arrival_ns)
            self.line = self._hull.line()
        found = self.line.at(stamp_ns)
        if self._last:
            found = max(found, self.newest_ns + 1)
        self.newest_ns = min(found, arrival_ns)
        self._last = (stamp_ns, arrival_ns)
        return self.newest_ns

    def _add(self, stamp_ns: int, arrival_ns: int) -> None:
        if self._hull.span_ns >= 2 * SPAN_NS:
            self._hull, self._next = self._next, LowerHull()
        self._hull.add(stamp_ns, arrival_ns)
        if self._hull.span_ns >= SPAN_NS:
            self._next.add(stamp_ns, arrival_ns)

    def _jumped(self, stamp_ns: int, arrival_ns: int) -> bool:
        """Whether one of the clocks jumped before this sample; counts the samples that indicate a jump."""
        assert self._last
        assert self.line
        late_ns = arrival_ns - self.line.at(stamp_ns)
        self._odd = self._odd + 1 if stamp_ns < self._last[0] - OVERTAKEN_NS or late_ns < -JUMP_NS else 0
        if late_ns <= JUMP_NS:
            self._slow_ns = None
        elif self._slow_ns is None:
            self._slow_ns = arrival_ns
        slow = self._slow_ns is not None and arrival_ns - self._slow_ns > SLOW_NS
        return self._odd == CONFIRMING_SAMPLES or slow or arrival_ns < self._last[1] - JUMP_NS
