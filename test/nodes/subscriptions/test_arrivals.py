"""Arrivals: messages of several queues in order, and a flooded queue that keeps no other one waiting; floods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import pytest

pytest.importorskip("rclpy")

from robocache_ros.nodes import subscriptions
from robocache_ros.nodes.subscriptions import ARRIVALS_BATCH, FLOOD_WINDOW_NS, Arrivals, Flood, ReceivedMessage

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


def test_backlog_after_a_stall_is_read_in_order_across_queues():
    slow, fast, rare = range(5, 2005, 20), range(1, 2001, 2), [2, 1998]
    arrivals = Arrivals([Queue("slow", slow), Queue("fast", fast), Queue("rare", rare)])

    found = read(arrivals, HOUR_NS)

    expected = [*((t, "slow") for t in slow), *((t, "fast") for t in fast), *((t, "rare") for t in rare)]
    assert [time for time, _ in found] == sorted(time for time, _ in expected)
    assert sorted(found) == sorted(expected)
    assert not arrivals.flooded


def test_flooded_queue_does_not_keep_the_others_waiting():
    flood = Queue("flood", range(1, 10**9))
    arrivals = Arrivals([flood, Queue("joints", [500_000, 500_001])])

    found = read(arrivals, limit_ns=-1)  # time for one message

    assert found == [(1, "flood"), (500_000, "joints"), (500_001, "joints")]
    assert arrivals.flooded
    assert flood.largest_read == ARRIVALS_BATCH


def test_two_flooded_queues_get_the_same_share():
    arrivals = Arrivals([Queue("a", range(1, 10**9)), Queue("b", range(1, 10**9))])

    topics = [topic for _ in range(100) for _, topic in read(arrivals, limit_ns=-1)]

    assert abs(topics.count("a") - topics.count("b")) <= 1


def test_messages_left_by_a_step_are_the_first_of_the_next():
    arrivals = Arrivals([Queue("a", [1, 2, 3]), Queue("b", [])])

    assert [read(arrivals, limit_ns=-1, grace_ns=-1) for _ in range(4)] == [[(1, "a")], [(2, "a")], [(3, "a")], []]
    assert not arrivals.flooded


def test_message_of_a_tick_that_is_made_arrives_after_it_and_one_without_a_time_when_it_is_read():
    arrivals = Arrivals([Queue("a", [1, 70])])
    assert [arrival_ns for arrival_ns, _, _ in arrivals.read(lambda: 51, HOUR_NS, 0)] == [51, 70]

    ((arrival_ns, _),) = read(Arrivals([Queue("a", [0])]), HOUR_NS)
    assert arrival_ns > 10**18


STEP_NS = 4_000_000


@pytest.fixture
def after(monkeypatch):
    """Counts steps, 4 ms apart; returns whether the flood is active after them."""
    now_ns = [0]
    monkeypatch.setattr(subscriptions.time, "monotonic_ns", lambda: now_ns[0])

    def count(state: Flood, limited: Iterable[bool]) -> bool:
        for reached in limited:
            state.add(reached)
            now_ns[0] += STEP_NS
        return state.active

    return count


def steps(seconds: float, every: int) -> list[bool]:
    """Steps of a time, of which one in `every` reaches its limit."""
    return [number % every == 0 for number in range(round(seconds * FLOOD_WINDOW_NS / STEP_NS))]


@pytest.mark.parametrize(
    ("before", "limited", "active"),
    [
        ([False] * 10, [False], False),
        ([False] * 10, [True], True),
        ([], steps(10, every=1), True),
        ([], steps(10, every=3), True),
        ([True], steps(1.01, every=8), False),  # large images: two at 30 Hz still reach the short limit
        (steps(3, every=1), [False] * (2 * FLOOD_WINDOW_NS // STEP_NS), False),
    ],
    ids=["no limit is reached", "one is", "while they are", "with pauses", "large images only", "messages end"],
)
def test_a_flood_begins_and_ends_with_the_limits_that_are_reached(after, before, limited, active):
    state = Flood()
    after(state, before)
    assert after(state, limited) is active
