"""The pace of a replay: when each message is published, and the times on /clock."""

from __future__ import annotations

from itertools import pairwise

import pytest

from robocache_ros.bags.player import CLOCK_PERIOD_NS, play
from robocache_ros.bags.source import RawMessage
from robocache_ros.errors import RoboCacheError

MS = 1_000_000


class FakeSteady:
    """A steady clock that sleeping alone moves."""

    def __init__(self, stop_at_ns=None):
        self.time_ns = 0
        self._stop_at_ns = stop_at_ns

    def now_ns(self):
        return self.time_ns

    def sleep_until(self, due_ns):
        self.time_ns = max(self.time_ns, due_ns)
        return self._stop_at_ns is None or self.time_ns < self._stop_at_ns


def raw(*log_ns):
    return [RawMessage("/a", time_ns, b"") for time_ns in log_ns]


@pytest.mark.parametrize("rate", [0.5, 1.0, 4.0])
def test_message_is_published_at_its_log_time(rate):
    steady, sent = FakeSteady(), []
    messages = raw(10**18, 10**18 + 8 * MS, 10**18 + 10**12)
    play(messages, lambda _: bool(sent.append(steady.time_ns)), first_ns=10**18, rate=rate, steady=steady)
    assert sent == [0, int(8 * MS / rate), int(10**12 / rate)]


def test_clock_is_published_right_before_each_message_advances_in_silences_and_never_goes_back():
    events: list[tuple[str, int]] = []

    def publish(message):
        events.append(("message", message.log_ns))
        return False

    messages = raw(100, 100, 3 * MS, 1000 * MS)
    play(
        messages, publish, first_ns=100, rate=2.0, clock=lambda now: events.append(("clock", now)), steady=FakeSteady()
    )
    for index, (kind, time_ns) in enumerate(events):
        assert kind == "clock" or events[index - 1] == ("clock", time_ns)
    times = [time_ns for kind, time_ns in events if kind == "clock"]
    assert times == sorted(times)
    assert max(b - a for a, b in pairwise(times)) <= 2 * CLOCK_PERIOD_NS


def test_recording_pauses_while_publishing_waits():
    steady, sent = FakeSteady(), []

    def publish(message):
        sent.append(steady.time_ns)
        steady.time_ns += 500 * MS
        return message.log_ns == 0

    play(raw(0, 10 * MS), publish, first_ns=0, steady=steady)
    assert sent == [0, 510 * MS]


def test_stopped_replay_returns_false():
    sent: list[RawMessage] = []
    assert not play(raw(0, 10 * MS, 20 * MS), lambda m: bool(sent.append(m)), first_ns=0, steady=FakeSteady(15 * MS))
    assert len(sent) == 2


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e9, float("nan")])
def test_rate_out_of_range_is_refused(rate):
    with pytest.raises(RoboCacheError, match="rate"):
        play([], lambda m: False, first_ns=0, rate=rate)
