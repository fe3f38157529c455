"""Makes the pieces of a plan with one or more processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from robocache_ros.bags.reader import storage_files
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.file_errors import error_number
from robocache_ros.export.freed_memory import return_freed_memory
from robocache_ros.export.pieces.plan import Plan
from robocache_ros.export.pieces.progress import Converted, Failed, Progress, Started
from robocache_ros.export.pieces.recording_to_piece import Outcome, make_pieces_of
from robocache_ros.export.pieces.store import PieceStore
from robocache_ros.export.recordings.planned_recording import PlannedRecording

Outcomes: TypeAlias = list[Outcome]  # of a recording, one for each dataset that it is converted for


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
    tasks = [_Task(each, tuple(name for name, plan in plans.items() if each in plan.distinct)) for each in work]
    sizes = {task: size_of(task.recording.path) for task in tasks}
    shared = _Shared(plans, store, store.count() > 0)
    processes = min(jobs, len(tasks))
    made: dict[str, dict[PlannedRecording, Outcome]] = {name: {} for name in plans}
    if progress:
        progress(Started(tuple(work), tuple(sizes.values()), processes))
    with ExitStack() as stack:
        if processes == 1:
            done: Iterator[tuple[_Task, Outcomes]] = ((task, shared.make(task, progress)) for task in tasks)
        else:
            # Largest first, so that no process is busy with a long recording after the others have finished.
            largest_first = sorted(tasks, key=sizes.__getitem__, reverse=True)
            connections = stack.enter_context(_processes(processes, shared))
            done = _collected(connections, largest_first, progress)
        for task, outcomes in done:
            for name, outcome in zip(task.datasets, outcomes, strict=True):
                made[name][task.recording] = outcome
            if progress:
                _tell(progress, task, outcomes)
    return made


def _tell(progress: Progress, task: _Task, outcomes: Outcomes) -> None:
    """Tell which pieces of a recording are complete, and which failed."""
    pieces = [outcome for outcome in outcomes if outcome.piece]
    if pieces:
        progress(Converted(task.recording, all(outcome.reused for outcome in pieces)))
    for name, outcome in zip(task.datasets, outcomes, strict=True):
        if outcome.error:
            progress(Failed(task.recording, outcome.error, name))


class _Task(NamedTuple):
    """A recording, and the names of the datasets that it is converted for."""

    recording: PlannedRecording
    datasets: tuple[str, ...]


@dataclass(frozen=True)
class _Shared:
    """What all tasks need."""

    plans: Mapping[str, Plan]
    store: PieceStore
    resumed: bool  # pieces of an earlier export exist

    def make(self, task: _Task, progress: Progress | None) -> Outcomes:
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
def _processes(count: int, shared: _Shared) -> Iterator[list[Connection]]:
    """Yield connections to worker processes. Workers are killed on exit, because they have no work to complete."""
    context = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
    threads = max(1, available_cores() // count)
    resource_tracker.ensure_running()  # the first process would start it, which unblocks the signal below
    started: list[BaseProcess] = []
    with ExitStack() as stack:
        stack.callback(_end, started)
        connections = []
        for _ in range(count):
            here, there = context.Pipe()
            stack.callback(here.close)
            process = context.Process(target=_work, args=(there, threads, shared), daemon=True)
            # Ctrl-C reaches the whole process group. Workers inherit the blocked signal; the parent ends them.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                process.start()
                started.append(process)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            there.close()
            connections.append(here)
        yield connections


def _end(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.join()


def _collected(
    connections: Sequence[Connection], tasks: Sequence[_Task], progress: Progress | None
) -> Iterator[tuple[_Task, Outcomes]]:
    """Send the next task to each free process; yield the outcomes."""
    waiting = list(tasks)
    busy: dict[Connection, _Task] = {}

    def give(connection: Connection) -> None:
        if waiting:
            connection.send(waiting[0])
            busy[connection] = waiting.pop(0)

    for connection in connections:
        give(connection)
    while busy:
        for ready in wait(list(busy)):
            assert isinstance(ready, Connection)
            try:
                told = ready.recv()
            except (EOFError, ConnectionResetError):
                name = printable(busy[ready].recording.path.name)
                raise RoboCacheError(
                    f"{name}: its process was killed, probably out of memory; run the same command again with "
                    "fewer --jobs"
                ) from None
            if isinstance(told, BaseException):
                raise told
            if isinstance(told, list):
                yield busy.pop(ready), told
                give(ready)
            elif progress:
                progress(told)


def _work(connection: Connection, threads: int, shared: _Shared) -> None:
    """Worker process: make the pieces of each received recording; send its progress and the outcomes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

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
