"""The newest frame, and the threads and event loops that wait for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

from robocache_ros.engine.fused_frame import FusedFrame
from robocache_ros.errors import RoboCacheError
from robocache_ros.nodes.middleware.shutdown import ended_by_signals
from robocache_ros.units import NS_PER_MS

POLL_S = 0.1  # period at which a waiting thread checks `ended`; a shutdown by a signal sends no notification
REPORT_S = 5.0  # period at which a thread that waits for frames logs what it waits for


class Mailbox:
    """Keeps the newest frame; threads and event loops wait for it.

    Args:
        ended: whether no more frames are delivered; `close` has the same effect.
        report: called every `REPORT_S` while a thread waits without an end or in a loop.
        late: the error for a loop, given its `timeout_s`.

    Attributes:
        overtaken: frames that were replaced by a newer frame before they were read.
    """

    def __init__(
        self,
        ended: Callable[[], bool],
        report: Callable[[], object] = lambda: None,
        late: Callable[[float], RoboCacheError] = lambda timeout_s: RoboCacheError(f"no tick within {timeout_s:g} s"),
    ) -> None:
        self.overtaken = 0
        self._ended = ended
        self._report = report
        self._late = late
        self._closed = False
        self._changed = threading.Condition()
        self._newest: FusedFrame | None = None
        self._error = ""
        self._count = 0  # frames put so far: ticks do not order them, because a clock may jump back
        self._seen = 0  # the count at the last read
        self._loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def closed(self) -> bool:
        """Whether no more frames are delivered."""
        return self._closed or self._ended()

    def put(self, frame: FusedFrame, *, seen: bool = False) -> None:
        """Replace the newest frame; `seen` if it is also delivered in another way, such as a callback."""
        with self._changed:
            self.overtaken += self._seen < self._count
            self._newest = frame
            self._count += 1
            if seen:
                self._seen = self._count
            self.notify()

    def set_error(self, error: str) -> None:
        """Set the RoboCacheError that everyone who waits for a frame gets; empty: none."""
        with self._changed:
            self._error = error
            self.notify()

    def notify(self) -> None:
        """Wake all waiting threads and event loops, which then check their conditions."""
        with self._changed:
            self._changed.notify_all()
            for loop, event in self._loops:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        """Deliver no more frames; waiting calls return."""
        with self._changed:
            self._closed = True
            self.notify()

    def wait_for(self, condition: Callable[[], object], timeout_s: float | None, *, loop: bool = False) -> bool:
        """Wait for a condition that `notify` signals; returns whether it is met. None: no timeout, until `closed`.

        Args:
            condition: checked after every notification.
            timeout_s: seconds to wait at most.
            loop: whether the wait is one of a loop, and therefore reported.
        """
        begun = time.monotonic()
        reports = 0
        while True:
            waited = time.monotonic() - begun
            with self._changed:
                if self._error:
                    raise RoboCacheError(self._error)
                if condition() or self.closed or (timeout_s is not None and waited >= timeout_s):
                    return bool(condition())
                if waited < (reports + 1) * REPORT_S or not (loop or timeout_s is None):
                    self._changed.wait(POLL_S if timeout_s is None else min(POLL_S, timeout_s - waited))
                    continue
            reports += 1
            self._report()

    def latest(
        self, timeout_s: float | None, other_than_ns: int | None, max_age_ms: float | None = None
    ) -> FusedFrame | None:
        """The newest frame, if it is of another tick and not older; None at the timeout."""

        def there() -> bool:
            frame = self._newest
            return frame is not None and frame.tick_ns != other_than_ns and _is_fresh(frame, max_age_ms)

        with self._changed:
            if not self.wait_for(there, timeout_s):
                return None
            self._seen = self._count
            return self._newest

    def frames(self, timeout_s: float | None, max_age_ms: float | None) -> Iterator[FusedFrame]:
        """Each newest frame once, until there are no more or a signal ends the loop.

        Raises:
            RoboCacheError: `timeout_s` has passed without a frame that is at most `max_age_ms` old.
        """
        given = 0
        with ended_by_signals() as signalled:
            while True:
                with self._changed:
                    there = self.wait_for(
                        lambda: signalled() or self._is_new(given, max_age_ms),  # noqa: B023  (called before it changes)
                        timeout_s,
                        loop=True,
                    )
                    if self.closed or signalled():
                        return
                    if not there and timeout_s is not None:
                        raise self._late(timeout_s)
                    given = self._seen = self._count
                    frame = self._newest
                assert frame
                yield frame

    async def frames_async(self, timeout_s: float | None, max_age_ms: float | None) -> AsyncIterator[FusedFrame]:
        """The same for an event loop."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        with self._changed:
            self._loops.append(entry)
        given = 0
        begun = reported = time.monotonic()
        try:
            with ended_by_signals() as signalled:
                while not self.closed and not signalled():
                    with self._changed:
                        if self._error:
                            raise RoboCacheError(self._error)
                        frame = self._newest if self._is_new(given, max_age_ms) else None
                        if frame:
                            given = self._seen = self._count
                    now = time.monotonic()
                    if frame:
                        yield frame
                        begun = reported = time.monotonic()
                        continue
                    if timeout_s is not None and now - begun >= timeout_s:
                        raise self._late(timeout_s)
                    if now - reported >= REPORT_S:
                        reported = now
                        self._report()
                    with suppress(asyncio.TimeoutError):
                        left_s = POLL_S if timeout_s is None else begun + timeout_s - now
                        await asyncio.wait_for(event.wait(), min(POLL_S, left_s))
                    event.clear()
        finally:
            with self._changed:
                self._loops.remove(entry)

    def _is_new(self, given: int, max_age_ms: float | None) -> bool:
        frame = self._newest
        return self._count > given and frame is not None and _is_fresh(frame, max_age_ms)


def _is_fresh(frame: FusedFrame, max_age_ms: float | None) -> bool:
    """Whether a tick is at most this far from the clock; after a jump back of the clock it may be in the future."""
    return max_age_ms is None or abs(frame.tick_age_ns) <= max_age_ms * NS_PER_MS
