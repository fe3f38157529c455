"""Runs the tasks of an export with Ray: on the machines of a cluster, or on the cores of this one."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic

import torch

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.exporter.executors.base import (
    Executor,
    Finished,
    Resources,
    ResultT,
    Task,
    TaskT,
    finished,
    return_freed_memory,
)
from robocache_ros.exporter.executors.local import LocalProcesses, available_cores
from robocache_ros.exporter.progress import Advanced, Event, Progress
from robocache_ros.extras import need
from robocache_ros.storage.cache import UNITS

ADDRESS = "RAY_ADDRESS"
ONLY_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0: a Ray of one machine, which listens on 127.0.0.1 only
CONNECT_S = 10.0  # Ray itself tries for minutes
RECOUNT_S = 5.0  # machines may come and go
TEMPORARY_CHARACTERS = 20  # of the temporary folder: names of sockets in it, with 80 more, have fewer than 108
STORE_BYTES = 100 << 20  # of a Ray that is started here, whose tasks share the plan of the export only

_log = logging.getLogger(__name__)


@contextmanager
def ray_session(address: str | None, *, slots: int | None = None) -> Iterator[Any]:
    """Connect to a cluster; yield the module `ray`.

    Args:
        address: `host:port`, `auto` or `ray://host:port`; None: RAY_ADDRESS, or a Ray that is started on the cores of
            this machine, and stopped on exit. A session that this process has is used, and kept, in any case.
        slots: cores that a Ray that is started takes this machine to have; None: as many as there are.

    Errors:
        RoboCacheError: Ray is not installed, or the cluster cannot be reached.
    """
    address = address or os.environ.get(ADDRESS) or "local"
    if address == "local":  # read when Ray is imported
        os.environ.setdefault(ONLY_LOOPBACK, "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = need("ray", "fleet")
    with ExitStack() as stack:
        if not ray.is_initialized():
            _connect(ray, address, slots or available_cores(), stack)
        yield ray


def _connect(ray: Any, address: str, slots: int, stack: ExitStack) -> None:
    quiet = {"configure_logging": False, "log_to_driver": False}
    logging.getLogger("ray").setLevel(logging.ERROR)
    # Ray prints which processes were killed to stdout, where the document of --json is.
    if hasattr(ray._private.worker, "print_to_stdstream"):
        ray._private.worker.print_to_stdstream = lambda message, **_: _log.info("%s", message.get("lines"))
    options: dict[str, Any] = {"address": address}
    if address == "local":
        # In a folder of its own, no other program takes this Ray for that of the machine.
        short = None if len(tempfile.gettempdir()) <= TEMPORARY_CHARACTERS else "/tmp"
        made = tempfile.TemporaryDirectory(prefix="ray-", dir=short, ignore_cleanup_errors=True)
        folder = stack.enter_context(made)
        options |= {"num_cpus": slots, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        options["_temp_dir"] = folder
    else:
        _check(address)
    stack.callback(ray.shutdown)
    with _own_handlers():
        try:
            ray.init(**options, **quiet)
        except (OSError, RuntimeError, ValueError) as error:
            reason = printable((str(error).strip().splitlines() or [type(error).__name__])[0], 100)
            raise RoboCacheError(
                f"address: {printable(address, 40)}: no connection to Ray: {reason}; a cluster with tokens needs "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
            ) from None


def _check(address: str) -> None:
    """Refuse the address of a machine that does not answer, before Ray tries for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        if address != "auto" and "://" not in address:
            raise RoboCacheError(f"address: {printable(address, 60)}: not an address of Ray; give HOST:6379 or auto")
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise RoboCacheError(
            f"address: {printable(address, 60)}: no Ray answers ({printable(error, 60)}); give that of a cluster"
        ) from None


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep the handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Machines:
    """What the machines of a cluster have, counted again from time to time.

    Args:
        ray: the module.
        clock: seconds on a monotonic clock.
    """

    def __init__(self, ray: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._ray, self._clock = ray, clock
        self._counted_s = -RECOUNT_S
        self._found: list[Mapping[str, float]] = []
        self._stated = False

    def slots(self, needs: Resources) -> int:
        """Return how many tasks of these needs run at once: one at least, as a machine may be started for it."""
        wanted = {"CPU": needs.cpus, "GPU": needs.gpus, "memory": needs.memory_bytes}
        found = sum(min(int(has.get(name, 0) / n) for name, n in wanted.items() if n) for has in self._resources())
        if not found and not self._stated:
            self._stated = True
            _log.warning(
                "robocache: no machine of the cluster has %g cores, %g GPUs and %.1f GB; waiting for one",
                *(needs.cpus, needs.gpus, needs.memory_bytes / 1e9),
            )
        return max(1, found)

    def fitting(self, needs: Resources) -> Resources:
        """Return needs with at most the memory of the largest machine: a task that needs more would never start."""
        able = (has for has in self._resources() if has.get("CPU", 0) >= needs.cpus)
        largest = max((int(has.get("memory", 0)) for has in able), default=0)
        return replace(needs, memory_bytes=min(needs.memory_bytes, largest or needs.memory_bytes))

    def _resources(self) -> list[Mapping[str, float]]:
        if self._clock() - self._counted_s >= RECOUNT_S:
            self._counted_s = self._clock()
            self._found = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return self._found


PER_SLOT = 2  # tasks that are submitted for each one that can run, so that no machine waits for this process
CRASHES = 32  # of the process of one task; a machine may be lost any number of times
UNKNOWN_BYTES = 1 << 30  # memory of a task that states none


@dataclass(frozen=True)
class _Attempt(Generic[TaskT]):
    """A task that is to be run, or runs."""

    task: TaskT
    needs: Resources
    crashes: int = 0
    enlarged: bool = False  # it was out of memory once


class RayTasks:
    """An executor: a Ray task for each task, which the dashboard shows by its name.

    Tasks of lost machines and of killed processes are run again. A task that is out of memory is run once more, with
    twice the memory. An error that a task raises is its result, except an OSError, which is one of the target.

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

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def parallel(self, tasks: Sequence[Task]) -> int:
        """Return how many of these tasks the machines of the cluster run at the same time."""
        return min(self._machines.slots(self._used(tasks[0])), len(tasks)) if tasks else 0

    def map(
        self, work: Callable[[TaskT, Progress], ResultT], tasks: Sequence[TaskT], progress: Progress
    ) -> Generator[tuple[TaskT, ResultT | RoboCacheError], None, None]:
        """Run tasks; see `Executor`. `Advanced` is left out: it is a message for each second of a recording."""
        ray = self._ray
        call, shared = ray.remote(max_retries=0)(_run), ray.put(work)
        waiting = deque(_Attempt(task, self._used(task)) for task in sorted(tasks, key=lambda task: -task.size))
        running: dict[Any, _Attempt[TaskT]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < PER_SLOT * self._machines.slots(waiting[0].needs):
                    attempt = waiting.popleft()
                    running[self._submitted(call, shared, attempt)] = attempt
                ray.wait(list(running), num_returns=1, timeout=RECOUNT_S)
                for ended in ray.wait(list(running), num_returns=len(running), timeout=0)[0]:
                    attempt = running.pop(ended)
                    result = self._result(attempt, ended)
                    if isinstance(result, _Attempt):
                        waiting.appendleft(result)
                    elif isinstance(result, Finished):
                        for event in result.events:
                            progress(event)
                        yield attempt.task, result.result
                    else:
                        yield attempt.task, result
        finally:
            for one in running:
                ray.cancel(one, force=True)
            if running:  # until their processes have ended, so that what they have written can be removed
                ray.wait(list(running), num_returns=len(running), timeout=RECOUNT_S)

    def _used(self, task: Task) -> Resources:
        return self._machines.fitting(self._needs(task.needs))

    def _submitted(self, call: Any, shared: Any, attempt: _Attempt[TaskT]) -> Any:
        """Submit a task; return the reference to its result."""
        needs = attempt.needs
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "memory": needs.memory_bytes or None}
        return call.options(name=printable(attempt.task.name), **options).remote(
            shared, attempt.task, max(1, int(needs.cpus))
        )

    def _result(self, attempt: _Attempt[TaskT], ended: Any) -> Finished | RoboCacheError | _Attempt[TaskT]:
        """Return the result of a task, its error, or what is to be run again."""
        errors, needs, where = self._ray.exceptions, attempt.needs, printable(attempt.task.name, 60)
        try:
            result: Finished | RoboCacheError | OSError = self._ray.get(ended)
        except (errors.NodeDiedError, errors.LocalRayletDiedError, errors.ObjectLostError):
            return attempt
        except errors.WorkerCrashedError:
            if attempt.crashes + 1 < CRASHES:
                return replace(attempt, crashes=attempt.crashes + 1)
            return RoboCacheError(f"{where}: its process ended {CRASHES} times; convert it by itself, with --jobs 1")
        except errors.OutOfMemoryError:
            if not attempt.enlarged:
                twice = replace(needs, memory_bytes=2 * (needs.memory_bytes or UNKNOWN_BYTES))
                return replace(attempt, needs=self._machines.fitting(twice), enlarged=True)
            return RoboCacheError(f"{where}: {needs.memory_bytes / 1e9:.1f} GB of memory are not enough; state more")
        except errors.RayError as error:
            reason = printable((str(error).strip().splitlines() or [type(error).__name__])[-1], 100)
            raise RoboCacheError(f"{where}: Ray cannot run it: {reason}; install one version on all machines") from None
        if isinstance(result, OSError):
            raise result
        return result


def _run(work: Callable[[TaskT, Progress], Any], task: TaskT, threads: int) -> Finished | Exception:
    """Run a task in a process of the cluster."""
    torch.set_num_threads(threads)
    return_freed_memory()
    events: list[Event] = []
    result = finished(work, task, lambda event: None if isinstance(event, Advanced) else events.append(event))
    if isinstance(result, Finished):
        return result._replace(events=tuple(events))
    if isinstance(result, (OSError, RoboCacheError)):
        return result
    logging.getLogger(__name__).error("%s", result)  # with its traceback, in the log of this process
    last = printable(str(result).strip().splitlines()[-1], 100)
    return RoboCacheError(f"{printable(task.name, 60)}: {last}; the log of its Ray task has the traceback")


EXECUTORS = ("local", "ray")
_MAXIMUM = {"cpus": 1024, "gpus": 64, "memory": 1 << 44}
_NEED = re.compile(r"(cpus|gpus|memory)=(\d{1,15}(?:\.\d{1,6})?)(MB|GB|MiB|GiB|)")


def chosen_executor(
    executor: str = "local", *, jobs: int | None = None, address: str | None = None, per_task: str | None = None
) -> Executor:
    """Return what runs the tasks of an export.

    Args:
        executor: `local`: processes of this machine; `ray`.
        jobs: number of local processes; None: the number of cores.
        address: of a cluster of Ray, as for `RayTasks`.
        per_task: what Ray reserves for a recording, such as `cpus=2,gpus=0.25,memory=4GB`; the others are estimated.

    Errors:
        RoboCacheError: an option is wrong, or is not one of this executor.
    """
    if executor not in EXECUTORS:
        raise RoboCacheError(f"executor: {printable(executor, 40)!r} is not one of {', '.join(EXECUTORS)}")
    if executor == "ray":
        if jobs is not None:
            raise RoboCacheError("jobs: is for processes of this machine; with --executor ray, use --per-task cpus=...")
        return RayTasks(address, stated_needs(per_task or ""))
    for name, value in (("address", address), ("per-task", per_task)):
        if value is not None:
            raise RoboCacheError(f"{name}: is an option of Ray; add --executor ray")
    return LocalProcesses(jobs)


def stated_needs(per_task: str) -> Callable[[Resources], Resources]:
    """Return what replaces the resources of tasks by stated ones, such as `cpus=2,memory=4GB`; empty: nothing."""
    stated: dict[str, float] = {}
    for part in filter(None, per_task.replace(" ", "").split(",")):
        found = _NEED.fullmatch(part)
        name = found[1] if found else ""
        if not found or name in stated or (found[3] and name != "memory"):
            raise RoboCacheError(
                f"per-task: {printable(per_task, 60)!r}; write for example cpus=2,gpus=0.25,memory=4GB"
            )
        stated[name] = float(found[2]) * UNITS[found[3]]
        if stated[name] > _MAXIMUM[name] or (name == "cpus" and not stated[name]):
            raise RoboCacheError(f"per-task: {name} is not in the range up to {_MAXIMUM[name]:,}; correct it")

    def used(needs: Resources) -> Resources:
        return Resources(
            stated.get("cpus", needs.cpus),
            stated.get("gpus", needs.gpus),
            int(stated.get("memory", needs.memory_bytes)),
        )

    return used
