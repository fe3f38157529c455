"""The samples of a stream that is faster than the ticks: each tick uses all samples since the previous tick."""

from __future__ import annotations

from robocache_ros.engine import tick_grid
from robocache_ros.engine.backends.interface import Backend, Selections
from robocache_ros.engine.stream_samples import Int64, StreamSamples
from robocache_ros.ops.window.window_selection import select_window
from robocache_ros.spec import StreamSpec


class WindowSamples(StreamSamples):
    """The index of a window's samples, and the selection from it.

    Args:
        spec: the stream.
        slots: number of samples to keep.
        unbounded: add slots when all are in use instead of dropping the oldest sample.
        rate_hz: ticks per second.
        ages: columns of this window's sample ages, among those of all windows.

    Attributes:
        window_overflow: samples since the previous tick that exceed the size of the window, which uses the newest ones.
    """

    def __init__(self, spec: StreamSpec, slots: int, unbounded: bool, rate_hz: int, ages: slice) -> None:
        super().__init__(spec, slots, unbounded)
        self.reach_ns = tick_grid.period_ns(rate_hz)
        self.window_overflow = 0
        self._rate_hz, self._ages = rate_hz, ages

    @property
    def lost(self) -> dict[str, int]:
        """The losses of any stream, and `window_overflow`."""
        return {**super().lost, "window_overflow": self.window_overflow}

    def select(
        self, backend: Backend, ticks: Int64, deadlines: Int64 | None, selections: Selections, number: int
    ) -> None:
        """Fill column `number` of the selections, and the stream's window."""
        starts = tick_grid.ticks_before(ticks, self._rate_hz)
        limits = (self.spec.samples, self.index.arrivals_ns, deadlines)
        window = select_window(self.index.stamps_ns, starts, ticks, *limits)
        self.window_overflow += window.dropped
        selections.set_window(number, window, self.index.slots, self._ages)
