"""The measurement of a training on one source of batches, and its rows of results as files."""

from __future__ import annotations

import os
import platform
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks.report import write_results
from robocache_ros.errors import RoboCacheError
from robocache_ros.monitoring import DataWaitMeter, GPUUtilization, GPUUtilizationMonitor

# What the parts have in common: sizes, rows of results, and the measurement of a training on one source of batches.


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


class Training(Protocol):
    """What is measured of a training; `Trainer` has it."""

    device: torch.device
    data_wait: DataWaitMeter
    step: int

    def train_step(self) -> Any:
        """Run a step."""


class Sources:
    """Several sources of batches for one trainer: `choose` one, and its next batch comes from there."""

    def __init__(self) -> None:
        self._iterators: dict[str, Generator[Mapping[str, Any], None, None]] = {}
        self._chosen = ""

    def add(self, name: str, source: Iterable[Mapping[str, Any]]) -> None:
        """Add a source."""
        self._iterators[name] = endless(source)

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


def endless(source: Iterable[Mapping[str, Any]]) -> Generator[Mapping[str, Any], None, None]:
    """Yield the batches of one epoch after the other."""
    if isinstance(source, list):
        yield from cycle(source)
    while True:
        yield from source


def rows_of(part: str, what: str, run: Run, batch: int, note: str) -> list[Row]:
    """Return the samples per second of a training, the share of time that it waited for data, and the utilisation."""
    used = None if run.gpu is None or not run.gpu.samples else run.gpu.avg
    return [
        Row(part, what, batch / run.step_ms * 1e3, "samples/s", note=note),
        Row(part, f"waiting for data, {what}", run.wait_share * 100, "%", wanted="under 1"),
        Row(part, f"GPU utilisation, {what}", used, "%", wanted="95", note="NVML"),
    ]


def train_for(trainer: Training, seconds: float, warm_up: int) -> Run:
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


# The results of benchmarks of loading and training as files, which are complete at any time.


def machine() -> dict[str, Any]:
    """What is measured on."""
    return {
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
        "cores": len(os.sched_getaffinity(0)),
        "load": [round(each, 1) for each in os.getloadavg()],
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def write(folder: Path, name: str, title: str, record: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Replace `name`.json and `name`.md in a folder."""
    results = {**record, "rows": [asdict(row) for row in rows]}
    write_results(folder, name, results, as_markdown(title, record, rows))


def as_markdown(title: str, record: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Return a table for each part, in which failures are rows."""
    about = record["machine"]
    published = " Published figures are of an H100." if any(row.published for row in rows) else ""
    lines = [
        f"# {title}",
        "",
        f"GPU: {about['gpu']}, {about['cores']} cores, load {about['load'][0]:g}, torch {about['torch']}, "
        f"{about['date']}.{published}",
        *(["", "A quick run with tiny policies and data: no figure means anything."] if record["quick"] else []),
    ]
    for part in dict.fromkeys(row.part for row in rows):
        mine = [row for row in rows if row.part == part]
        sources = sorted({row.source for row in mine if row.source})
        lines += ["", f"## {part}", *(f"\nPublished in {source}." for source in sources)]
        lines += ["", "| | measured | published | wanted | |", "|---|---|---|---|---|"]
        lines += [
            f"| {row.what} | {_value(row)} | {row.published} | {row.wanted} | {_cell(row.note)} |" for row in mine
        ]
    return "\n".join(lines) + "\n"


def _value(row: Row) -> str:
    if row.value is None:
        return "not measured"
    return f"{row.value:,.0f} {row.unit}" if row.value >= 1000 else f"{row.value:,.3g} {row.unit}"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
