"""The thread that pushes messages and publishes ticks, and the statistics of its ticks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine import Frames
from robocache_ros.nodes.clock_sources import ClockSource
from robocache_ros.nodes.middleware import process
from robocache_ros.ops.resample.selection import HELD, NONE

SPIN_NS = 80_000  # the thread spins for this long before a due time: a sleep ends some tens of microseconds late


class TickStats:
    """Counts of published ticks, their lateness, and the ticks at which each stream was held or invalid."""

    def __init__(self, streams: int) -> None:
        self.emitted = 0
        self.held: NDArray[np.int64] = np.zeros(streams, np.int64)
        self.invalid: NDArray[np.int64] = np.zeros(streams, np.int64)
        self.newest_tick_ns: int | None = None
        self.newest_valid: NDArray[np.uint8] = np.zeros(streams, np.uint8)
        self.newest_age_ns: NDArray[np.int64] = np.zeros(streams, np.int64)
        self._lateness_ns: list[int] = []

    def add(self, frames: Frames, lateness_ns: int | None) -> None:
        """Count the ticks of some frames; `lateness_ns`: publication minus due time, None without a due time."""
        self.emitted += len(frames)
        self.held += (frames.valid == HELD).sum(axis=0)
        self.invalid += (frames.valid == NONE).sum(axis=0)
        self.newest_tick_ns = int(frames.ticks_ns[-1])
        self.newest_valid = frames.valid[-1]
        self.newest_age_ns = frames.age_ns[-1]
        if lateness_ns is not None:
            self._lateness_ns.append(lateness_ns)
            del self._lateness_ns[:-10_000]

    def read_lateness_ms(self) -> tuple[float, float, float] | None:
        """Median, 99th percentile and maximum since the last call, in ms; None if no tick had a due time."""
        lateness, self._lateness_ns = self._lateness_ns, []
        if not lateness:
            return None
        lateness.sort()  # np.percentile imports a module at its first call, which fails without file descriptors
        p50, p99, most = (lateness[round(share * (len(lateness) - 1))] / 1e6 for share in (0.5, 0.99, 1.0))
        return p50, p99, most


class TickLoop:
    """Runs a clock source in a thread, so that no service, parameter or diagnostics callback delays a tick.

    Args:
        clock_source: pushes the messages that have arrived, and yields the due ticks.
        publish: called with the frames of due ticks, and with a function that waits until a tick is due.
        failed: called once, from the thread, if it ends with an error.
        stats: counts the ticks.
        delay_ns: a tick is due at its time + delay; None: immediately (eager, sim time).
        lead_ns: a tick is computed at most this long before it is due.
    """

    def __init__(
        self,
        clock_source: ClockSource,
        publish: Callable[[Frames, Callable[[int], None]], None],
        failed: Callable[[Exception], None],
        stats: TickStats,
        delay_ns: int | None,
        lead_ns: int = 0,
    ) -> None:
        self._clock_source = clock_source
        self._publish = publish
        self._failed = failed
        self._stats = stats
        self._delay_ns = delay_ns
        self._lead_ns = lead_ns
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="robocache-ticks", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        process.freeze_gc()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and return when it has ended."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self._clock_source.destroy()
        process.unfreeze_gc()

    def _run(self) -> None:
        process.reduce_timer_slack()
        try:
            while not self._stopped.is_set():
                for frames in self._clock_source.step():
                    if len(frames):
                        self._publish(frames, self._wait_until_due)
                        self._stats.add(frames, self._lateness_ns(frames))
                self._clock_source.wait()
        except Exception as error:
            if not self._stopped.is_set():
                self._failed(error)

    def _wait_until_due(self, tick_ns: int) -> None:
        """Return when a tick is due; immediately if that time has passed, or if there is none."""
        if self._delay_ns is None:
            return
        # The wait uses the monotonic clock and is limited by the lead: setting back the wall clock does not block it.
        left_ns = min(tick_ns + self._delay_ns - time.time_ns(), self._lead_ns)
        end_ns = time.monotonic_ns() + left_ns
        if left_ns > SPIN_NS:
            time.sleep((left_ns - SPIN_NS) / 1e9)
        while time.monotonic_ns() < end_ns:
            pass

    def _lateness_ns(self, frames: Frames) -> int | None:
        if self._delay_ns is None:
            return None
        return time.time_ns() - int(frames.ticks_ns[-1]) - self._delay_ns
