"""Times on the GPU, on the clock of the host."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
import torch

from robocache_ros.bench.live.record import Columns

REBASE_NS = 1_000_000_000  # the clocks of GPU and host drift apart
EVENTS = 64  # that are pending at once; an event is read when its turn comes again


class Spans:
    """Times between pairs of GPU events, in ns after a time of the host: (spans,) int64, allocated at the start.

    Args:
        rows: the most that are kept.
    """

    def __init__(self, rows: int) -> None:
        self._found = Columns(("ns",), rows)
        self._pending: deque[tuple[Any, Any, int]] = deque()

    def add(self, begin: Any, end: Any, after_ns: int = 0) -> tuple[Any, Any] | None:
        """Keep a pair, to be read once it is complete; returns an earlier pair that is free, if there is one."""
        self._pending.append((begin, end, after_ns))
        return self._read() if len(self._pending) > EVENTS else None

    def read_ns(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Every span; waits for those that are not complete."""
        while self._pending:
            self._read()
        return self._found.to_dict()["ns"]

    def _read(self) -> tuple[Any, Any]:
        begin, end, after_ns = self._pending.popleft()
        end.synchronize()
        self._found.add(after_ns + round(begin.elapsed_time(end) * 1e6))
        return begin, end


class GpuTimeline:
    """When the work on a CUDA stream was complete, on the clock of the host.

    Args:
        rows: the most marks that are kept.
    """

    def __init__(self, rows: int) -> None:
        self._base: Any = None
        self._base_ns = 0
        self._spans = Spans(rows)
        self._free: list[Any] = []

    def mark(self, stream: Any) -> None:
        """Record when the work that is now queued on a stream is complete."""
        if time.time_ns() - self._base_ns > REBASE_NS:
            self._base = new_timer()
            self._base.record()
            self._base.synchronize()
            self._base_ns = time.time_ns()
        event = self._free.pop() if self._free else new_timer()
        event.record(stream)
        done = self._spans.add(self._base, event, self._base_ns)
        if done:
            self._free.append(done[1])

    def read_ns(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """(marks,) int64 host times."""
        return self._spans.read_ns()


def new_timer() -> Any:
    """A CUDA event that records its time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
