"""StreamWarnings: streams that are invalid at most ticks are logged, with the reason, from time to time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

pytest.importorskip("rclpy")

from robocache_ros.nodes.diagnostics import MIN_TICKS, REPEAT_S, StreamWarnings
from robocache_ros.nodes.tick_loop import TickStats
from robocache_ros.spec import load_spec

JOINT: dict[str, Any] = {"type": "sensor_msgs/msg/JointState", "names": ["a"]}
SPEC = load_spec({"robocache": 1, "streams": {"arm": {"topic": "/a", **JOINT}, "base": {"topic": "/b", **JOINT}}})
REASONS = {"arm": "stale: no sample within 100 ms of the newest tick"}


class Watched:
    def __init__(self, received: Iterable[str] = ("arm",)) -> None:
        self.stats = TickStats(2)
        self.now_s = 0.0
        self.received = set(received)
        self.warnings = StreamWarnings(SPEC, self.stats, lambda: self.now_s)
        self.warnings.check({}, self.received)

    def after(self, ticks: int, *invalid: int) -> list[str]:
        self.stats.emitted += ticks
        self.stats.invalid += invalid
        return self.warnings.check(REASONS, self.received)


def test_mostly_invalid_stream_is_warned_of_with_its_reason_once_enough_ticks_are_counted():
    assert Watched().after(200, 192, 0) == [
        "arm: invalid at 96% of the last 200 ticks (stale: no sample within 100 ms of the newest tick)"
    ]
    assert Watched().after(200, 100, 20) == []  # valid at most ticks
    watched = Watched()
    assert [len(watched.after(ticks, ticks, 0)) for ticks in (MIN_TICKS - 1, 1)] == [0, 1]


def test_ticks_before_the_first_message_of_a_stream_are_its_start_up():
    watched = Watched(received=())

    silent = watched.after(200, 200, 0)
    watched.received = {"arm"}
    watched.now_s = REPEAT_S + 1
    began = watched.after(200, 150, 0)
    later = watched.after(200, 150, 0)

    assert [len(lines) for lines in (silent, began, later)] == [1, 0, 1]


def test_warning_is_repeated_after_a_while_only():
    watched = Watched()

    counts = []
    for watched.now_s in (0.0, REPEAT_S - 1, REPEAT_S + 1):
        counts.append(len(watched.after(200, 200, 0)))

    assert counts == [1, 0, 1]
