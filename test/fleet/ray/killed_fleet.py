"""An export with Ray whose workers kill themselves, and the process itself when some recordings are converted.

Its argument is the JSON object {"recordings", "spec", "out", "address", "moments", "last"}: `moments` is a folder with
a file for each kill of a worker, which has the number of a file operation in `out`; `last` is the number of recordings,
0 for an export that is not killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robocache_ros.exporter.executors import RayTasks
from robocache_ros.exporter.progress import Converted, Event
from robocache_ros.spec import load_spec
from test.exporting import export

OPERATIONS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")


class Killing:
    """Work whose process kills itself at a file operation, once for each file in a folder, which has its number.

    Args:
        work: of the tasks.
        moments: the folder with a file for each kill.
        out: the folder whose operations count.
    """

    def __init__(self, work: Callable[..., Any], moments: Path, out: Path) -> None:
        self.work, self.moments, self.out = work, moments, out

    def __call__(self, task: Any, tell: Any) -> Any:
        moment, seen = self._next(), 0

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            if event in OPERATIONS and str(arguments[0]).startswith(f"{self.out}/"):
                seen += 1
                if seen == moment:
                    os.kill(os.getpid(), signal.SIGKILL)

        if moment:
            sys.addaudithook(count)
        return self.work(task, tell)

    def _next(self) -> int:
        """Take a moment that no other process has taken."""
        for file in sorted(self.moments.glob("waiting-*")):
            try:
                return int(file.rename(file.with_name(f"taken-{file.name}")).read_text())
            except FileNotFoundError:
                continue
        return 0


class KillingRay(RayTasks):
    """Ray whose workers are killed at the moments in a folder."""

    def __init__(self, address: str, moments: Path, out: Path) -> None:
        super().__init__(address)
        self._moments, self._out = moments, out

    def map(self, work: Any, tasks: Any, progress: Any) -> Any:
        return super().map(Killing(work, self._moments, self._out), tasks, progress)


def main() -> None:
    """Export, and die when a number of recordings are converted, if it is not 0."""
    given, converted = json.loads(sys.argv[1]), list[Event]()

    def progress(event: Event) -> None:
        if isinstance(event, Converted) and not event.reused:
            converted.append(event)
            if len(converted) == given["last"]:
                os.kill(os.getpid(), signal.SIGKILL)

    executor = KillingRay(given["address"], Path(given["moments"]), Path(given["out"]))
    export(given["recordings"], load_spec(given["spec"]), given["out"], executor=executor, progress=progress)


if __name__ == "__main__":
    main()
