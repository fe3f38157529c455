"""The newest frame, and the threads and event loops that wait for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

from robocache_ros.engine.fused_frame import FusedFrame

POLL_S = 0.1  # period at which a waiting thread checks `ended`; a shutdown by a signal sends no notification


class Mailbox:
    """Keeps the newest frame; threads and event loops wait for it.

    Args:
        ended: whether no more frames are delivered; `close` has the same effect.

    Attributes:
        overtaken: frames that were replaced by a newer frame before they were read.
    """

    def __init__(self, ended: Callable[[], bool]) -> None:
        self.overtaken = 0
        self._ended = ended
        self._closed = False
        self._changed = threading.Condition()
        self._newest: FusedFrame | None = None
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

    def wait_for(self, condition: Callable[[], object], timeout_s: float | None) -> bool:
        """Wait for a condition that `notify` signals; returns whether it is met. None: no timeout, until `closed`."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not condition() and not self.closed:
                left = POLL_S if end is None else min(POLL_S, end - time.monotonic())
                if left <= 0:
                    break
                self._changed.wait(left)
            return bool(condition())

    def latest(self, timeout_s: float | None, other_than_ns: int | None) -> FusedFrame | None:
        """The newest frame, if it is of another tick; None at the timeout."""

        def there() -> bool:
            frame = self._newest
            return frame is not None and (other_than_ns is None or frame.tick_ns != other_than_ns)

        with self._changed:
            if not self.wait_for(there, timeout_s):
                return None
            self._seen = self._count
            return self._newest

    def __iter__(self) -> Iterator[FusedFrame]:
        """Each newest frame once, until there are no more."""
        given = 0
        while True:
            with self._changed:
                self.wait_for(lambda: self._count > given, None)  # noqa: B023  (called before `given` changes)
                if self.closed or self._newest is None:
                    return
                given = self._seen = self._count
                frame = self._newest
            yield frame

    async def __aiter__(self) -> AsyncIterator[FusedFrame]:
        """Each newest frame once, until there are no more."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        with self._changed:
            self._loops.append(entry)
        given = 0
        try:
            while not self.closed:
                with self._changed:
                    frame = self._newest if self._count > given else None
                    if frame:
                        given = self._seen = self._count
                if frame:
                    yield frame
                    continue
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(event.wait(), POLL_S)
                event.clear()
        finally:
            with self._changed:
                self._loops.remove(entry)
