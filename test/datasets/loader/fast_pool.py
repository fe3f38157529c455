"""A pool of workers by which tests see what is requested."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from robocache_ros.datasets import TimelineLoader
from robocache_ros.datasets.loader.packing import Description
from robocache_ros.datasets.loader.reading import BatchReader
from robocache_ros.datasets.loader.worker_pool import Slot
from robocache_ros.errors import RoboCacheError


class FastPool:
    """A `WorkerPool` whose workers are in this process, and so fast that a batch is read as soon as it is requested."""

    replaced = 0

    def __init__(self, reader: BatchReader, workers: int, slots: Sequence[Slot]) -> None:
        self.requested: list[tuple[int, list[int]]] = []  # the epoch and the samples of each batch
        self._reader, self._free = reader, deque(slots)
        self._done: dict[int, tuple[Description, Slot] | RoboCacheError] = {}

    def submit(self, number: int, samples: Sequence[Sequence[int]], epoch: int) -> None:
        self.requested.append((epoch, [sample[0] for sample in samples]))
        slot = self._free.popleft()
        try:
            loaded = self._reader.load(samples, epoch)
            if loaded.description.nbytes > slot.nbytes:
                slot.grow(loaded.description.nbytes)
            self._done[number] = self._reader.write(loaded, slot.memory.numpy()), slot
        except RoboCacheError as error:
            self._done[number] = error
            self.release(slot)

    def result(self, number: int) -> tuple[Description, Slot]:
        outcome = self._done.pop(number)
        if isinstance(outcome, RoboCacheError):
            raise outcome
        return outcome

    def discard(self, number: int) -> None:
        outcome = self._done.pop(number)
        if not isinstance(outcome, RoboCacheError):
            self.release(outcome[1])

    def release(self, slot: Slot) -> None:
        self._free.append(slot)

    def close(self) -> None:
        self._done.clear()

    @property
    def held(self) -> int:
        """Batches that are read, and not yet handed out."""
        return len(self._done)

    @property
    def free(self) -> int:
        return len(self._free)


def pool_of(loader: TimelineLoader) -> FastPool:
    pool = loader._prefetcher.pool
    assert isinstance(pool, FastPool)
    return pool
