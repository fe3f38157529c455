"""Reads batches without worker processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from robocache_ros.datasets.loader.packing import Description
from robocache_ros.datasets.loader.reading import BatchReader
from robocache_ros.datasets.loader.workers.slots import Slot


class LocalReader:
    """Reads batches in this process, when they are asked for."""

    replaced = 0
    pids: tuple[int, ...] = ()

    def __init__(self, reader: BatchReader, slots: Sequence[Slot]) -> None:
        self._reader = reader
        self._free = deque(slots)
        self._jobs: dict[int, tuple[Sequence[Sequence[int]], int]] = {}

    def submit(self, number: int, samples: Sequence[Sequence[int]], epoch: int) -> None:
        """As of a `WorkerPool`."""
        self._jobs[number] = samples, epoch

    def result(self, number: int) -> tuple[Description, Slot]:
        """As of a `WorkerPool`."""
        loaded = self._reader.load(*self._jobs.pop(number))
        slot = self._free.popleft()
        if loaded.description.nbytes > slot.nbytes:
            slot.grow(loaded.description.nbytes)
        return self._reader.write(loaded, slot.memory.numpy()), slot

    def ready(self, number: int) -> bool:
        """As of a `WorkerPool`."""
        return False

    def discard(self, number: int) -> None:
        """As of a `WorkerPool`."""
        del self._jobs[number]

    @property
    def has_slot(self) -> bool:
        """As of a `WorkerPool`."""
        return bool(self._free)

    def release(self, slot: Slot) -> None:
        """As of a `WorkerPool`."""
        self._free.append(slot)

    def close(self) -> None:
        """As of a `WorkerPool`."""
