"""Makes the pieces of a plan with one or more processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from robocache_ros.bags.reader import storage_files
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.file_errors import error_number
from robocache_ros.export.freed_memory import return_freed_memory
from robocache_ros.export.pieces.plan import Plan
from robocache_ros.export.pieces.progress import Converted, Failed, Progress, Started
from robocache_ros.export.pieces.recording_to_piece import Outcome, make_piece
from robocache_ros.export.pieces.store import PieceStore
from robocache_ros.export.recordings.planned_recording import PlannedRecording


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def make_pieces(plan: Plan, store: PieceStore, jobs: int, progress: Progress | None) -> dict[PlannedRecording, Outcome]:
    """Make the pieces of a plan; return the outcome of each recording.

    Errors:
        OSError: an error of the target, such as a full disk; complete pieces are kept.
        RoboCacheError: a process was killed.
    """
    resumed = store.count() > 0
    recordings = plan.distinct
    sizes = {recording: size_of(recording.path) for recording in recordings}
    processes = min(jobs, len(recordings))
    made = {}
    if progress:
        progress(Started(recordings, tuple(sizes.values()), processes))
    with ExitStack() as stack:
        if processes == 1:
            outcomes: Iterator[Outcome] = (
                make_piece(plan, each, store, resumed=resumed, progress=progress) for each in recordings
            )
        else:
            # Largest first, so that no process is busy with a long recording after the others have finished.
            largest_first = sorted(recordings, key=sizes.__getitem__, reverse=True)
            connections = stack.enter_context(_processes(processes, (plan, store, resumed)))
            outcomes = _collected(connections, largest_first, progress)
        for outcome in outcomes:
            made[outcome.recording] = outcome
            if progress:
                failed = outcome.error
                progress(Failed(outcome.recording, failed) if failed else Converted(outcome.recording, outcome.reused))
    return made


def size_of(recording: Path) -> int:
    """Return the bytes of the files of a recording."""
    try:
        return sum(file.stat().st_size for file in storage_files(recording))
    except OSError:
        return 0  # removed meanwhile: the conversion reports the error for this recording only


@contextmanager
def _processes(count: int, shared: tuple[Plan, PieceStore, bool]) -> Iterator[list[Connection]]:
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
            process = context.Process(target=_work, args=(there, threads, *shared), daemon=True)
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
    connections: Sequence[Connection], recordings: Sequence[PlannedRecording], progress: Progress | None
) -> Iterator[Outcome]:
    """Send the next recording to each free process; yield the outcomes."""
    waiting = list(recordings)
    busy: dict[Connection, PlannedRecording] = {}

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
                name = printable(busy[ready].path.name)
                raise RoboCacheError(
                    f"{name}: its process was killed, probably out of memory; run the same command again with "
                    "fewer --jobs"
                ) from None
            if isinstance(told, BaseException):
                raise told
            if isinstance(told, Outcome):
                del busy[ready]
                yield told
                give(ready)
            elif progress:
                progress(told)


def _work(connection: Connection, threads: int, plan: Plan, store: PieceStore, resumed: bool) -> None:
    """Worker process: make the piece of each received recording; send its progress and its outcome."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(threads)
    return_freed_memory()
    try:
        while True:
            recording = connection.recv()
            try:
                outcome: Any = make_piece(plan, recording, store, resumed=resumed, progress=connection.send)
            except OSError as error:  # an error of the target; PyAV's subclasses cannot be pickled
                outcome = OSError(error_number(error), os.strerror(error_number(error)), error.filename)
            except Exception:
                outcome = RuntimeError(f"{recording.path}:\n{traceback.format_exc()}")
            connection.send(outcome)
    except (EOFError, BrokenPipeError):
        return  # the parent has closed the connection


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    wait([parent.sentinel])
    os._exit(1)  # so that a new export does not share the machine with this process
