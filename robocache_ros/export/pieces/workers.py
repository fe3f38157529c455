"""Makes the pieces of a plan with one or more processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from robocache_ros.bags.reader import storage_files
from robocache_ros.export.file_errors import error_number
from robocache_ros.export.freed_memory import return_freed_memory
from robocache_ros.export.pieces.collect_results import Collector, Outcomes, Results, Task, next_of
from robocache_ros.export.pieces.plan import Plan
from robocache_ros.export.pieces.progress import Progress, Started
from robocache_ros.export.pieces.recording_to_piece import Outcome, make_pieces_of
from robocache_ros.export.pieces.store import PieceStore
from robocache_ros.export.recordings.planned_recording import PlannedRecording


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def make_pieces(
    plans: Mapping[str, Plan], store: PieceStore, jobs: int, progress: Progress | None
) -> dict[str, dict[PlannedRecording, Outcome]]:
    """Make the pieces of plans, all pieces of a recording in one pass; return the outcome of each recording by plan.

    Args:
        plans: by the names of the datasets.
        store: of the pieces.
        jobs: maximum number of processes.
        progress: called with the progress.

    Errors:
        OSError: an error of the target, such as a full disk; complete pieces are kept.
        RoboCacheError: a process was killed.
    """
    work = {recording: None for plan in plans.values() for recording in plan.distinct}
    tasks = [Task(each, tuple(name for name, plan in plans.items() if each in plan.distinct)) for each in work]
    sizes = {task: size_of(task.recording.path) for task in tasks}
    shared = _Shared(plans, store, store.count() > 0)
    processes = min(jobs, len(tasks))
    results = Results(plans, progress)
    results.tell(Started(tuple(work), tuple(sizes.values()), processes))
    if processes == 1:
        for task in tasks:
            results.add(task, shared.make(task, results.tell))
    else:
        # Largest first, so that no process is busy with a long recording after the others have finished.
        _make_with_processes(sorted(tasks, key=sizes.__getitem__, reverse=True), processes, shared, results)
    return results.made


def _make_with_processes(tasks: Iterable[Task], count: int, shared: _Shared, results: Results) -> None:
    """Make pieces in this process, and in `count` - 1 others: each of them imports torch for two seconds first."""
    waiting, threads = deque(tasks), max(1, available_cores() // count)
    task = next_of(waiting)
    with ExitStack() as stack:
        stack.enter_context(_torch_threads(threads))
        collector = Collector(waiting, results)
        stack.callback(collector.join)  # after the processes have ended, and with them what it collects
        collector.start(stack.enter_context(_processes(count - 1, threads, shared)))
        while task and not collector.error:
            results.add(task, shared.make(task, collector.tell))
            task = next_of(waiting)
        collector.join()
        if collector.error:
            raise collector.error


@dataclass(frozen=True)
class _Shared:
    """What all tasks need."""

    plans: Mapping[str, Plan]
    store: PieceStore
    resumed: bool  # pieces of an earlier export exist

    def make(self, task: Task, progress: Progress | None) -> Outcomes:
        """Make the pieces of a recording."""
        plans = [self.plans[name] for name in task.datasets]
        return make_pieces_of(task.recording, plans, self.store, resumed=self.resumed, progress=progress)


def size_of(recording: Path) -> int:
    """Return the bytes of the files of a recording."""
    try:
        return sum(file.stat().st_size for file in storage_files(recording))
    except OSError:
        return 0  # removed meanwhile: the conversion reports the error for this recording only


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _processes(count: int, threads: int, shared: _Shared) -> Iterator[list[Connection]]:
    """Yield connections to worker processes. Workers are killed on exit, because they have no work to complete."""
    context = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
    resource_tracker.ensure_running()  # the first process would start it, which unblocks the signal below
    started: list[BaseProcess] = []
    connections: list[Connection] = []
    try:
        for _ in range(count):
            here, there = context.Pipe()
            connections.append(here)
            process = context.Process(target=_work, args=(there, threads, shared), daemon=True)
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


def _work(connection: Connection, threads: int, shared: _Shared) -> None:
    """Worker process: make the pieces of each received recording; send its progress and the outcomes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    return_freed_memory()
    try:
        while True:
            task = connection.recv()
            try:
                told: Any = shared.make(task, connection.send)
            except OSError as error:  # an error of the target; PyAV's subclasses cannot be pickled
                told = OSError(error_number(error), os.strerror(error_number(error)), error.filename)
            except Exception:
                told = RuntimeError(f"{task.recording.path}:\n{traceback.format_exc()}")
            connection.send(told)
    except (EOFError, BrokenPipeError):
        return  # the parent has closed the connection


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    wait([parent.sentinel])
    os._exit(1)  # so that a new export does not share the machine with this process
