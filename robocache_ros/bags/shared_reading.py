"""Read a recording once for several users, ahead in a thread."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from robocache_ros.bags.clocks import Span
from robocache_ros.bags.reader import Bag
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


class Read(NamedTuple):
    """Messages that a run reads: those of its topics with start_ns <= log time < stop_ns."""

    topics: frozenset[str]
    start_ns: int
    stop_ns: int
    counted: bool = True  # in the statistics of the topics


ReadMessages: TypeAlias = "Callable[[Read], Iterable[RawMessage]]"


def read_alone(bag: Bag) -> ReadMessages:
    """Return the function that reads from a recording, a few MB ahead."""
    return lambda read: read_ahead(bag.messages(read.topics, read.start_ns, read.stop_ns, views=True))


def reads_around(
    span: Span, within: tuple[int, int], reach_ns: int, topics: frozenset[str], latched: frozenset[str]
) -> list[Read]:
    """Return what is read for the ticks of a part of a recording: its messages, and those around it.

    Args:
        span: of the part.
        within: range of log times without a time jump; nothing outside of it is read.
        reach_ns: how far around the part messages can affect its ticks.
        topics: of the run.
        latched: those of them whose messages of any age can affect ticks.
    """
    low_ns, high_ns = within
    near_ns, end_ns = max(low_ns, span.start_ns - reach_ns), min(high_ns, span.stop_ns + reach_ns)
    reads = (
        Read(latched, low_ns, near_ns, counted=False),
        Read(topics, near_ns, span.start_ns, counted=False),
        Read(topics, span.start_ns, span.stop_ns),
        Read(topics, span.stop_ns, end_ns, counted=False),
    )
    return [read for read in reads if read.start_ns < read.stop_ns]


class SharedReading:
    """Gives each of several threads the messages that it would read on its own, in the same order.

    Each thread has a queue of a few MB. The recording is read as fast as the slowest thread takes its messages.

    Args:
        bag: the recording.
        wanted: what each thread reads: ranges that follow each other.
    """

    def __init__(self, bag: Bag, wanted: Sequence[Sequence[Read]]) -> None:
        self._bag = bag
        self._wanted = wanted
        self._queues = [MessageQueue() for _ in wanted]

    def messages(self, number: int) -> Iterator[RawMessage]:
        """Yield the messages of the next read of a thread, given its number."""
        return iter(self._queues[number])

    def leave(self, number: int) -> None:
        """Read no more messages for a thread; it gets a CancelledError if it waits for one."""
        self._queues[number].stop()

    def run(self) -> None:
        """Read all messages, for the threads that do not leave. Each of them gets the error if it fails."""
        left: set[int] = set()
        try:
            edges = {edge for reads in self._wanted for read in reads for edge in (read.start_ns, read.stop_ns)}
            for start_ns, stop_ns in pairwise(sorted(edges)):
                takers = self._takers(start_ns, stop_ns)
                for message in self._bag.messages(takers, start_ns, stop_ns, views=True) if takers else ():
                    for number in takers[message.topic]:
                        if number not in left and not self._queues[number].add(message):
                            left.add(number)
                            if len(left) == len(self._queues):
                                return
                for number, reads in enumerate(self._wanted):
                    if any(read.stop_ns == stop_ns for read in reads):
                        self._queues[number].end()
        except BaseException as error:  # raised again in the threads
            for queue in self._queues:
                queue.fail(error)

    def _takers(self, start_ns: int, stop_ns: int) -> dict[str, list[int]]:
        """Return the threads that read a topic in a range in which no read starts or ends, by topic."""
        takers: defaultdict[str, list[int]] = defaultdict(list)
        for number, reads in enumerate(self._wanted):
            for read in reads:
                if read.start_ns <= start_ns and stop_ns <= read.stop_ns:
                    for topic in read.topics:
                        takers[topic].append(number)
        return takers
