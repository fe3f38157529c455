"""Executors: what runs the independent tasks of an export, in processes of this machine or with Ray."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import torch

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.exporter.progress import Advanced, Event, Progress
from robocache_ros.extras import need
from robocache_ros.processes import blocked_interrupt, end_with_parent, main_left_out, set_malloc
from robocache_ros.storage.cache import UNITS, release_all
from robocache_ros.storage.errors import error_number

# By default, glibc raises the thresholds to the size of freed blocks, up to 32 MB. Large messages, clouds and images
# are then allocated on the heap between small long-lived objects, and the gaps cannot be returned. With lower
# thresholds than these, the memory of each frame for an encoder is mapped anew, whose page faults take a tenth of the
# time of an export.
_MALLOPT = {"MALLOC_TRIM_THRESHOLD_": (-1, 16 << 20), "MALLOC_MMAP_THRESHOLD_": (-3, 4 << 20)}


def return_freed_memory() -> None:
    """Set the malloc thresholds of this process."""
    set_malloc(_MALLOPT)


@dataclass(frozen=True)
class Resources:
    """What a task needs while it runs."""

    # cpus, gpus: cores and GPUs; a share, such as 0.25, where several tasks use one
    cpus: float = 1.0
    gpus: float = 0.0
    memory_bytes: int = 0  # of main memory; 0: not known


@dataclass(frozen=True)
class Task:
    """A part of an export that depends on no other task. Subclasses name what is to be done; all of it is small."""

    is_long: ClassVar[bool] = True  # whether it may take longer than the start of a process
    name: str  # of the recording or the file, for people; not unique
    size: int  # bytes that it reads. Larger tasks are started first
    needs: Resources  # resources; an executor may use others


TaskT = TypeVar("TaskT", bound=Task)
ResultT = TypeVar("ResultT")


class Executor(Protocol):
    """Runs tasks; a context manager, which releases what it has started.

    Attributes:
        remote: whether tasks run on other machines, which may be many: the files of a task are opened there only.
    """

    @property
    def remote(self) -> bool: ...  # noqa: D102

    def parallel(self, tasks: Sequence[Task]) -> int:
        """Return how many of these tasks run at the same time."""

    def map(
        self, work: Callable[[TaskT, Progress], ResultT], tasks: Sequence[TaskT], progress: Progress
    ) -> Generator[tuple[TaskT, ResultT | RoboCacheError], None, None]:
        """Run `work(task, progress)` for each task, in this process or in others; yield tasks as they finish.

        Closing the generator ends the tasks that are not done.

        Args:
            work: pickled for other processes, as its results are, which are small. It may be run again for a task that
                was lost, so that two runs of a task may overlap and each must do no harm.
            tasks: in any order.
            progress: called in this process, by one thread at a time, with the events of `work`. An executor of other
                machines leaves out `Advanced`.

        Yields:
            Each task with its result, or with an error of a task that the executor gives up.

        Errors:
            Whatever `work` raises, unless the executor yields it; RoboCacheError: tasks cannot be run. The other tasks
            are ended.
        """

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...


class Finished(NamedTuple):
    """What a task has returned in another process, and its events that were not sent while it ran."""

    result: Any
    events: tuple[Event, ...] = ()


def finished(work: Callable[[TaskT, Progress], Any], task: TaskT, progress: Progress) -> Finished | Exception:
    """Run a task; return its result, or its error as one that can be pickled, with the traceback if it is a defect."""
    try:
        return Finished(work(task, progress))
    except OSError as error:  # an error of the target; PyAV's subclasses cannot be pickled
        number = error_number(error)
        return OSError(number, os.strerror(number), error.filename) if number else OSError(str(error))
    except RoboCacheError as error:
        return error
    except Exception:
        return RuntimeError(f"{task.name}:\n{traceback.format_exc()}")
    finally:
        release_all()  # so that the process of the export can remove what was downloaded


class _Assigned(NamedTuple):
    """What is sent to a process before the tasks of a run."""

    work: Callable[[Any, Progress], Any]


class _Collector(Generic[TaskT]):
    """Gives tasks to processes and collects their results, in a thread. Others may take some of the waiting tasks."""

    def __init__(self, work: Callable[[TaskT, Progress], Any], waiting: deque[TaskT], progress: Progress) -> None:
        self.results: SimpleQueue[tuple[TaskT, Any] | BaseException] = SimpleQueue()  # or the error
        self.error: BaseException | None = None  # ends the tasks
        # Pickled before this process runs tasks, which add to what the work caches while a thread would copy it.
        self._assigned = bytes(ForkingPickler.dumps(_Assigned(work)))
        self._waiting, self._progress = waiting, progress
        self._lock = threading.Lock()
        self._busy: dict[Connection, TaskT] = {}
        self._thread: threading.Thread | None = None

    def start(self, connections: Sequence[Connection]) -> None:
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
    context = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(there, threads), daemon=True)
    with closing(there), blocked_interrupt(), main_left_out():
        process.start()
    return _Process(process, here)


def _work(connection: Connection, threads: int) -> None:
    """Worker process: run each received task with the work that came before; send its progress and its result."""
    end_with_parent()  # so that a new export does not share the machine with this process
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
    """What the machines of a cluster have, counted again from time to time. `clock` gives monotonic seconds."""

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
