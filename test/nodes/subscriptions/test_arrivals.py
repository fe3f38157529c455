"""Arrivals: messages of several queues in order, and a flooded queue that keeps no other one waiting."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest

pytest.importorskip("rclpy")

from robocache_ros.nodes.subscriptions import ARRIVALS_BATCH, Arrivals, ReceivedMessage

HOUR_NS = 3600 * 10**9


class Queue:
    """Messages of a topic by their times of reception, as many as are left."""

    def __init__(self, topic: Any, times: Sequence[int] | range) -> None:
        self._topic = topic
        self._times = iter(times)
        self.largest_read = 0

    def __call__(self, limit: int) -> list[tuple[Any, ReceivedMessage]]:
        found = [(self._topic, ReceivedMessage(b"", 0, time)) for time in islice(self._times, limit)]
        self.largest_read = max(self.largest_read, len(found))
        return found


def read(arrivals: Arrivals, limit_ns: int, grace_ns: int = HOUR_NS) -> list[tuple[int, Any]]:
    return [(arrival_ns, topic) for arrival_ns, topic, _ in arrivals.read(lambda: 0, limit_ns, grace_ns)]


def test_backlog_after_a_stall_is_read_in_order_across_queues() -> None:
    slow, fast, rare = range(5, 2005, 20), range(1, 2001, 2), [2, 1998]
    arrivals = Arrivals([Queue("slow", slow), Queue("fast", fast), Queue("rare", rare)])

    found = read(arrivals, HOUR_NS)

    expected = [*((t, "slow") for t in slow), *((t, "fast") for t in fast), *((t, "rare") for t in rare)]
    assert [time for time, _ in found] == sorted(time for time, _ in expected)
    assert sorted(found) == sorted(expected)
    assert not arrivals.flooded


def test_flooded_queue_does_not_keep_the_others_waiting() -> None:
    flood = Queue("flood", range(1, 10**9))
    arrivals = Arrivals([flood, Queue("joints", [500_000, 500_001])])

    found = read(arrivals, limit_ns=-1)  # time for one message

    assert found == [(1, "flood"), (500_000, "joints"), (500_001, "joints")]
    assert arrivals.flooded
    assert flood.largest_read == ARRIVALS_BATCH


def test_two_flooded_queues_get_the_same_share() -> None:
    arrivals = Arrivals([Queue("a", range(1, 10**9)), Queue("b", range(1, 10**9))])

    topics = [topic for _ in range(100) for _, topic in read(arrivals, limit_ns=-1)]

    assert abs(topics.count("a") - topics.count("b")) <= 1


def test_messages_left_by_a_step_are_the_first_of_the_next() -> None:
    arrivals = Arrivals([Queue("a", [1, 2, 3]), Queue("b", [])])

    assert [read(arrivals, limit_ns=-1, grace_ns=-1) for _ in range(4)] == [[(1, "a")], [(2, "a")], [(3, "a")], []]
    assert not arrivals.flooded


def test_message_of_a_tick_that_is_made_arrives_after_it() -> None:
    arrivals = Arrivals([Queue("a", [1, 70])])

    assert [arrival_ns for arrival_ns, _, _ in arrivals.read(lambda: 51, HOUR_NS, 0)] == [51, 70]


def test_message_without_a_time_of_reception_arrives_when_it_is_read() -> None:
    ((arrival_ns, _),) = read(Arrivals([Queue("a", [0])]), HOUR_NS)

    assert arrival_ns > 10**18
