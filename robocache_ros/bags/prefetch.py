"""Prefetches messages on a thread, so that decompression runs on a second core during the conversion."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError

from robocache_ros.bags.source import RawMessage

BATCH_BYTES = 1 << 20
BATCH_MESSAGES = 256
BATCHES = 8  # maximum number of prefetched batches; a batch of one large message counts as several

_Item = list[RawMessage] | BaseException | None


class MessageQueue:
    """Messages from one thread to another, a few MB at most."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[tuple[_Item, int]] = queue.Queue()
        self._space = threading.Semaphore(BATCHES)
        self._stopped = threading.Event()
        self._batch: list[RawMessage] = []
        self._nbytes = 0

    def add(self, message: RawMessage) -> bool:
        """Add a message; wait while the queue is full. Returns false after `stop`."""
        self._batch.append(message)
        self._nbytes += len(message.data)
        if self._nbytes >= BATCH_BYTES or len(self._batch) >= BATCH_MESSAGES:
            return self._flush()
        return True

    def end(self) -> bool:
        """Add the end of the messages; others may follow. Returns false after `stop`."""
        return self._flush() and self._put(None)

    def fail(self, error: BaseException) -> None:
        """Add an error, which is raised in the thread that reads."""
        self._waiting.put((error, 0))

    def stop(self) -> None:
        """Transfer no more messages: wake up both threads."""
        self._stopped.set()
        self.fail(CancelledError())

    def __iter__(self) -> Iterator[RawMessage]:
        """Yield the messages up to the next end.

        Errors:
            CancelledError: `stop` was called.
        """
        while True:
            item, units = self._waiting.get()
            if self._stopped.is_set():
                raise CancelledError
            if isinstance(item, BaseException):
                raise item
            yield from item or ()
            ended = item is None
            del item
            self._space.release(units)
            if ended:
                return

    def _flush(self) -> bool:
        batch, nbytes = self._batch, self._nbytes
        self._batch, self._nbytes = [], 0
        return self._put(batch, nbytes)

    def _put(self, item: _Item, nbytes: int = 0) -> bool:
        units = min(1 + nbytes // (2 * BATCH_BYTES), BATCHES)
        for _ in range(units):
            while not self._space.acquire(timeout=0.1):
                if self._stopped.is_set():
                    return False
        self._waiting.put((item, units))
        return not self._stopped.is_set()


def read_ahead(messages: Iterable[RawMessage]) -> Iterator[RawMessage]:
    """Yield the messages in the same order, read a few MB ahead. An error is raised at its original position."""
    ahead = MessageQueue()

    def read() -> None:
        try:
            for message in messages:
                if not ahead.add(message):
                    return
            ahead.end()
        except BaseException as error:  # raised again in the consumer thread
            ahead.fail(error)

    thread = threading.Thread(target=read, name="read-ahead", daemon=True)
    thread.start()
    try:
        yield from ahead
    finally:
        ahead.stop()
        thread.join()
