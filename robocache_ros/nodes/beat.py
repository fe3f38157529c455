"""The thread that takes messages in and sends ticks out, and what it measures of itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine import Frames
from robocache_ros.nodes import process
from robocache_ros.nodes.drivers import Driver
from robocache_ros.ops.select import HELD, NONE

SPIN_NS = 80_000  # before a beat: a sleep ends some tens of microseconds after it was asked to


class BeatStats:
    """Ticks sent, how evenly, and each stream's share of them."""

    def __init__(self, streams: int) -> None:
        self.emitted = 0
        self.held: NDArray[np.int64] = np.zeros(streams, np.int64)
        self.invalid: NDArray[np.int64] = np.zeros(streams, np.int64)
        self.newest_tick_ns: int | None = None
        self.newest_valid: NDArray[np.uint8] = np.zeros(streams, np.uint8)
        self._lateness_ns: list[int] = []

    def add(self, frames: Frames, lateness_ns: int | None) -> None:
        """Count the ticks of some frames; `lateness_ns`: publication against the beat, where there is one."""
        self.emitted += len(frames)
        self.held += (frames.valid == HELD).sum(axis=0)
        self.invalid += (frames.valid == NONE).sum(axis=0)
        self.newest_tick_ns = int(frames.ticks_ns[-1])
        self.newest_valid = frames.valid[-1]
        if lateness_ns is not None:
            self._lateness_ns.append(lateness_ns)
            del self._lateness_ns[:-10_000]

    def read_lateness_ms(self) -> tuple[float, float, float] | None:
        """Median, 99th percentile and maximum since the last call, in ms; None without one."""
        lateness, self._lateness_ns = self._lateness_ns, []
        if not lateness:
            return None
        p50, p99, most = np.percentile(np.array(lateness) / 1e6, [50, 99, 100]).tolist()
        return p50, p99, most


class Beat:
    """Runs a driver in a thread of its own, so that no service, parameter or diagnostics callback delays a tick.

    Args:
        driver: what has come in and which ticks are due.
        publish: called with the frames of due ticks, and with what to call with a tick's time before it goes out.
        failed: called from the thread, once, where it ends with an error.
        stats: what to count in.
        delay_ns: the beat is tick + delay; None where there is none to keep (eager, sim time).
        lead_ns: a tick is made at most this long before its beat.
    """

    def __init__(
        self,
        driver: Driver,
        publish: Callable[[Frames, Callable[[int], None]], None],
        failed: Callable[[Exception], None],
        stats: BeatStats,
        delay_ns: int | None,
        lead_ns: int = 0,
    ) -> None:
        self._driver = driver
        self._publish = publish
        self._failed = failed
        self._stats = stats
        self._delay_ns = delay_ns
        self._lead_ns = lead_ns
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="robocache-beat", daemon=True)

    def start(self) -> None:
        """Begin."""
        process.settle()
        self._thread.start()

    def stop(self) -> None:
        """End, and wait until it has ended."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self._driver.destroy()
        process.unsettle()

    def _run(self) -> None:
        process.be_punctual()
        try:
            while not self._stopped.is_set():
                for frames in self._driver.step():
                    if len(frames):
                        self._publish(frames, self._hold)
                        self._stats.add(frames, self._lateness_ns(frames))
                self._driver.wait()
        except Exception as error:
            if not self._stopped.is_set():
                self._failed(error)

    def _hold(self, tick_ns: int) -> None:
        """Return at the beat of a tick that was made ahead of it; at once where it is past, or there is none."""
        if self._delay_ns is None:
            return
        # By the monotonic clock and no longer than the lead: the node does not hang if the wall clock is set back.
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
