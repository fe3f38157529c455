"""Exports with Ray whose workers and drivers are killed with SIGKILL at random moments; prints as JSON what happened.

A program of its own: `PYTHONPATH=. python test/fleet/ray/killed_fleet.py RECORDINGS SPEC OUT --workers 20 --drivers 2`.
The moments are file operations in OUT, and numbers of converted recordings. A killed driver is followed by the same
export again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robocache_ros.exporter.executors import RayTasks, ray_session
from robocache_ros.exporter.progress import Converted, Event
from robocache_ros.exporter.target import piece_store
from robocache_ros.spec import FusionSpec, load_spec
from test.exporting import export

OPERATIONS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")
LATEST = 20  # operation at which a worker is killed; each recording has more


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


def drive(recordings: list[Path], spec: FusionSpec, out: Path, address: str, moments: Path, last: int) -> None:
    """Export, and die when a number of recordings are converted, if it is not 0."""
    converted: list[Event] = []

    def progress(event: Event) -> None:
        if isinstance(event, Converted) and not event.reused:
            converted.append(event)
            if len(converted) == last:
                os.kill(os.getpid(), signal.SIGKILL)

    export(recordings, spec, out, executor=KillingRay(address, moments, out), progress=progress)


def main() -> None:
    """Run exports until one is complete."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recordings", type=Path, help="folder of the recordings")
    parser.add_argument("spec", type=Path)
    parser.add_argument("out", type=Path, help="folder of the dataset")
    parser.add_argument("--workers", type=int, default=20, help="kills of workers")
    parser.add_argument("--drivers", type=int, default=2, help="kills of drivers")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--address", help="of a cluster; a Ray is started here by default")
    parser.add_argument("--drive", nargs=2, metavar=("MOMENTS", "LAST"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    recordings = sorted(given.recordings.iterdir())
    if given.drive:
        drive(recordings, load_spec(given.spec), given.out, given.address, Path(given.drive[0]), int(given.drive[1]))
        return
    random_, moments = random.Random(given.seed), given.out.with_name("moments")
    moments.mkdir()
    for number in range(given.workers):
        (moments / f"waiting-{number:02}").write_text(str(random_.randint(1, LATEST)))
    statuses, kept = [], []
    with ray_session(given.address) as ray:
        address = ray.get_runtime_context().gcs_address
        program = [sys.executable, __file__, *map(str, (given.recordings, given.spec, given.out))]
        for last in [*(random_.randint(1, 2) for _ in range(given.drivers)), 0]:
            options = ["--address", address, "--drive", str(moments), str(last)]
            statuses.append(subprocess.run([*program, *options], check=False).returncode)
            kept.append(piece_store(given.out).count())
    taken = len(list(moments.glob("taken-*")))
    print(json.dumps({"statuses": statuses, "kept": kept, "killed": taken}))  # noqa: T201 - its output


if __name__ == "__main__":
    main()
