"""Makes the pieces of a plan: a task for each recording, which an engine runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from robocache_ros.bags.reader import storage_files
from robocache_ros.bags.storage.metadata import is_stored
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.engines.task_engine import Engine, Resources, Task
from robocache_ros.export.pieces.any_pieces import AnyPieces
from robocache_ros.export.pieces.plan import Plan
from robocache_ros.export.pieces.progress import Converted, Event, Failed, Progress, Started
from robocache_ros.export.pieces.recording_to_piece import Outcome, make_pieces_of
from robocache_ros.export.pieces.store import PieceStore
from robocache_ros.export.recordings.planned_recording import PlannedRecording
from robocache_ros.remote.any_path import is_url
from robocache_ros.remote.store_errors import StoreError

# Measured: 0.3 GB without cameras, and 0.15 to 0.3 GB more for each camera of 640x480.
PROCESS_BYTES = 448 << 20
READ_BYTES = 192 << 20  # at most, of messages that are read ahead
MEDIA_BYTES, PIXEL_BYTES = 64 << 20, 512  # of a stream, and of each pixel of its images
IMAGE_SIZE = (720, 1280)  # of a stream whose spec does not state it
STEP_BYTES = 256 << 20

Outcomes: TypeAlias = list[Outcome]  # of a recording, one for each dataset that it is converted for


@dataclass(frozen=True)
class RecordingTask(Task):
    """A recording, and the names of the datasets that it is converted for."""

    recording: PlannedRecording
    datasets: tuple[str, ...]


def make_pieces(
    plans: Mapping[str, Plan], store: AnyPieces, engine: Engine, progress: Progress | None
) -> dict[str, dict[PlannedRecording, Outcome]]:
    """Make the pieces of plans, all pieces of a recording in one pass; return the outcome of each recording by plan.

    Args:
        plans: by the names of the datasets.
        store: of the pieces.
        engine: runs a task for each recording.
        progress: called with the progress.

    Errors:
        OSError: an error of the target, such as a full disk; complete pieces are kept.
        RoboCacheError: of the engine.
    """
    datasets: dict[PlannedRecording, list[str]] = {}
    for name, plan in plans.items():
        for recording in plan.distinct:
            datasets.setdefault(recording, []).append(name)
    tasks = [
        RecordingTask(
            recording.path.name, size, estimated_needs([plans[name] for name in names], size), recording, tuple(names)
        )
        for recording, names in datasets.items()
        for size in (size_of(recording.path),)
    ]
    results = _Results(plans, progress)
    sizes = tuple(task.size for task in tasks)
    results.tell(Started(tuple(task.recording for task in tasks), sizes, engine.parallel(tasks)))
    alone = {name: replace(plan, recordings=()) for name, plan in plans.items()}  # each process gets this
    engine.run(_Work(alone, store, store.used()), tasks, results.add, results.tell)
    return results.made


@dataclass(frozen=True)
class _Work:
    """What makes the pieces of a recording, in any process."""

    plans: Mapping[str, Plan]
    store: AnyPieces
    resumed: bool  # pieces or errors of an earlier export exist

    def __call__(self, task: RecordingTask, tell: Progress) -> Outcomes:
        where = self.store.folder
        if isinstance(self.store, PieceStore) and not where.parent.is_dir():
            raise RoboCacheError(f"{printable(where.parent)}: is not on this machine; use a bucket, or a shared folder")
        plans = [self.plans[name] for name in task.datasets]
        return make_pieces_of(task.recording, plans, self.store, resumed=self.resumed, progress=tell)


class _Results:
    """The outcomes of all recordings, and the progress."""

    def __init__(self, plans: Iterable[str], progress: Progress | None) -> None:
        self.made: dict[str, dict[PlannedRecording, Outcome]] = {name: {} for name in plans}
        self._progress = progress

    def tell(self, event: Event) -> None:
        """Pass an event on."""
        if self._progress:
            self._progress(event)

    def add(self, task: RecordingTask, made: Outcomes | RoboCacheError) -> None:
        """Add the outcomes of a recording, and tell which pieces are complete, and which failed."""
        if isinstance(made, StoreError):  # of the bucket, and not of the recording
            raise made
        if isinstance(made, RoboCacheError):
            made = [Outcome(task.recording, error=str(made)) for _ in task.datasets]
        for name, outcome in zip(task.datasets, made, strict=True):
            self.made[name][task.recording] = outcome
        pieces = [outcome for outcome in made if outcome.piece]
        if pieces:
            self.tell(Converted(task.recording, all(outcome.reused for outcome in pieces)))
        for name, outcome in zip(task.datasets, made, strict=True):
            if outcome.error:
                self.tell(Failed(task.recording, outcome.error, name))


def estimated_needs(plans: Sequence[Plan], size: int) -> Resources:
    """Estimate what the conversion of a recording needs, given the datasets that it is converted for and its bytes."""
    memory = PROCESS_BYTES + min(size, READ_BYTES)
    for stream in (stream for plan in plans for stream in plan.spec.media):
        height, width = (stream.image.size if stream.image else None) or IMAGE_SIZE
        memory += MEDIA_BYTES + PIXEL_BYTES * height * width
    memory = -(-memory // STEP_BYTES) * STEP_BYTES  # Ray has a queue for each amount
    return Resources(1.0, float(any(plan.device != "cpu" for plan in plans)), memory)


def size_of(recording: Path) -> int:
    """Return the bytes of the files of a recording."""
    try:
        if is_url(recording) and recording.is_dir():  # without a request for its metadata
            return sum(file.stat().st_size for file in recording.iterdir() if is_stored(file.name))
        return sum(file.stat().st_size for file in storage_files(recording))
    except OSError:
        return 0  # removed meanwhile: the conversion reports the error for this recording only
