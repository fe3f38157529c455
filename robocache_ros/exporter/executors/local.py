"""Runs the tasks of an export in this process and in others of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple

import torch

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.exporter.executors.base import (
    Finished,
    ResultT,
    Task,
    TaskT,
    finished,
    return_freed_memory,
)
from robocache_ros.exporter.progress import Event, Progress


class _Assigned(NamedTuple):
    """What is sent to a process before the tasks of a run."""

    work: Callable[[Any, Progress], Any]


class _Collector(Generic[TaskT]):
    """Gives tasks to processes and collects their results, in a thread.

    Args:
        work: runs a task, in each process.
        waiting: the tasks; others may take some of them.
        progress: called with the progress, by one thread at a time.

    Attributes:
        results: tasks with their results, or the error.
        error: an error that ends the tasks.
    """

    def __init__(self, work: Callable[[TaskT, Progress], Any], waiting: deque[TaskT], progress: Progress) -> None:
        self.results: SimpleQueue[tuple[TaskT, Any] | BaseException] = SimpleQueue()
        self.error: BaseException | None = None
        # Pickled before this process runs tasks, which add to what the work caches while a thread would copy it.
        self._assigned = bytes(ForkingPickler.dumps(_Assigned(work)))
        self._waiting, self._progress = waiting, progress
        self._lock = threading.Lock()
        self._busy: dict[Connection, TaskT] = {}
        self._thread: threading.Thread | None = None

    def start(self, connections: Sequence[Connection]) -> None:
        """Start with connections to all processes."""
        self._thread = threading.Thread(target=self._run, args=(connections,), name="collect", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until all processes have finished, or have ended."""
        if self._thread:
            self._thread.join()

    def progress(self, event: Event) -> None:
        """Pass on an event of a task in this process, which an error ends as well."""
        with self._lock:
            self._progress(event)
        if self.error:
            raise self.error

    def _run(self, connections: Sequence[Connection]) -> None:
        try:
            for connection in connections:
                self._give(connection, self._assigned)
            while self._busy:
                for ready in wait(list(self._busy)):
                    assert isinstance(ready, Connection)
                    self._take(ready)
        except BaseException as error:  # raised again in the main thread
            self.error = error
            self.results.put(error)

    def _give(self, connection: Connection, before: bytes = b"") -> None:
        task = next_of(self._waiting)
        if task:
            self._busy[connection] = task
            try:
                if before:
                    connection.send_bytes(before)
                connection.send(task)
            except (BrokenPipeError, ConnectionResetError):
                raise _killed(task) from None

    def _take(self, connection: Connection) -> None:
        task = self._busy[connection]
        try:
            received = connection.recv()
        except (EOFError, ConnectionResetError):
            raise _killed(task) from None
        if isinstance(received, BaseException):
            raise received
        if isinstance(received, Finished):
            del self._busy[connection]
            self.results.put((task, received.result))
            self._give(connection)
        else:
            with self._lock:
                self._progress(received)


def next_of(waiting: deque[TaskT]) -> TaskT | None:
    """Take the next task, None if there is none; other threads may take tasks at the same time."""
    try:
        return waiting.popleft()
    except IndexError:
        return None


def _killed(task: Task) -> RoboCacheError:
    return RoboCacheError(
        f"{printable(task.name)}: its process was killed, probably out of memory; run the same command "
        "again with fewer --jobs"
    )


LONG_BYTES = 4 << 30  # short tasks that read so much together take many times as long as the start of a process


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class LocalProcesses:
    """An executor: this process, and others, which are started when a run needs them and used by later runs.

    Short tasks, for which no process is worth its start, are run by threads of this process if there are no others.

    Args:
        jobs: maximum number of processes; None: the number of cores.

    Errors of a run:
        RoboCacheError: a process was killed.
    """

    remote = False

    def __init__(self, jobs: int | None = None) -> None:
        if jobs is not None and jobs < 1:
            raise RoboCacheError(f"jobs: {jobs} is below 1; use 1 or more processes")
        self._jobs = jobs or available_cores()
        self._others: list[_Process] = []

    def parallel(self, tasks: Sequence[Task]) -> int:
        """Return the number of processes for these tasks."""
        return min(self._jobs, len(tasks))

    def map(
        self, work: Callable[[TaskT, Progress], ResultT], tasks: Sequence[TaskT], progress: Progress
    ) -> Generator[tuple[TaskT, ResultT], None, None]:
        """Run tasks; see `Executor`. Each of the other processes imports torch for two seconds first.

        Results of other processes are yielded between the tasks of this process, and after them.
        """
        count = self.parallel(tasks)
        # Largest first, so that no process is busy with a long task after the others have finished.
        ordered = sorted(tasks, key=lambda task: task.size, reverse=True) if count > 1 else tasks
        is_long = any(task.is_long for task in tasks) or sum(task.size for task in tasks) > LONG_BYTES
        if count <= 1:
            for task in ordered:
                yield task, work(task, progress)
        elif is_long or self._others:
            others = count - 1 if is_long else len(self._others)
            yield from self._map_with_others(work, deque(ordered), progress, others)
        else:
            yield from _map_in_threads(work, ordered, progress, count)

    def _map_with_others(
        self, work: Callable[[TaskT, Progress], ResultT], waiting: deque[TaskT], progress: Progress, others: int
    ) -> Generator[tuple[TaskT, ResultT], None, None]:
        """Run tasks in this process and in others."""
        remaining, threads = len(waiting), max(1, available_cores() // (others + 1))
        mine = next_of(waiting)
        collector = _Collector(work, waiting, progress)
        with _torch_threads(threads):
            try:
                while len(self._others) < others:
                    self._others.append(_started(threads))
                collector.start([other.connection for other in self._others[:others]])
                while remaining:
                    if mine and not collector.error:
                        collector.results.put((mine, work(mine, collector.progress)))
                        mine = next_of(waiting)
                    while remaining and not (mine and collector.results.empty()):
                        found = collector.results.get()
                        if isinstance(found, BaseException):
                            raise found
                        remaining -= 1
                        yield found
            except BaseException:
                self._end_others()
                raise
            finally:
                collector.join()  # after an error: after the processes have ended, and with them what it collects

    def _end_others(self) -> None:
        """Kill the other processes, because they have no work to complete."""
        others, self._others = self._others, []
        for other in others:
            other.process.kill()
        for other in others:
            other.process.join()
            other.connection.close()

    def __enter__(self) -> LocalProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_others()


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _map_in_threads(
    work: Callable[[TaskT, Progress], ResultT], tasks: Sequence[TaskT], progress: Progress, count: int
) -> Generator[tuple[TaskT, ResultT], None, None]:
    """Run tasks in threads of this process, up to the first error."""
    lock = threading.Lock()

    def tell(event: Event) -> None:
        with lock:
            progress(event)

    with ThreadPoolExecutor(count, "task") as pool:
        try:
            for task, running in [(task, pool.submit(work, task, tell)) for task in tasks]:
                yield task, running.result()
        finally:
            pool.shutdown(cancel_futures=True)


class _Process(NamedTuple):
    """A worker process."""

    process: BaseProcess
    connection: Connection


def _started(threads: int) -> _Process:
    """Start a worker process."""
    context = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
    resource_tracker.ensure_running()  # the first process would start it, which unblocks the signal below
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(there, threads), daemon=True)
    # Ctrl-C reaches the whole process group. Workers inherit the blocked signal; the parent ends them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()
    return _Process(process, here)


def _work(connection: Connection, threads: int) -> None:
    """Worker process: run each received task with the work that came before; send its progress and its result."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    return_freed_memory()
    work: Any = None
    try:
        while True:
            task = connection.recv()
            if isinstance(task, _Assigned):
                work = task.work
                continue
            connection.send(finished(work, task, connection.send))
    except (EOFError, BrokenPipeError):
        return  # the parent has closed the connection


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    wait([parent.sentinel])
    os._exit(1)  # so that a new export does not share the machine with this process
