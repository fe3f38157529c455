"""An engine that treats the tasks of an export badly, as a cluster may."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Sequence
from typing import Any

from robocache_ros.exporter.executors.base import Task
from robocache_ros.exporter.progress import Progress


class Elsewhere:
    """An engine that runs tasks as on other machines: pickled, each twice, and in another order."""

    def __init__(self, *, remote: bool = False) -> None:
        self.remote = remote
        self.tasks: list[str] = []

    def parallel(self, tasks: Sequence[Task]) -> int:
        return 1

    def run(
        self,
        work: Callable[[Any, Progress], Any],
        tasks: Sequence[Any],
        done: Callable[[Any, Any], None],
        tell: Progress,
    ) -> None:
        for task in random.Random(1).sample(tasks, len(tasks)):
            for _ in range(2):
                its_work, its_task = pickle.loads(pickle.dumps((work, task)))
                result = pickle.loads(pickle.dumps(its_work(its_task, tell)))
            done(task, result)
            self.tasks.append(task.name)

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *_: object) -> None: ...
