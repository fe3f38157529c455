"""Messages of several topics in the order of their arrival; a flooded topic does not delay the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from robocache_ros.nodes.subscriptions.raw_subscriber import ReceivedMessage
from robocache_ros.nodes.subscriptions.topics import Topic

BATCH = 32  # messages read from a queue in a row; a topic of 1 kHz has 20 in a tick at 50 Hz

ReadQueue: TypeAlias = "Callable[[int], Sequence[tuple[Topic, ReceivedMessage]]]"


class _Entry(NamedTuple):
    arrival_ns: int
    queue: int
    topic: Topic
    message: ReceivedMessage


class Arrivals:
    """Merges queues of messages.

    The queues are read in turn, `BATCH` messages at a time. A queue that returned `BATCH` messages may contain more,
    which may be older than messages of other queues. Messages that are newer than its last one therefore wait until it
    is empty, or until the time limit.

    Args:
        queues: each returns up to a number of its messages, oldest first.

    Attributes:
        flooded: whether the last `read` reached its time limit.
    """

    def __init__(self, queues: Sequence[ReadQueue]) -> None:
        self._queues = queues
        self._held: list[_Entry] = []
        self.flooded = False

    def read(
        self, earliest_ns: Callable[[], int], limit_ns: int, grace_ns: int
    ) -> Iterator[tuple[int, Topic, ReceivedMessage]]:
        """The messages that have arrived, with their arrival in ns, in order; at least one, if there is one.

        Args:
            earliest_ns: lower bound for arrivals, because the tick of that time has been computed.
            limit_ns: time limit after which messages of queues that are not empty are left for the next call.
            grace_ns: additional time after which the messages of all queues are left for the next call.
        """
        end_ns = time.monotonic_ns() + limit_ns
        self.flooded = False
        while True:
            full = self._fill()
            last_ns = [max(e.arrival_ns for e in self._held if e.queue == queue) for queue in full]
            horizon_ns = min(last_ns, default=None)
            ready = self._held
            if horizon_ns is not None:
                ready = [entry for entry in self._held if entry.arrival_ns <= horizon_ns]
            self._held = self._held[len(ready) :]
            for index, (arrival_ns, _, topic, message) in enumerate(ready):
                if index and time.monotonic_ns() > end_ns:
                    self._held = ready[index:] + self._held
                    yield from self._read_quiet(full, earliest_ns, end_ns + grace_ns)
                    return
                yield max(arrival_ns, earliest_ns()), topic, message
            if not full:
                return
            if time.monotonic_ns() > end_ns:
                yield from self._read_quiet(full, earliest_ns, end_ns + grace_ns)
                return

    def _read_quiet(
        self, full: set[int], earliest_ns: Callable[[], int], end_ns: int
    ) -> Iterator[tuple[int, Topic, ReceivedMessage]]:
        """The messages of the queues that are empty now; the others are left for the next call."""
        self.flooded = True
        ready = [entry for entry in self._held if entry.queue not in full]
        self._held = [entry for entry in self._held if entry.queue in full]
        for index, (arrival_ns, _, topic, message) in enumerate(ready):
            if time.monotonic_ns() > end_ns:
                self._held = sorted(ready[index:] + self._held, key=_arrival_ns)
                return
            yield max(arrival_ns, earliest_ns()), topic, message

    def _fill(self) -> set[int]:
        """Read the queues; returns those that may contain more messages."""
        waiting = [0] * len(self._queues)
        for entry in self._held:
            waiting[entry.queue] += 1
        now_ns = time.time_ns()
        full = set()
        for queue, read in enumerate(self._queues):
            if waiting[queue] < BATCH:  # otherwise new messages stay in the middleware's bounded queue
                found = read(BATCH)
                self._held += [_Entry(message.received_ns or now_ns, queue, topic, message) for topic, message in found]
                if len(found) < BATCH:
                    continue
            full.add(queue)
        self._held.sort(key=_arrival_ns)
        return full


def _arrival_ns(entry: _Entry) -> int:
    return entry.arrival_ns
