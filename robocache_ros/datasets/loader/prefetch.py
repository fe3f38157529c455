"""Batches read ahead, copied to the device on a stream of their own, in their order."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robocache_ros.datasets.loader.batch import Batch
from robocache_ros.datasets.loader.device_alignment import align_batch, decode_files
from robocache_ros.datasets.loader.order import Request
from robocache_ros.datasets.loader.packing import Description
from robocache_ros.datasets.loader.reading import BatchReader
from robocache_ros.datasets.loader.worker_pool import Slot, WorkerPool
from robocache_ros.errors import RoboCacheError


class _LocalReader:
    """Reads batches in this process, when their results are wanted; has the methods of a `WorkerPool`."""

    replaced = 0
    pids: tuple[int, ...] = ()

    def __init__(self, reader: BatchReader, slots: Sequence[Slot]) -> None:
        self._reader = reader
        self._free = deque(slots)
        self._jobs: dict[int, tuple[Sequence[Sequence[int]], int]] = {}
        self.release = self._free.append

    def submit(self, number: int, samples: Sequence[Sequence[int]], epoch: int) -> None:
        self._jobs[number] = samples, epoch

    def result(self, number: int) -> tuple[Description, Slot]:
        loaded = self._reader.load(*self._jobs.pop(number))
        slot = self._free.popleft()
        try:
            if loaded.description.nbytes > slot.nbytes:
                slot.grow(loaded.description.nbytes)
            return self._reader.write(loaded, slot.memory.numpy()), slot
        except BaseException:
            self.release(slot)
            raise

    def ready(self, number: int) -> bool:
        return False

    def discard(self, number: int) -> None:
        del self._jobs[number]

    @property
    def has_slot(self) -> bool:
        return bool(self._free)

    def close(self) -> None: ...


COPIES = 2  # batches that are on the device, or on their way, before the training loop asks for them
MAX_BORROWED_BLOCKS = 2  # on the CPU: blocks that batches use as they are, until their tensors are gone


class OnDevice(NamedTuple):
    """A batch whose copy has been started."""

    description: Description
    batch: Batch | None  # None if all of its samples were skipped
    copied: Any  # torch.cuda.Event; None on the CPU


class Prefetcher:
    """Reads batches ahead of their use.

    Args:
        reader: reads a batch, in the workers.
        workers: processes; 0: this one.
        prefetch: batches that are read ahead.
        device: of the batches.
        max_batch_bytes: limit of a batch.

    Attributes:
        slots: the blocks of host memory.
        pool: the workers, or what reads in this process.
    """

    def __init__(
        self, reader: BatchReader, workers: int, prefetch: int, device: torch.device, max_batch_bytes: int
    ) -> None:
        self._cuda, self._skip = device.type == "cuda", reader.skip
        self._device, self._workers, self._prefetch = device, workers, prefetch if workers else 1
        ahead = self._prefetch + (COPIES if self._cuda else MAX_BORROWED_BLOCKS)
        self.slots = [Slot(i, pinned=self._cuda, limit=max_batch_bytes) for i in range(ahead)]
        self.pool = WorkerPool(reader, workers, self.slots) if workers else _LocalReader(reader, self.slots)
        self._borrowed = 0
        self._numbers = count()
        self._reading: deque[tuple[int, Request]] = deque()  # of the last call of `batches`, and after it
        self._copying: deque[tuple[Any, Slot]] = deque()  # slots that the device may still read
        self._stream = torch.cuda.Stream(device) if self._cuda else None  # type: ignore[no-untyped-call]

    def batches(
        self,
        requests: Iterator[Request],
        wanted: int,
        widths: Mapping[str, tuple[int, ...]],
        finish: Callable[[Batch], Batch],
    ) -> Iterator[OnDevice]:
        """Yield the first batches of a sequence in their order. Workers read ahead what comes after them.

        A call continues with what is being read if that is what its requests begin with, and discards it otherwise.

        Args:
            requests: of the batches, and after them those of a next call.
            wanted: how many batches.
            widths: the columns of each stream, see `Batch`.
            finish: what is computed on the device, on the stream of the copy.

        Errors:
            RoboCacheError: a batch cannot be read.
        """
        # Without workers, a batch is read when it is asked for, and nothing is known of the next call.
        requests = self._following(requests if self._workers else islice(requests, wanted))
        ready: deque[OnDevice] = deque()
        while True:
            while len(self._reading) < self._prefetch and (request := next(requests, None)) is not None:
                self._submit(request)
            # Waits for a worker only if there is nothing to hand out.
            while wanted and self._reading:
                copies = self._cuda and len(ready) < COPIES and self.pool.ready(self._reading[0][0])
                if ready and not copies:
                    break
                wanted -= 1
                ready.append(self._on_device(self._reading.popleft()[0], widths, finish))
            if not ready:
                return
            yield self._handed_out(ready.popleft())

    def _following(self, requests: Iterator[Request]) -> Iterator[Request]:
        """Discard what is being read if it is not the first of some requests, and return those after it."""
        first = list(islice(requests, len(self._reading)))
        while [request for _, request in self._reading] != first[: len(self._reading)]:
            self.pool.discard(self._reading.popleft()[0])
        return chain(first[len(self._reading) :], requests)

    def _submit(self, request: Request) -> None:
        while self._copying and (self._copying[0][0].query() or not self.pool.has_slot):
            event, slot = self._copying.popleft()
            event.synchronize()
            self.pool.release(slot)
        number = next(self._numbers)
        self.pool.submit(number, request.samples, request.epoch)
        self._reading.append((number, request))

    def _on_device(
        self, number: int, widths: Mapping[str, tuple[int, ...]], finish: Callable[[Batch], Batch]
    ) -> OnDevice:
        description, slot = self.pool.result(number)
        if not description.samples:
            self.pool.release(slot)
            return OnDevice(description, None, None)
        host = slot.memory[: description.nbytes]
        if self._stream is None:
            borrowed = description.layout is None and self._borrowed < MAX_BORROWED_BLOCKS
            block = self._borrow(slot, description.nbytes) if borrowed else host[: description.copied].clone()
            item = self._aligned(description, host, block, widths)
            if not borrowed:
                self.pool.release(slot)
            return item if item.batch is None else item._replace(batch=finish(item.batch))
        with torch.cuda.stream(self._stream):
            block = host[: description.copied].to(self._device, non_blocking=True)
            item = self._aligned(description, host, block, widths)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
            self._copying.append((copied, slot))
            batch = item.batch and finish(item.batch)
            finished = torch.cuda.Event()  # type: ignore[no-untyped-call]
            finished.record(self._stream)
        return OnDevice(item.description, batch, finished)

    def _borrow(self, slot: Slot, nbytes: int) -> Tensor:
        """Return the first bytes of a slot, which is free again when the last tensor that shares them is gone."""
        view = slot.memory.numpy()[:nbytes]
        self._borrowed += 1
        weakref.finalize(view, self._returned, slot).atexit = False
        return torch.from_numpy(view)

    def _returned(self, slot: Slot) -> None:
        self._borrowed -= 1
        self.pool.release(slot)

    def _aligned(
        self, description: Description, host: Tensor, block: Tensor, widths: Mapping[str, tuple[int, ...]]
    ) -> OnDevice:
        """Return the batch of a block; aligned here, and its images decoded, if its workers have not done so."""
        batch = Batch.of_block(description, block)
        if description.layout is not None:
            unreadable = decode_files(batch, description, host)
            align_batch(batch, description.layout)
            for row, reason in unreadable.items():
                if not self._skip:
                    raise RoboCacheError(f"sample {batch.samples[row]}: {reason}")
            skipped = tuple((batch.samples[row], reason) for row, reason in unreadable.items())
            description = replace(description, skipped=(*description.skipped, *skipped))
            batch.drop(unreadable.keys())
        batch.widths = {key: each for key, each in widths.items() if key in batch.tensors}
        return OnDevice(description, batch if batch.samples else None, None)

    def _handed_out(self, item: OnDevice) -> OnDevice:
        """Order the training loop's stream after the copy, and keep the memory until that stream is done with it."""
        if item.batch is not None and item.copied is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(item.copied)
            tensor: Tensor
            for tensor in item.batch.tensors.values():
                tensor.record_stream(current)
        return item

    def close(self) -> None:
        """End the workers and give the memory back."""
        self.pool.close()
        self._reading.clear()
        for event, _ in self._copying:
            event.synchronize()
        self._copying.clear()
        for slot in self.slots:
            slot.close()
