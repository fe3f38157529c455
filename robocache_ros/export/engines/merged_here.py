"""Runs conversions on other machines, and the tasks of a merge in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

from robocache_ros.errors import RoboCacheError
from robocache_ros.export.engines.local_processes import LocalProcesses
from robocache_ros.export.engines.task_engine import Engine, ResultT, Task, TaskT
from robocache_ros.export.pieces.progress import Progress


class MergedHere:
    """An engine for a dataset in a folder of this machine alone: another engine runs the long tasks.

    Args:
        engine: of other machines, which all reach the pieces.
    """

    remote = True

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def parallel(self, tasks: Sequence[Task]) -> int:
        """Return how many of these tasks the other engine runs at the same time."""
        return self._engine.parallel(tasks)

    def run(
        self,
        work: Callable[[TaskT, Progress], ResultT],
        tasks: Sequence[TaskT],
        done: Callable[[TaskT, ResultT | RoboCacheError], None],
        tell: Progress,
    ) -> None:
        """Run tasks; see `Engine`."""
        engine = self._engine if any(task.is_long for task in tasks) else LocalProcesses(1)
        engine.run(work, tasks, done, tell)

    def __enter__(self) -> MergedHere:
        self._engine.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.__exit__(kind, error, trace)
