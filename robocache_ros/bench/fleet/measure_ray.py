"""Measures exports with Ray on this machine: the driver, conversions by 1, 2 and 4 workers, and the merge."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from robocache_ros.bench.export import camera_recording
from robocache_ros.export.engines.ray_session import ray_session
from robocache_ros.export.engines.ray_tasks import RayTasks
from robocache_ros.export.engines.task_engine import Resources, Task
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.job import export
from robocache_ros.export.pieces.make_pieces import make_pieces
from robocache_ros.export.pieces.plan import Plan
from robocache_ros.export.pieces.progress import Ended, Event, Merging, Progress, Started
from robocache_ros.export.pieces.recording_to_piece import Outcome
from robocache_ros.export.pieces.store import PieceStore
from robocache_ros.export.recordings.planned_recording import PlannedRecording
from robocache_ros.spec import load_spec

MEETING_S = 120.0  # at most, until all workers have started
SLOTS = 4  # of the Ray that is started, whatever this machine has


@dataclass(frozen=True)
class Nothing:
    """Stands in for the work of an export: it is sent to the workers, and makes nothing."""

    work: Callable[..., Any]

    def __call__(self, task: Any, _tell: Progress) -> list[Outcome]:
        """Return the outcome that a conversion has."""
        return [Outcome(task.recording, Path("pieces") / ("0" * 64)) for _ in task.datasets]


@dataclass(frozen=True)
class Timed:
    """The work of an export, with its time."""

    work: Callable[..., Any]

    def __call__(self, task: Any, tell: Progress) -> tuple[Any, float, float]:
        """Return the result, and the seconds and CPU seconds that it took."""
        begun, cpu = time.perf_counter(), time.process_time()
        result = self.work(task, tell)
        return result, time.perf_counter() - begun, time.process_time() - cpu


@dataclass(frozen=True)
class Meeting:
    """Work that waits until as many processes do it as there are slots.

    Attributes:
        folder: empty; each process makes a file in it.
    """

    folder: Path

    def __call__(self, _task: Task, _tell: Progress) -> None:
        """Wait for the other processes."""
        (self.folder / str(os.getpid())).touch()
        until = time.monotonic() + MEETING_S
        while len(list(self.folder.iterdir())) < SLOTS and time.monotonic() < until:
            time.sleep(0.01)


class RayOfNothing(RayTasks):
    """Ray with tasks that make nothing."""

    def run(self, work: Any, tasks: Any, done: Any, tell: Any) -> None:
        """Run tasks."""
        super().run(Nothing(work), tasks, done, tell)


class TimedRay(RayTasks):
    """Ray with tasks of a number of workers, whose times are kept.

    Attributes:
        times: name, seconds and CPU seconds of each task.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(needs=lambda _needs: Resources(SLOTS / workers))
        self.times: list[tuple[str, float, float]] = []

    def run(self, work: Any, tasks: Any, done: Any, tell: Any) -> None:
        """Run tasks."""

        def timed(task: Task, told: Any) -> None:
            if isinstance(told, tuple):
                self.times.append((task.name, *told[1:]))
                told = told[0]
            done(task, told)

        super().run(Timed(work), tasks, timed, tell)


@contextmanager
def fleet() -> Iterator[None]:
    """Start a Ray on this machine, with workers that have imported this package."""
    with ray_session(None, slots=SLOTS):
        with TemporaryDirectory() as folder, RayTasks() as engine:
            tasks = [Task(f"start {number}", 0, Resources()) for number in range(SLOTS)]
            engine.run(Meeting(Path(folder)), tasks, lambda _task, _result: None, lambda _event: None)
        yield


def driver_cost(count: int) -> dict[str, float]:
    """Return what recordings of nothing cost the driver: seconds, and CPU seconds of its process, for each."""
    spec = load_spec(camera_recording.spec(1))
    recordings = tuple(PlannedRecording(Path(f"recordings/lift_{number:06}")) for number in range(count))
    events: list[Event] = []
    with TemporaryDirectory() as folder, RayOfNothing(needs=lambda _needs: Resources()) as engine:
        begun, cpu = time.perf_counter(), time.process_time()
        plans = {"": Plan(recordings, spec, ExportOptions(), {})}
        made = make_pieces(plans, PieceStore(Path(folder)), engine, events.append)
        found = {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - cpu}
    assert len(made[""]) == count
    return {name: value / count for name, value in found.items()}


def recordings_in(folder: Path, count: int, seconds: float, cameras: int) -> list[Path]:
    """Write a recording with an image of each camera and joints, and link it under other names."""
    first = camera_recording.write(folder / "lift_000", seconds, cameras, "storage")
    others = [folder / f"lift_{number:03}" for number in range(1, count)]
    return [first, *(Path(shutil.copytree(first, other, copy_function=_link)) for other in others)]


def conversions(bags: Sequence[Path], cameras: int, workers: int, out: Path) -> dict[str, float]:
    """Export recordings; return the seconds of all conversions, of the merge, and of one conversion."""
    at: dict[type[Event], float] = {}

    def progress(event: Event) -> None:
        at[type(event)] = time.perf_counter()

    engine = TimedRay(workers)
    export(bags, load_spec(camera_recording.spec(cameras)), out, engine=engine, progress=progress)
    names = {bag.name for bag in bags}
    tasks = [times for times in engine.times if times[0] in names]
    shutil.rmtree(out)
    return {
        "convert_s": at[Merging] - at[Started],
        "merge_s": at[Ended] - at[Merging],
        "task_s": statistics.median(seconds for _, seconds, _ in tasks),
        "task_cpu_s": statistics.median(seconds for _, _, seconds in tasks),
    }


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)
