"""Read ahead on a thread, so that decompression runs on a second core while the conversion works."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator

from robocache_ros.bags.source import RawMessage

BATCH_BYTES = 1 << 20
BATCH_MESSAGES = 256
BATCHES = 8  # read ahead at most

_Item = list[RawMessage] | BaseException | None


def read_ahead(messages: Iterable[RawMessage]) -> Iterator[RawMessage]:
    """The same messages in the same order, read a few MB ahead; an error is raised where it happened."""
    waiting: queue.Queue[_Item] = queue.Queue(BATCHES)
    stopped = threading.Event()

    def put(item: _Item) -> bool:
        while not stopped.is_set():
            try:
                waiting.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def read() -> None:
        try:
            batch: list[RawMessage] = []
            size = 0
            for message in messages:
                batch.append(message)
                size += len(message.data)
                if size >= BATCH_BYTES or len(batch) >= BATCH_MESSAGES:
                    if not put(batch):
                        return
                    batch, size = [], 0
            put(batch)
            put(None)
        except BaseException as error:  # raised again in the thread that reads the result
            put(error)

    thread = threading.Thread(target=read, name="read-ahead", daemon=True)
    thread.start()
    try:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield from item
    finally:
        stopped.set()
        thread.join()
