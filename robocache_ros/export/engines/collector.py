"""Collects the results of tasks that several processes run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, Generic, NamedTuple

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.engines.task_engine import Finished, Task, TaskT
from robocache_ros.export.pieces.progress import Event, Progress


class Assigned(NamedTuple):
    """What is sent to a process before the tasks of a run."""

    work: Callable[[Any, Progress], Any]


class Collector(Generic[TaskT]):
    """Gives tasks to processes and collects their results, in a thread.

    Args:
        work: runs a task, in each process.
        waiting: the tasks; others may take some of them.
        done: called with each task and its result.
        tell: called with the progress. `done` and `tell` are called by one thread at a time.

    Attributes:
        error: an error that ends the tasks.
    """

    def __init__(
        self,
        work: Callable[[TaskT, Progress], Any],
        waiting: deque[TaskT],
        done: Callable[[TaskT, Any], None],
        tell: Progress,
    ) -> None:
        self.error: BaseException | None = None
        # Pickled before this process runs tasks, which add to what the work caches while a thread would copy it.
        self._assigned = bytes(ForkingPickler.dumps(Assigned(work)))
        self._waiting, self._done, self._tell = waiting, done, tell
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

    def tell(self, event: Event) -> None:
        """Pass on an event of a task in this process, which an error ends as well."""
        with self._lock:
            self._tell(event)
        if self.error:
            raise self.error

    def done(self, task: TaskT, result: Any) -> None:
        """Pass on the result of a task."""
        with self._lock:
            self._done(task, result)

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
            told = connection.recv()
        except (EOFError, ConnectionResetError):
            raise _killed(task) from None
        if isinstance(told, BaseException):
            raise told
        if isinstance(told, Finished):
            del self._busy[connection]
            self.done(task, told.result)
            self._give(connection)
        else:
            with self._lock:
                self._tell(told)


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
