"""Runs the tasks of an export with Ray: on the machines of a cluster, or on the cores of this one."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Generic

import torch

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.engines.ray_session import RECOUNT_S, Machines, ray_session
from robocache_ros.export.engines.task_engine import Finished, Resources, ResultT, Task, TaskT, finished
from robocache_ros.export.freed_memory import return_freed_memory
from robocache_ros.export.pieces.progress import Progress

PER_SLOT = 2  # tasks that are submitted for each one that can run, so that no machine waits for this process
CRASHES = 32  # of the process of one task; a machine may be lost any number of times
UNKNOWN_BYTES = 1 << 30  # memory of a task that states none

Done = Callable[[TaskT, Any], None]


@dataclass(frozen=True)
class _Attempt(Generic[TaskT]):
    """A task that is to be run, or runs."""

    task: TaskT
    needs: Resources
    crashes: int = 0
    enlarged: bool = False  # it was out of memory once


class RayTasks:
    """An engine: a Ray task for each task, which the dashboard shows by its name.

    Tasks of lost machines and of killed processes are run again. A task that is out of memory is run once more, with
    twice the memory. An error that a task raises is given to `done`, but for an OSError, which is one of the target.

    Args:
        address: of a cluster; None: RAY_ADDRESS, or a Ray on this machine, which is started and stopped.
        needs: changes what the tasks state that they need.

    Errors:
        RoboCacheError: Ray is not installed, or the cluster cannot be used.
    """

    remote = True

    def __init__(
        self, address: str | None = None, needs: Callable[[Resources], Resources] = lambda needs: needs
    ) -> None:
        self._address, self._needs = address, needs
        self._stack = ExitStack()

    def __enter__(self) -> RayTasks:
        self._ray = self._stack.enter_context(ray_session(self._address))
        self._machines = Machines(self._ray)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def parallel(self, tasks: Sequence[Task]) -> int:
        """Return how many of these tasks the machines of the cluster run at the same time."""
        return min(self._machines.slots(self._used(tasks[0])), len(tasks)) if tasks else 0

    def run(
        self,
        work: Callable[[TaskT, Progress], ResultT],
        tasks: Sequence[TaskT],
        done: Callable[[TaskT, ResultT | RoboCacheError], None],
        tell: Progress,
    ) -> None:
        """Run tasks; see `Engine`. What `work` tells is left out: that is a message for every second of a recording."""
        ray = self._ray
        call, shared = ray.remote(max_retries=0)(_run), ray.put(work)
        waiting = deque(_Attempt(task, self._used(task)) for task in sorted(tasks, key=lambda task: -task.size))
        running: dict[Any, _Attempt[TaskT]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < PER_SLOT * self._machines.slots(waiting[0].needs):
                    attempt = waiting.popleft()
                    running[self._begun(call, shared, attempt)] = attempt
                ray.wait(list(running), num_returns=1, timeout=RECOUNT_S)
                for ended in ray.wait(list(running), num_returns=len(running), timeout=0)[0]:
                    if again := self._ended(running.pop(ended), ended, done):
                        waiting.appendleft(again)
        finally:
            for one in running:
                ray.cancel(one, force=True)
            if running:  # until their processes have ended, so that what they have written can be removed
                ray.wait(list(running), num_returns=len(running), timeout=RECOUNT_S)

    def _used(self, task: Task) -> Resources:
        return self._machines.fitting(self._needs(task.needs))

    def _begun(self, call: Any, shared: Any, attempt: _Attempt[TaskT]) -> Any:
        """Submit a task; return the reference to its result."""
        needs = attempt.needs
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "memory": needs.memory_bytes or None}
        return call.options(name=printable(attempt.task.name), **options).remote(
            shared, attempt.task, max(1, int(needs.cpus))
        )

    def _ended(self, attempt: _Attempt[TaskT], ended: Any, done: Done[TaskT]) -> _Attempt[TaskT] | None:
        """Pass on the result of a task, or its error; return what is to be run again."""
        errors, needs, where = self._ray.exceptions, attempt.needs, printable(attempt.task.name, 60)
        try:
            told = self._ray.get(ended)
        except (errors.NodeDiedError, errors.LocalRayletDiedError, errors.ObjectLostError):
            return attempt
        except errors.WorkerCrashedError:
            if attempt.crashes + 1 < CRASHES:
                return replace(attempt, crashes=attempt.crashes + 1)
            told = RoboCacheError(f"{where}: its process ended {CRASHES} times; convert it alone, with --jobs 1")
        except errors.OutOfMemoryError:
            if not attempt.enlarged:
                twice = replace(needs, memory_bytes=2 * (needs.memory_bytes or UNKNOWN_BYTES))
                return replace(attempt, needs=self._machines.fitting(twice), enlarged=True)
            told = RoboCacheError(f"{where}: {needs.memory_bytes / 1e9:.1f} GB of memory are not enough; state more")
        except errors.RayError as error:
            reason = printable((str(error).strip().splitlines() or [type(error).__name__])[-1], 100)
            raise RoboCacheError(f"{where}: Ray cannot run it: {reason}; install one version on all machines") from None
        if isinstance(told, OSError):
            raise told
        done(attempt.task, told.result if isinstance(told, Finished) else told)
        return None


def _run(work: Callable[[TaskT, Progress], Any], task: TaskT, threads: int) -> Finished | Exception:
    """Run a task in a process of the cluster."""
    torch.set_num_threads(threads)
    return_freed_memory()
    told = finished(work, task, lambda _event: None)
    if isinstance(told, (Finished, OSError, RoboCacheError)):
        return told
    logging.getLogger(__name__).error("%s", told)  # with its traceback, in the log of this process
    last = printable(str(told).strip().splitlines()[-1], 100)
    return RoboCacheError(f"{printable(task.name, 60)}: {last}; the log of its Ray task has the traceback")
