"""The TickLoop publishes a tick that was made ahead when it is due."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("rclpy")

from robocache_ros.engine import Frames
from robocache_ros.nodes.tick_loop import TickLoop, TickStats

MS = 1_000_000


class OneTick:
    """A clock source with a single tick."""

    def __init__(self, tick_ns: int) -> None:
        self._frames = [
            Frames(np.array([tick_ns]), torch.zeros(1, 0), np.ones((1, 1), np.uint8), np.zeros((1, 1), np.int64), {})
        ]

    def step(self) -> Iterator[Frames]:
        while self._frames:
            yield self._frames.pop()

    def wait(self) -> None:
        threading.Event().wait(0.001)

    def destroy(self) -> None: ...


def published_at_ns(tick_ns: int, delay_ns: int | None, lead_ns: int) -> tuple[int, TickStats]:
    """When the loop published a tick."""
    sent: list[int] = []
    out = threading.Event()

    def publish(frames: Frames, wait_until_due: Any) -> None:
        wait_until_due(int(frames.ticks_ns[0]))
        sent.append(time.time_ns())

    def failed(error: Exception) -> None:
        raise AssertionError from error

    class Stats(TickStats):
        def add(self, frames: Frames, lateness_ns: int | None) -> None:
            super().add(frames, lateness_ns)
            out.set()

    stats = Stats(1)
    loop = TickLoop(OneTick(tick_ns), publish, failed, stats, delay_ns, lead_ns)
    loop.start()
    assert out.wait(120)
    loop.stop()
    return sent[0], stats


@pytest.mark.parametrize(("age_ns", "delay_ns"), [(0, 150 * MS), (10_000 * MS, 5_000 * MS)], ids=["ahead", "overdue"])
def test_tick_is_published_when_it_is_due_or_at_once_if_it_is_overdue(age_ns, delay_ns):
    tick_ns = time.time_ns() - age_ns

    sent_ns, stats = published_at_ns(tick_ns, delay_ns, delay_ns)

    assert sent_ns >= tick_ns + delay_ns
    assert stats.emitted == 1
    lateness_ms = stats.read_lateness_ms()
    assert lateness_ms[0] >= 0


@pytest.mark.parametrize("delay_ns", [None, 3600_000 * MS])
def test_no_tick_waits_longer_than_the_lead(delay_ns):
    """Without a due time (eager, sim time), or with one an hour ahead since the wall clock was set back."""
    tick_ns = time.time_ns()

    sent_ns, _ = published_at_ns(tick_ns, delay_ns, 20 * MS)

    assert sent_ns < tick_ns + 3600_000 * MS


def test_ticks_with_a_held_value_and_without_a_value_are_counted_apart():
    stats = TickStats(3)
    valid = np.array([[0, 1, 2], [0, 1, 1]], np.uint8)

    stats.add(Frames(np.array([1, 2]), torch.zeros(2, 0), valid, np.zeros((2, 3), np.int64), {}), None)

    assert (stats.invalid.tolist(), stats.held.tolist()) == ([2, 0, 0], [0, 0, 1])
