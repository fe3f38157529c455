"""Runs the tasks of an export in this process and in others of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, TypeAlias

import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.export.engines.collector import Collector, Finished, next_of
from robocache_ros.export.engines.task_engine import ResultT, Task, TaskT
from robocache_ros.export.file_errors import error_number
from robocache_ros.export.freed_memory import return_freed_memory
from robocache_ros.export.pieces.progress import Progress

Work: TypeAlias = Callable[[Any, Progress], Any]


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class LocalProcesses:
    """An engine: this process, and others that it starts for each run.

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

    def parallel(self, tasks: Sequence[Task]) -> int:
        """Return the number of processes for these tasks."""
        return min(self._jobs, len(tasks))

    def run(
        self,
        work: Callable[[TaskT, Progress], ResultT],
        tasks: Sequence[TaskT],
        done: Callable[[TaskT, ResultT | RoboCacheError], None],
        tell: Progress,
    ) -> None:
        """Run tasks; see `Engine`. Each of the other processes imports torch for two seconds first."""
        count = self.parallel(tasks)
        if count <= 1:
            for task in tasks:
                done(task, work(task, tell))
            return
        # Largest first, so that no process is busy with a long task after the others have finished.
        waiting = deque(sorted(tasks, key=lambda task: task.size, reverse=True))
        mine, threads = next_of(waiting), max(1, available_cores() // count)
        with ExitStack() as stack:
            stack.enter_context(_torch_threads(threads))
            collector = Collector(waiting, done, tell)
            stack.callback(collector.join)  # after the processes have ended, and with them what it collects
            collector.start(stack.enter_context(_processes(count - 1, threads, work)))
            while mine and not collector.error:
                collector.done(mine, work(mine, collector.tell))
                mine = next_of(waiting)
            collector.join()
            if collector.error:
                raise collector.error

    def __enter__(self) -> LocalProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _processes(count: int, threads: int, work: Work) -> Iterator[list[Connection]]:
    """Yield connections to worker processes. Workers are killed on exit, because they have no work to complete."""
    context = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
    resource_tracker.ensure_running()  # the first process would start it, which unblocks the signal below
    started: list[BaseProcess] = []
    connections: list[Connection] = []
    try:
        for _ in range(count):
            here, there = context.Pipe()
            connections.append(here)
            process = context.Process(target=_work, args=(there, threads, work), daemon=True)
            # Ctrl-C reaches the whole process group. Workers inherit the blocked signal; the parent ends them.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                process.start()
                started.append(process)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            there.close()
        yield connections
    finally:
        for each in started:
            each.kill()
        for each in started:
            each.join()


def _work(connection: Connection, threads: int, work: Work) -> None:
    """Worker process: run each received task; send its progress and its result."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    return_freed_memory()
    try:
        while True:
            task: Task = connection.recv()
            try:
                told: Any = Finished(work(task, connection.send))
            except OSError as error:  # an error of the target; PyAV's subclasses cannot be pickled
                told = OSError(error_number(error), os.strerror(error_number(error)), error.filename)
            except RoboCacheError as error:
                told = error
            except Exception:
                told = RuntimeError(f"{task.name}:\n{traceback.format_exc()}")
            connection.send(told)
    except (EOFError, BrokenPipeError):
        return  # the parent has closed the connection


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    wait([parent.sentinel])
    os._exit(1)  # so that a new export does not share the machine with this process
