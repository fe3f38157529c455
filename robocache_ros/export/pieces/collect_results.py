"""Collects what several processes make of the recordings of an export."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection, wait
from typing import NamedTuple, TypeAlias

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.pieces.progress import Converted, Event, Failed, Progress
from robocache_ros.export.pieces.recording_to_piece import Outcome
from robocache_ros.export.recordings.planned_recording import PlannedRecording

Outcomes: TypeAlias = list[Outcome]  # of a recording, one for each dataset that it is converted for


class Task(NamedTuple):
    """A recording, and the names of the datasets that it is converted for."""

    recording: PlannedRecording
    datasets: tuple[str, ...]


class Results:
    """The outcomes of all recordings, and the progress, from several threads."""

    def __init__(self, plans: Iterable[str], progress: Progress | None) -> None:
        self.made: dict[str, dict[PlannedRecording, Outcome]] = {name: {} for name in plans}
        self._progress = progress
        self._lock = threading.Lock()

    def tell(self, event: Event) -> None:
        """Pass an event on."""
        if self._progress:
            with self._lock:
                self._progress(event)

    def add(self, task: Task, outcomes: Outcomes) -> None:
        """Add the outcomes of a recording, and tell which pieces are complete, and which failed."""
        for name, outcome in zip(task.datasets, outcomes, strict=True):
            self.made[name][task.recording] = outcome
        pieces = [outcome for outcome in outcomes if outcome.piece]
        if pieces:
            self.tell(Converted(task.recording, all(outcome.reused for outcome in pieces)))
        for name, outcome in zip(task.datasets, outcomes, strict=True):
            if outcome.error:
                self.tell(Failed(task.recording, outcome.error, name))


class Collector:
    """Gives tasks to processes and collects their results, in a thread.

    Args:
        waiting: the tasks; others may take some of them.
        results: receives the outcomes and the progress.

    Attributes:
        error: an error that ends the export.
    """

    def __init__(self, waiting: deque[Task], results: Results) -> None:
        self.error: BaseException | None = None
        self._waiting, self._results = waiting, results
        self._busy: dict[Connection, Task] = {}
        self._thread: threading.Thread | None = None

    def start(self, connections: Sequence[Connection]) -> None:
        """Start with connections to all processes, which are closed at the end."""
        self._thread = threading.Thread(target=self._run, args=(connections,), name="collect", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until all processes have finished, or have ended."""
        if self._thread:
            self._thread.join()

    def tell(self, event: Event) -> None:
        """Pass on an event of a conversion in this process, which an error ends as well."""
        self._results.tell(event)
        if self.error:
            raise self.error

    def _run(self, connections: Sequence[Connection]) -> None:
        try:
            for connection in connections:
                self._give(connection)
            while self._busy:
                for ready in wait(list(self._busy)):
                    assert isinstance(ready, Connection)
                    self._take(ready)
        except BaseException as error:  # raised again in the main thread
            self.error = error
        finally:
            for connection in connections:
                connection.close()

    def _give(self, connection: Connection) -> None:
        task = next_of(self._waiting)
        if task:
            self._busy[connection] = task
            try:
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
        if isinstance(told, list):
            del self._busy[connection]
            self._results.add(task, told)
            self._give(connection)
        else:
            self._results.tell(told)


def next_of(waiting: deque[Task]) -> Task | None:
    """Take the next task, None if there is none; other threads may take tasks at the same time."""
    try:
        return waiting.popleft()
    except IndexError:
        return None


def _killed(task: Task) -> RoboCacheError:
    return RoboCacheError(
        f"{printable(task.recording.path.name)}: its process was killed, probably out of memory; run the same command "
        "again with fewer --jobs"
    )
