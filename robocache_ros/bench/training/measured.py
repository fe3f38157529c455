"""What the parts have in common: sizes, rows of results, and the measurement of a training on one source of batches."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.monitoring import DataWaitMeter, GPUUtilization, GPUUtilizationMonitor
from robocache_ros.training.trainer import Trainer

QUEUED = 8


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        episodes: of the synthetic data.
        seconds: of a measurement.
        workers: processes that read.
        tiny: replace every policy by a tiny one and do not compile, to run in seconds on a CPU.
    """

    episodes: int
    seconds: float
    workers: int
    tiny: bool


@dataclass(frozen=True)
class Row:
    """A figure, beside the published one and the one that is wanted. `value` is None if it was not measured."""

    part: str
    what: str
    value: float | None
    unit: str
    published: str = ""
    wanted: str = ""
    note: str = ""
    source: str = ""  # of the published figure


@dataclass(frozen=True)
class Run:
    """A training on one source of batches for some seconds."""

    step_ms: float
    wait_share: float
    gpu: GPUUtilization | None


class Sources:
    """Several sources of batches for one trainer: `choose` one, and its next batch comes from there."""

    def __init__(self) -> None:
        self._iterators: dict[str, Generator[Mapping[str, Any], None, None]] = {}
        self._chosen = ""

    def add(self, name: str, source: Iterable[Mapping[str, Any]]) -> None:
        """Add a source."""
        self._iterators[name] = self._endless(source)

    def remove(self, name: str) -> None:
        """Forget a source."""
        self._iterators.pop(name).close()

    def choose(self, name: str) -> None:
        """Take the next batches from a source."""
        self._chosen = name

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        while True:
            yield next(self._iterators[self._chosen])

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: a measurement is not resumed."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""

    @staticmethod
    def _endless(source: Iterable[Mapping[str, Any]]) -> Generator[Mapping[str, Any], None, None]:
        if isinstance(source, list):
            yield from cycle(source)
        while True:
            yield from source


def train_for(trainer: Trainer, seconds: float, warm_up: int) -> Run:
    """Train for some seconds after a few steps, and return the mean time of a step."""
    device = trainer.device
    for _ in range(warm_up):
        trainer.train_step()
    wait_for(device)
    trainer.data_wait = DataWaitMeter(device, skip=0)
    monitor = _monitor(device)
    queued: deque[Any] = deque()
    start, first = time.perf_counter(), trainer.step
    while time.perf_counter() - start < seconds:
        trainer.train_step()
        if device.type == "cuda":  # the clock must not run ahead: at most `QUEUED` steps wait for the GPU
            event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            queued.append(event)
            if len(queued) > QUEUED:
                queued.popleft().synchronize()
    trainer.data_wait.begin()  # the end of the last step
    wait_for(device)
    taken_s = time.perf_counter() - start
    used = monitor.stop() if monitor is not None else None
    return Run(taken_s / (trainer.step - first) * 1000, trainer.data_wait.result().share, used)


def _monitor(device: torch.device) -> GPUUtilizationMonitor | None:
    if device.type != "cuda":
        return None
    try:
        return GPUUtilizationMonitor(device.index or 0, startup_s=1.0).start()
    except RoboCacheError:
        return None


def wait_for(device: torch.device) -> None:
    """Wait until the device has no work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
