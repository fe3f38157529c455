"""Prefetches messages on a thread, so that decompression runs on a second core during the conversion."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator

from robocache_ros.bags.source import RawMessage

BATCH_BYTES = 1 << 20
BATCH_MESSAGES = 256
BATCHES = 8  # maximum number of prefetched batches; a batch of one large message counts as several

_Item = list[RawMessage] | BaseException | None


def read_ahead(messages: Iterable[RawMessage]) -> Iterator[RawMessage]:
    """Yield the messages in the same order, read a few MB ahead. An error is raised at its original position."""
    waiting: queue.Queue[tuple[_Item, int]] = queue.Queue()
    space = threading.Semaphore(BATCHES)
    stopped = threading.Event()

    def put(item: _Item, nbytes: int = 0) -> bool:
        units = min(1 + nbytes // (2 * BATCH_BYTES), BATCHES)
        for _ in range(units):
            while not space.acquire(timeout=0.1):
                if stopped.is_set():
                    return False
        waiting.put((item, units))
        return not stopped.is_set()

    def read() -> None:
        try:
            batch: list[RawMessage] = []
            size = 0
            for message in messages:
                batch.append(message)
                size += len(message.data)
                if size >= BATCH_BYTES or len(batch) >= BATCH_MESSAGES:
                    if not put(batch, size):
                        return
                    batch, size = [], 0
            put(batch)
            put(None)
        except BaseException as error:  # raised again in the consumer thread
            put(error)

    thread = threading.Thread(target=read, name="read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, units = waiting.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield from item
            del item
            space.release(units)
    finally:
        stopped.set()
        thread.join()
