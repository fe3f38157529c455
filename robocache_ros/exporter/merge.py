"""Merges the pieces of an export: one dataset per format, whose files are tasks, and the report."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

import robocache_ros
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.exporter.executors.base import Executor, Resources, Task
from robocache_ros.exporter.piece_store import fetch_ahead
from robocache_ros.exporter.pieces import Outcome, Plan
from robocache_ros.exporter.planned_recording import repeated
from robocache_ros.exporter.progress import Progress
from robocache_ros.exporter.report.page import write_report
from robocache_ros.exporter.target import NewDataset
from robocache_ros.formats import recording as recording_file
from robocache_ros.formats.checksums import digests_of, files_of, write_checksums
from robocache_ros.formats.dataset import ExportedDataset, Piece
from robocache_ros.formats.dataset_folder import sync_files
from robocache_ros.formats.pieces import CONTENTS
from robocache_ros.formats.recording import ExportedRecording, FailedRecording
from robocache_ros.formats.registry import DatasetFormat, load_format
from robocache_ros.formats.statistics import Stats
from robocache_ros.formats.video import DEPTH_VIDEO
from robocache_ros.formats.write import FileTask, WrittenByTasks
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.object_store import ObjectStore


@dataclass(frozen=True)
class MergeTask(Task):
    """Files of a format, or the statistics of a feature, which several formats use.

    Attributes:
        number: in the order of the tasks.
        format: name of the format; empty: statistics.
        write: returns the value of a `Written`, given the dataset and the folder for the files.
    """

    is_long: ClassVar[bool] = False
    number: int
    format: str
    write: Callable[[ExportedDataset, Path], Any]


@dataclass(frozen=True)
class Written:
    """What a task did.

    Attributes:
        value: for the last step of the format.
        files: names of the files, relative to the folder of the format.
        digests: their SHA-256, if they are staged.
    """

    value: Any
    files: tuple[str, ...]
    digests: Mapping[str, str] | None = None


@dataclass(frozen=True)
class MergeWork:
    """Runs the tasks of a dataset, in any process. Files appear in the folder of their format when they are complete.

    Attributes:
        dataset: the contents.
        folders: the folders of the formats, by name.
        scratch: a folder of the same file system, for files that are not complete.
        staging: where tasks put their files instead, under their names in the dataset. They have a local folder each.
        names: what the names of staged files begin with, by format.
    """

    dataset: ExportedDataset
    folders: Mapping[str, Path]
    scratch: Path
    staging: ObjectStore | None
    names: Mapping[str, str]

    def __call__(self, task: MergeTask, progress: Progress) -> Written:
        """Run a task. Two runs of a task do no harm."""
        if not task.format:
            return Written(task.write(self.dataset, self.scratch), ())
        if self.staging is None:
            return self.write(task.format, task.write)
        with tempfile.TemporaryDirectory(prefix="robocache-merge-") as folder:
            draft = Path(folder)
            value = task.write(self.dataset, draft)
            files = tuple(files_of(draft))
            self.staging.put_files(draft, files, self.names[task.format])
            return Written(value, files, digests_of(draft, files))

    def write(self, format_: str, write: Callable[[ExportedDataset, Path], Any]) -> Written:
        """Call `write` with an empty folder, and move what it writes there to the folder of a format."""
        draft = self.scratch / secrets.token_hex(8)
        draft.mkdir(parents=True)
        try:
            value = write(self.dataset, draft)
            files = tuple(files_of(draft))
            _move(draft, self.folders[format_])
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return Written(value, files)


def merge_tasks(dataset: ExportedDataset, formats: Sequence[DatasetFormat]) -> list[MergeTask]:
    """Return the tasks of all formats: first those of each in turn, then the statistics, if a format uses them."""
    found: list[tuple[str, FileTask]] = []
    for format_ in formats:
        if isinstance(format_, WrittenByTasks):
            found += [(format_.name, task) for task in format_.tasks(dataset)]
        else:
            nbytes = dataset.frames * 8 * dataset.layout.row_width
            found.append((format_.name, FileTask("all files", nbytes, partial(_write_all, name=format_.name))))
    if any(isinstance(format_, WrittenByTasks) and format_.needs_stats for format_ in formats):
        for name in dataset.stats_names:
            width = len(dataset.features[name].columns) if name in dataset.features else 0
            found.append(("", FileTask(name, 8 * width * dataset.frames, partial(_stats_of, name=name))))
    return [
        MergeTask(f"{format_ or 'statistics'}: {task.name}", task.nbytes, Resources(), number, format_, task.write)
        for number, (format_, task) in enumerate(found)
    ]


def _write_all(dataset: ExportedDataset, folder: Path, name: str) -> None:
    """Write a format of another package."""
    load_format(name).write(dataset, folder)


def _stats_of(dataset: ExportedDataset, _folder: Path, name: str) -> tuple[str, Stats]:
    return name, dataset.stats_of(name)


def _move(source: Path, target: Path) -> None:
    """Move all files and folders of a folder to another one of the same file system, which may have some of them."""
    for where, folders, files in os.walk(source):
        there = target / Path(where).relative_to(source)
        for name in folders:
            (there / name).mkdir(exist_ok=True)
        for name in files:
            os.replace(Path(where) / name, there / name)


@contextmanager
def written_formats(
    work: MergeWork, formats: Sequence[DatasetFormat], executor: Executor, progress: Progress
) -> Iterator[dict[str, str]]:
    """Write a dataset in formats; on exit, the checksums of their files are written, and the files are on disk.

    Yields the SHA-256 of the files that are staged, by their names in the dataset.
    """
    tasks = merge_tasks(work.dataset, formats)
    with _Completion(work.folders) as completion:
        results: dict[int, Any] = {}
        staged: dict[str, str] = {}
        with closing(executor.map(work, tasks, progress)) as finished:
            for task, written in finished:
                if isinstance(written, RoboCacheError):
                    raise written
                results[task.number] = written.value
                if written.digests is not None:
                    start = work.names[task.format]
                    staged.update({start + name: digest for name, digest in written.digests.items()})
                completion.add(task.format, written)
        if stats := dict(results[task.number] for task in tasks if not task.format):
            work.dataset.stats = {name: stats[name] for name in work.dataset.stats_names}
        for format_ in formats:
            if isinstance(format_, WrittenByTasks):
                values = [results[task.number] for task in tasks if task.format == format_.name]
                last = work.write(format_.name, partial(format_.finish, results=values))
                completion.add(format_.name, last)
        yield staged


class _Completion:
    """Computes the checksums of files and flushes them, in a thread during the tasks; on exit writes the checksums."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders
        self._pool = ThreadPoolExecutor(1, "complete")
        self._digests: dict[str, list[Future[Mapping[str, str]]]] = {name: [] for name in folders}

    def add(self, format_: str, written: Written) -> None:
        """Complete files of a format."""
        if written.files:
            self._digests[format_].append(self._pool.submit(_complete, self._folders[format_], written))

    def __enter__(self) -> _Completion:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            for name, completed in self._digests.items() if kind is None else ():
                digests = {file: digest for of_task in completed for file, digest in of_task.result().items()}
                write_checksums(self._folders[name], digests)
        finally:
            self._pool.shutdown(cancel_futures=True)


def _complete(folder: Path, written: Written) -> Mapping[str, str]:
    if written.digests is not None:
        return written.digests
    digests = digests_of(folder, written.files)
    sync_files(folder / name for name in written.files)
    return digests


def needed_encodings(
    formats: Sequence[DatasetFormat], spec: FusionSpec, options: DatasetOptions
) -> dict[str, tuple[str, ...]]:
    """Return the encodings of each image stream that the formats need."""
    streams = [stream for stream in spec.media if stream.kind == "image"]
    needed = {stream.name: {format_.encoding(stream, options) for format_ in formats} for stream in streams}
    if options.depth == "video":  # images of the spec may be 8-bit or depth: their messages state it
        needed = {name: found | {DEPTH_VIDEO} for name, found in needed.items()}
    return {name: tuple(sorted(filter(None, found))) for name, found in needed.items()}


def merge_pieces(
    plan: Plan,
    formats: Sequence[DatasetFormat],
    made: Sequence[Outcome],
    failed: Sequence[FailedRecording],
    new: NewDataset,
    below: str,
    name: str | None,
    executor: Executor,
    progress: Progress,
) -> tuple[ExportedRecording, ...]:
    """Write the dataset of each format from the pieces, and the report with the dataset's name.

    Args:
        plan: of the dataset.
        formats: in which it is written.
        made: the outcomes of its recordings.
        failed: recordings that are not in it.
        new: what the export writes to.
        below: the name of the dataset in it; empty if it is the only one.
        name: for the report; None: there is none.
        executor: runs a task for some files each.
        progress: called with the progress.
    """
    loaded = _loaded(plan, made)
    digests = [[str(file["sha256"]) for file in files] for _, files in loaded]
    notes = repeated(zip((outcome.recording for outcome in made if outcome.piece), digests, strict=True))
    new.notes += [note for note in notes if note not in new.notes]  # of another dataset of the export
    recordings = tuple(
        replace(one, task=outcome.recording.task or plan.options.task, success=outcome.recording.success)
        for (one, _), outcome in zip(loaded, made, strict=True)
    )
    provenance = _provenance(plan, recordings, [files for _, files in loaded], failed)
    pieces = [
        Piece(outcome.piece, recording.bag, recording.task, recording.episodes, recording.success)
        for outcome, recording in zip(made, recordings, strict=True)
        if outcome.piece
    ]
    dataset = ExportedDataset(pieces, plan.layout, plan.options, provenance)
    folder = new.folder / below
    folders = {format_.name: folder if len(formats) == 1 else folder / format_.name for format_ in formats}
    for of_format in folders.values():
        of_format.mkdir(parents=True, exist_ok=True)
    names = {name: f"{path.relative_to(new.folder).as_posix()}/".removeprefix("./") for name, path in folders.items()}
    work = MergeWork(dataset, folders, new.scratch, new.staging if executor.remote else None, names)
    with written_formats(work, formats, executor, progress) as staged:
        new.staged.update(staged)
        if name is not None:
            report = folder / "report.html"
            write_report(recordings, report, dataset=name, stored=_stored(dataset, formats), failed=failed)
    return recordings


def _loaded(plan: Plan, made: Sequence[Outcome]) -> list[tuple[ExportedRecording, recording_file.StorageFiles]]:
    """Return what the pieces contain of their recordings."""
    pieces = [(outcome.piece, outcome.recording) for outcome in made if outcome.piece]
    fetch_ahead(
        piece / name
        for piece, _ in pieces
        for name in (recording_file.RECORDING_JSON, recording_file.RECORDING_ARRAYS, CONTENTS)
    )
    visibility = plan.options.visibility
    return [recording_file.load_recording(piece, recording.path, plan.spec, visibility) for piece, recording in pieces]


def _stored(dataset: ExportedDataset, formats: Sequence[DatasetFormat]) -> dict[str, str]:
    """Describe how the formats store each stream of images or voxels."""
    stored = {}
    for stream in dataset.spec.media:
        found = [dataset.stored(stream.name, format_.encoding(stream, dataset.options)) for format_ in formats]
        stored[stream.name] = "; ".join(dict.fromkeys(found))
    return stored


def _device(plan: Plan) -> str:
    """Describe the device of an export, and what it changes."""
    if plan.device == "cpu":
        return "cpu"
    found = f"{plan.device} ({torch.cuda.get_device_name(plan.device)})"
    return f"{found}; jpeg decoded by {plan.jpeg_decoder}, whose pixels may differ" if plan.jpeg_decoder else found


def _provenance(
    plan: Plan,
    recordings: Sequence[ExportedRecording],
    checksums: Sequence[recording_file.StorageFiles],
    failed: Sequence[FailedRecording],
) -> dict[str, Any]:
    """Return the provenance: the data needed to recreate the dataset and to verify that it is identical."""
    return {
        "robocache_ros": robocache_ros.__version__,
        "options": asdict(plan.options),
        "device": _device(plan),
        "spec": plan.spec.to_dict(),
        "layout": plan.layout.to_dict(),
        "recordings": [
            {
                "bag": printable(recording.bag, 4096),
                "task": recording.task,
                "success": recording.success,
                "files": files,
                "start_ns": recording.start_ns,
                "stop_ns": recording.stop_ns,
                "ticks": len(recording.ticks_ns),
                "frames": recording.frames,
                "counters": {name: dict(counts) for name, counts in recording.counters.items()},
                "notes": list(recording.notes),
                "integrity": recording.integrity,
                **recording.clocks,
            }
            for recording, files in zip(recordings, checksums, strict=True)
        ],
        "failed": [{"bag": printable(loss.bag, 4096), "reason": printable(loss.reason, 400)} for loss in failed],
        "episodes": [
            {
                "recording": index,
                "first_tick_ns": int(recording.ticks_ns[episode.start]),
                "last_tick_ns": int(recording.ticks_ns[episode.stop - 1]),
                "frames": episode.stop - episode.start,
                "task": episode.task,
                "success": episode.success,
            }
            for index, recording in enumerate(recordings)
            for episode in recording.episodes
        ],
    }
