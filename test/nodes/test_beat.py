"""A tick that is made ahead of its beat goes out on it."""

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
from robocache_ros.nodes.beat import Beat, BeatStats

MS = 1_000_000


class OneTick:
    """A driver that has a single tick to give."""

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


def went_out_ns(tick_ns: int, delay_ns: int | None, lead_ns: int) -> tuple[int, BeatStats]:
    """When a tick went out."""
    sent: list[int] = []
    out = threading.Event()

    def publish(frames: Frames, hold: Any) -> None:
        hold(int(frames.ticks_ns[0]))
        sent.append(time.time_ns())

    def failed(error: Exception) -> None:
        raise AssertionError from error

    class Stats(BeatStats):
        def add(self, frames: Frames, lateness_ns: int | None) -> None:
            super().add(frames, lateness_ns)
            out.set()

    stats = Stats(1)
    beat = Beat(OneTick(tick_ns), publish, failed, stats, delay_ns, lead_ns)
    beat.start()
    assert out.wait(60)
    beat.stop()
    return sent[0], stats


def test_tick_made_ahead_waits_for_its_beat() -> None:
    tick_ns = time.time_ns()

    sent_ns, stats = went_out_ns(tick_ns, 150 * MS, 150 * MS)

    assert sent_ns >= tick_ns + 150 * MS
    lateness_ms = stats.read_lateness_ms()
    assert lateness_ms
    assert lateness_ms[0] >= 0


def test_tick_past_its_beat_goes_out_at_once() -> None:
    tick_ns = time.time_ns() - 10_000 * MS

    sent_ns, stats = went_out_ns(tick_ns, 5_000 * MS, 5_000 * MS)

    assert sent_ns >= tick_ns + 5_000 * MS
    assert stats.emitted == 1


@pytest.mark.parametrize("delay_ns", [None, 3600_000 * MS])
def test_nothing_waits_longer_than_the_lead(delay_ns: int | None) -> None:
    """Without a beat to keep (eager, sim time), or with one an hour ahead since the wall clock was set back."""
    tick_ns = time.time_ns()

    sent_ns, _ = went_out_ns(tick_ns, delay_ns, 20 * MS)

    assert sent_ns < tick_ns + 3600_000 * MS
