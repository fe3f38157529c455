"""Worker processes that read batches into blocks of shared memory, and their replacement if one dies."""

from __future__ import annotations

import mmap
import os
import pickle
import resource
import selectors
import warnings
from collections import OrderedDict, deque
from collections.abc import Sequence
from multiprocessing.reduction import send_handle
from typing import Any

import torch
from torch import Tensor

from robocache_ros.datasets.forked_processes import worker_context
from robocache_ros.datasets.loader.packing import Description
from robocache_ros.datasets.loader.reading import BatchReader
from robocache_ros.datasets.loader.worker import NO_JOB, Done, Failed, Grown, Job, NewMemory, Place, TooSmall, run
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.ipc.shared_memory import create
from robocache_ros.processes import blocked_interrupt, main_left_out

GRANULARITY = 2**20  # bytes: slots of batches of about one size are not replaced again and again


class Slot:
    """A block of shared memory for one batch. It has no name: the kernel frees it with its last process."""

    def __init__(self, number: int, *, pinned: bool, limit: int) -> None:
        self.number = number
        self.fd = -1
        self.nbytes = 0
        self.memory = torch.empty(0, dtype=torch.uint8)  # (nbytes,)
        self.generation = 0  # how often the memory was replaced; a worker maps each once
        self._pinned, self._limit = pinned, limit

    def grow(self, nbytes: int) -> None:
        """Replace the memory by at least `nbytes`.

        Errors:
            RoboCacheError: this is more than the limit, or more than there is.
        """
        if nbytes > self._limit:
            raise RoboCacheError(
                f"batch: {nbytes:,} bytes; at most {self._limit:,}: use a smaller batch_size, or raise max_batch_bytes"
            )
        self.close()
        size = min(max(-(-nbytes * 5 // 4 // GRANULARITY) * GRANULARITY, GRANULARITY), max(self._limit, nbytes))
        self.fd = create("robocache_batch", size)
        self.nbytes = size
        self.generation += 1
        try:
            self.memory = torch.frombuffer(mmap.mmap(self.fd, size), dtype=torch.uint8)
        except OSError as error:  # of the file descriptors, of which the mapping takes one more
            os.close(self.fd)
            self.fd, self.nbytes = -1, 0
            raise RoboCacheError(
                f"batch: {size:,} bytes cannot be mapped ({error.strerror}); raise `ulimit -n`, or use fewer workers"
            ) from None
        if self._pinned:
            _pin(self.memory)

    @property
    def place(self) -> Place:
        """What a worker gets of it."""
        return Place(self.number, self.generation, self.nbytes)

    def close(self) -> None:
        """Give the memory back."""
        if self.fd < 0:
            return
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self.memory.data_ptr())  # type: ignore[no-untyped-call]
        os.close(self.fd)
        self.fd, self.nbytes, self.memory = -1, 0, torch.empty(0, dtype=torch.uint8)


def _pin(memory: Tensor) -> None:
    """Lock the memory's pages, so that copies to the GPU are asynchronous. Without, they are only slower."""
    failed = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0))  # type: ignore[no-untyped-call]
    if failed:
        warnings.warn(f"batches are not pinned (CUDA error {failed}); raise `ulimit -l`", RuntimeWarning, stacklevel=2)


# File descriptors of this process: a connection, the end of the process and its exit code; a block and its mapping; and
# those that are open while a process starts.
OF_WORKER, OF_SLOT, TO_START = 3, 2, 12
MAX_DEATHS = 3  # of workers over one batch: then its data is the reason


class _Worker:
    """A process, its connection, and the batches that it has to read."""

    def __init__(self, context: Any, reader: bytes) -> None:
        self.connection, there = context.Pipe()
        self.process = context.Process(target=run, args=(there, reader, dict(os.environ)), daemon=True)
        with blocked_interrupt(), main_left_out(reader):
            self.process.start()
        there.close()
        self.jobs: OrderedDict[int, Job] = OrderedDict()
        self.known: dict[int, int] = {}  # slot -> generation of its memory that the process has mapped

    def send(self, job: Job, slot: Slot, message: Job | Grown) -> None:
        """Send a job, and the memory of its slot if it is new to the process. A dead process is noticed on reading."""
        self.jobs[job.number] = job
        try:
            if slot.nbytes and self.known.get(slot.number) != slot.generation:
                self.connection.send(NewMemory(job.place))
                send_handle(self.connection, slot.fd, self.process.pid)
                self.known[slot.number] = slot.generation
            self.connection.send(message)
        except OSError:
            return

    def end(self) -> None:
        """End the process. It has no work to complete."""
        self.connection.close()
        self.process.kill()
        self.process.join()
        self.process.close()


class WorkerPool:
    """Reads batches in worker processes, which start when they are needed."""

    def __init__(self, reader: BatchReader, workers: int, slots: Sequence[Slot]) -> None:
        try:
            self._reader = pickle.dumps(reader)
        except Exception as error:
            raise RoboCacheError(
                f"dataset: cannot be sent to a worker ({printable(error)}); make it picklable, or use workers=0"
            ) from error
        self.replaced = 0  # workers that died
        self._count = workers
        self._context = worker_context()
        self._slots = {slot.number: slot for slot in slots}
        self._free = deque(slots)
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._closed = False
        self._done: dict[int, tuple[Description, Slot] | RoboCacheError] = {}
        self._broken: RoboCacheError | None = None  # why no worker can read anything
        self._deaths: dict[int, int] = {}

    def submit(self, number: int, samples: Sequence[Sequence[int]], epoch: int) -> None:
        """Have a batch read. There must be a free slot.

        Args:
            number: of the batch, by which `result` asks for it.
            samples: of the batch, their fields.
            epoch: that the batch is of.
        """
        self._check_open()
        self._start()
        slot = self._free.popleft()
        worker = min(self._workers, key=lambda each: len(each.jobs))
        job = Job(number, tuple(samples), epoch, slot.place)
        worker.send(job, slot, job)

    def result(self, number: int) -> tuple[Description, Slot]:
        """Wait for a batch. Its slot is to be released once its memory has been read.

        Errors:
            RoboCacheError: the batch cannot be read, or its workers die again and again.
        """
        while number not in self._done:
            if self._broken is not None:
                raise self._broken
            self._receive()
        outcome = self._done.pop(number)
        if isinstance(outcome, RoboCacheError):
            raise outcome
        return outcome

    def ready(self, number: int) -> bool:
        """Whether `result` returns at once."""
        if number not in self._done:
            self._receive(0)
        return number in self._done

    def discard(self, number: int) -> None:
        """Wait for a batch that is not needed any more, and reuse its slot."""
        try:
            self.release(self.result(number)[1])
        except RoboCacheError:
            return  # nobody wants to know

    @property
    def has_slot(self) -> bool:
        """Whether a batch can be submitted."""
        return bool(self._free)

    def release(self, slot: Slot) -> None:
        """Reuse a slot."""
        self._free.append(slot)

    def _receive(self, timeout_s: float | None = None) -> None:
        """Take in what the workers report."""
        self._check_open()
        for ready, _ in self._selector.select(timeout_s):
            worker: _Worker = ready.data
            try:
                message = worker.connection.recv()
            except (EOFError, OSError):
                self._replace(worker)
                continue
            if message.number == NO_JOB:
                self._broken = RoboCacheError(message.reason)
                return
            job = worker.jobs[message.number]
            slot = self._slots[job.place.slot]
            if isinstance(message, TooSmall):
                self._grow(worker, job, slot, message.nbytes)
                continue
            del worker.jobs[job.number]
            self._deaths.pop(job.number, None)
            if isinstance(message, Done):
                self._done[job.number] = message.description, slot
            elif isinstance(message, Failed):
                self._fail(job, slot, message.reason)

    def _grow(self, worker: _Worker, job: Job, slot: Slot, nbytes: int) -> None:
        try:
            slot.grow(nbytes)
        except RoboCacheError as error:
            del worker.jobs[job.number]
            self._fail(job, slot, str(error))
            return
        job = job._replace(place=slot.place)
        worker.send(job, slot, Grown(job.number, job.place))

    def _fail(self, job: Job, slot: Slot, reason: str) -> None:
        self._done[job.number] = RoboCacheError(reason)
        self._free.append(slot)

    def _replace(self, worker: _Worker) -> None:
        """Start a process in the place of one that died: it reads the same samples into the same slots."""
        place = self._workers.index(worker)
        jobs = list(worker.jobs.values())
        self._selector.unregister(worker.connection)
        worker.end()
        self.replaced += 1
        if jobs:  # they are read in order, so it died over the first one
            first = jobs[0]
            self._deaths[first.number] = self._deaths.get(first.number, 0) + 1
            if self._deaths[first.number] >= MAX_DEATHS:
                numbers = ", ".join(str(sample[0]) for sample in first.samples[:4])
                self._fail(
                    jobs.pop(0),
                    self._slots[first.place.slot],
                    f"samples {numbers}{', …' * (len(first.samples) > 4)}: {MAX_DEATHS} workers died; "
                    "check the memory, or use workers=0 to see the cause",
                )
        self._workers[place] = fresh = self._started()
        for job in jobs:
            slot = self._slots[job.place.slot]
            job = job._replace(place=slot.place)
            fresh.send(job, slot, job)

    def _start(self) -> None:
        """Start the workers: as late as possible, because this waits for the process that forks them."""
        if not self._workers and not self._closed:
            _check_descriptors(self._count, len(self._slots))
            self._workers = [self._started() for _ in range(self._count)]

    def _started(self) -> _Worker:
        worker = _Worker(self._context, self._reader)
        self._selector.register(worker.connection, selectors.EVENT_READ, worker)
        return worker

    def _check_open(self) -> None:
        """Refuse to read: a training may end while an iterator of its loader still exists."""
        if self._closed:
            raise RoboCacheError("loader: it is closed; create another one")

    @property
    def pids(self) -> list[int]:
        """The processes; none once it is closed."""
        self._start()
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """End the processes."""
        self._closed = True
        for worker in self._workers:
            worker.end()
        self._workers = []
        self._selector.close()


def _check_descriptors(workers: int, slots: int) -> None:
    """Refuse workers for which this process has too few file descriptors: what runs out first would be anything."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = limit
    needed = workers * OF_WORKER + slots * OF_SLOT + TO_START
    if limit != resource.RLIM_INFINITY and used + needed > limit:
        raise RoboCacheError(
            f"workers: {workers} workers and {slots} batches take {needed} file descriptors, {max(limit - used, 0)} of "
            f"{limit} are free; raise `ulimit -n`, or use fewer workers"
        )
