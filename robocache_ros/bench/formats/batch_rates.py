"""Batches per second of a source, with all of its waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

import torch

from robocache_ros.bench.suite.system_state import busy_seconds
from robocache_ros.bench.training.measured import wait_for


class Rate(NamedTuple):
    """What was measured.

    Attributes:
        batches_per_s: over the whole time, with all waiting.
        batch_ms: median and 95th percentile of the time from one batch to the next, in milliseconds.
        busy_cores: processors that all processes of the machine used.
    """

    batches_per_s: float
    batch_ms: tuple[float, float]
    busy_cores: float

    def __str__(self) -> str:
        middle, late = self.batch_ms
        return f"{middle:,.2f} ms a batch, 95 % within {late:,.2f} ms, {self.busy_cores:.1f} cores busy"


def warm_up(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Take some batches, and return the rest of them."""
    for _ in islice(batches, count):
        pass
    return batches


def measure(batches: Iterator[Any], seconds: float, workers: int, device: torch.device) -> Rate:
    """Measure a source each of whose workers has just read a batch, so that nothing that was read before is counted.

    A batch counts when it is on the device. Workers begin together, so that their batches arrive in waves: only whole
    waves are counted, since the part of a wave that has not arrived has taken time as well.

    Args:
        batches: without an end. They are taken without a pause, so that none waits for being taken.
        seconds: at least so long.
        workers: that read at the same time; 0: this process reads.
        device: of the batches.
    """
    taken: list[float] = []
    wait_for(device)
    busy = busy_seconds()
    start = now = time.perf_counter()
    while now - start < seconds or not taken or len(taken) % max(1, workers):
        next(batches)
        wait_for(device)
        taken.append(time.perf_counter() - now)
        now += taken[-1]
    total, busy = now - start, busy_seconds() - busy
    late = sorted(taken)[int(len(taken) * 0.95)]
    return Rate(len(taken) / total, (median(taken) * 1000, late * 1000), busy / total)
