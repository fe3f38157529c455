"""How long a device stands without work because the next batch is not there. It needs no NVML."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from robocache_ros.errors import RoboCacheError

Batch = TypeVar("Batch")
MAX_OPEN = 1024  # waits whose events are not read yet


@dataclass(frozen=True)
class DataWait:
    """What a `DataWaitMeter` has measured.

    Attributes:
        waited_s: time in which the device had no work and the next batch was not there.
        total_s: time on the device, from the first batch to the end of the newest step.
        host_waited_s: time that the loop stood in `next()`. With a GPU it may be long while the GPU works.
        steps: waits that were measured.
    """

    waited_s: float
    total_s: float
    host_waited_s: float
    steps: int

    @property
    def share(self) -> float:
        """The share of the time in which the device waited for data, 0 to 1."""
        return self.waited_s / self.total_s if self.total_s > 0 else 0.0


class Marks(Protocol):
    """Points in time on a device."""

    def mark(self) -> Any:
        """Return a mark after all work that was given to the device so far."""

    def reached(self, mark: Any) -> bool:
        """Whether the device has reached a mark."""

    def seconds(self, first: Any, second: Any) -> float:
        """Return the time between two marks; waits until the device has reached them."""


class _HostMarks:
    """Marks of a device that works while the host waits: the CPU."""

    def mark(self) -> float:
        return time.perf_counter()

    def reached(self, _mark: float) -> bool:
        return True

    def seconds(self, first: float, second: float) -> float:
        return second - first


class _CudaMarks:
    """CUDA events on the current stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> Any:
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def reached(self, mark: Any) -> bool:
        return bool(mark.query())

    def seconds(self, first: Any, second: Any) -> float:
        second.synchronize()
        return float(first.elapsed_time(second)) / 1000


class DataWaitMeter:
    """Measures the share of a training in which its device waits for data.

    On a GPU, an event is recorded on the current stream when the loop asks for the next batch, and another one when it
    has it. If the GPU is still at work on earlier steps then, the second follows the first within microseconds: nothing
    was lost, however long the loop waited. If not, the time between them is the time without work, copies included. The
    meter never makes the host wait for the GPU until `result` is read. On the CPU it is the time in `next()`::

        meter = DataWaitMeter("cuda")
        for batch in meter.batches(loader):
            train(batch)
        print(meter.result().share)

    Args:
        device: of the training.
        skip: first waits that are left out: workers start and caches fill.
        marks: how time is measured; None: by the device.

    Errors:
        RoboCacheError: the device is a GPU, and torch finds none.
    """

    def __init__(self, device: str | torch.device = "cpu", *, skip: int = 1, marks: Marks | None = None) -> None:
        device = torch.device(device)
        if marks is None and device.type == "cuda" and not torch.cuda.is_available():
            raise RoboCacheError(f"device: {device} is not there, torch finds no CUDA device; use cpu")
        self._marks: Marks = marks or (_CudaMarks(device) if device.type == "cuda" else _HostMarks())
        self._skip = skip
        self._open: deque[tuple[Any, Any]] = deque()  # waits that the device has not reached
        self._first: Any = None  # the end of the first wait that is left out, or the beginning of the first one
        self._last: Any = None
        self._began: Any = None
        self._waited_s = self._host_waited_s = 0.0
        self._seen = self._steps = 0

    def begin(self) -> None:
        """The work of a step has been given to the device, and the loop asks for the next batch."""
        self._began = self._marks.mark(), time.perf_counter()
        self._last = self._began[0]
        if self._first is None and not self._skip:
            self._first = self._last

    def end(self) -> None:
        """The loop has the next batch. Without a `begin` before it, nothing is counted."""
        if self._began is None:
            return
        (began, host_s), self._began = self._began, None
        ended = self._marks.mark()
        self._seen += 1
        if self._seen <= self._skip:
            self._first = ended
        else:
            self._steps += 1
            self._host_waited_s += time.perf_counter() - host_s
            self._open.append((began, ended))
        self._last = ended
        self._read(MAX_OPEN)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measure the wait for a batch: `with meter.waiting(): batch = next(batches)`."""
        self.begin()
        yield
        self.end()

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a loader, and measure each wait for one."""
        iterator = iter(loader)
        while True:
            self.begin()
            try:
                batch = next(iterator)
            except StopIteration:
                self._began = None
                return
            self.end()
            yield batch

    def result(self) -> DataWait:
        """Return the time so far. It waits until the device has reached the newest mark."""
        self._read(0)
        total_s = 0.0 if self._first is None else self._marks.seconds(self._first, self._last)
        return DataWait(self._waited_s, total_s, self._host_waited_s, self._steps)

    def _read(self, most: int) -> None:
        """Read the waits that the device has passed, and all but `most` in any case."""
        while self._open and (len(self._open) > most or self._marks.reached(self._open[0][1])):
            self._waited_s += self._marks.seconds(*self._open.popleft())
