"""Makes the datasets of a request: converts recordings to pieces, and merges the pieces into a dataset per format."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

import robocache_ros
from robocache_ros.bags.reader import Bag, check_recordings
from robocache_ros.errors import RoboCacheError, SeveralErrors, number_of, printable
from robocache_ros.exporter.boundaries import check_motion
from robocache_ros.exporter.convert import masks_all
from robocache_ros.exporter.episodes import Labels
from robocache_ros.exporter.executors import Executor, Resources, Task
from robocache_ros.exporter.piece_store import fetch_ahead, remove_copies
from robocache_ros.exporter.piece_writer import has_points
from robocache_ros.exporter.pieces import Outcome, Plan, fingerprint, make_pieces
from robocache_ros.exporter.planned_recording import PlannedRecording, repeated
from robocache_ros.exporter.progress import Ended, Failed, Merging, Progress
from robocache_ros.exporter.report import write_report
from robocache_ros.exporter.request import ExportRequest, Output
from robocache_ros.exporter.target import BucketTarget, NewDataset, check_target, new_bucket_dataset, new_dataset
from robocache_ros.formats import recording as recording_file
from robocache_ros.formats.dataset import ExportedDataset, Piece
from robocache_ros.formats.dataset_folder import (
    CHECKSUMS,
    digests_of,
    files_of,
    list_entries,
    sync_files,
    write_checksums,
)
from robocache_ros.formats.pictures import check_copy
from robocache_ros.formats.pieces import CONTENTS
from robocache_ros.formats.recording import ExportedRecording, FailedRecording
from robocache_ros.formats.registry import DatasetFormat, load_format
from robocache_ros.formats.statistics import Stats
from robocache_ros.formats.video import DEPTH_VIDEO
from robocache_ros.formats.write import FileTask, WrittenByTasks
from robocache_ros.ops.image.nvjpeg import require_jpeg
from robocache_ros.ops.installation import resolve_device
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.errors import StoreError, file_errors
from robocache_ros.storage.object_store import ObjectStore
from robocache_ros.storage.paths import AnyPath, is_url


@dataclass(frozen=True)
class MergeTask(Task):
    """Files of a format, or the statistics of a feature, which several formats use."""

    is_long: ClassVar[bool] = False
    number: int  # in the order of the tasks
    format: str  # name of the format; empty: statistics
    # Returns the value of a `Written`, given the dataset and the folder for the files
    write: Callable[[ExportedDataset, Path], Any]


@dataclass(frozen=True)
class Written:
    """What a task did."""

    value: Any  # for the last step of the format
    files: tuple[str, ...]  # names of the files, relative to the folder of the format
    digests: Mapping[str, str] | None = None  # their SHA-256, if they are staged


@dataclass(frozen=True)
class MergeWork:
    """Runs the tasks of a dataset, in any process. Complete files appear in the folder of their format."""

    dataset: ExportedDataset
    folders: Mapping[str, Path]  # the folders of the formats, by name
    scratch: Path  # a folder of the same file system, for files that are not complete
    # Where tasks put their files instead, under their names in the dataset. They have a local folder each
    staging: ObjectStore | None
    names: Mapping[str, str]  # what the names of staged files begin with, by format

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

    A thread computes the checksums and flushes the files meanwhile. Yields the SHA-256 of the files that are staged, by
    their names in the dataset.
    """
    tasks = merge_tasks(work.dataset, formats)
    results: dict[int, Any] = {}
    staged: dict[str, str] = {}
    pool = ThreadPoolExecutor(1, "complete")
    completed: dict[str, list[Future[Mapping[str, str]]]] = {name: [] for name in work.folders}

    def complete(format_: str, written: Written) -> None:
        if written.files:
            completed[format_].append(pool.submit(_complete, work.folders[format_], written))

    try:
        with closing(executor.map(work, tasks, progress)) as finished:
            for task, written in finished:
                if isinstance(written, RoboCacheError):
                    raise written
                results[task.number] = written.value
                start = work.names.get(task.format, "")
                staged.update({start + name: digest for name, digest in (written.digests or {}).items()})
                complete(task.format, written)
        if stats := dict(results[task.number] for task in tasks if not task.format):
            work.dataset.stats = {name: stats[name] for name in work.dataset.stats_names}
        for format_ in formats:
            if isinstance(format_, WrittenByTasks):
                values = [results[task.number] for task in tasks if task.format == format_.name]
                complete(format_.name, work.write(format_.name, partial(format_.finish, results=values)))
        yield staged
        for name, of_tasks in completed.items():
            digests = {file: digest for of_task in of_tasks for file, digest in of_task.result().items()}
            write_checksums(work.folders[name], digests)
    finally:
        pool.shutdown(cancel_futures=True)


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
            {"recording": index, **episode}
            for index, recording in enumerate(recordings)
            for episode in recording.stated_episodes
        ],
    }


@dataclass(frozen=True)
class ExportResult:
    """The result of an export."""

    out: AnyPath
    recordings: tuple[ExportedRecording, ...]
    seconds: float  # from the first access to a recording until the dataset is complete, without library imports
    failed: tuple[FailedRecording, ...] = ()  # with `on_error` skip: recordings that are not in the dataset
    notes: tuple[str, ...] = ()  # files of earlier exports: reused, removed, completed, or to be handled by the user
    completed_elsewhere: bool = False  # another export of the same plan has completed the dataset; no recordings

    @property
    def frames(self) -> int:
        """Number of ticks in the dataset."""
        return sum(recording.frames for recording in self.recordings)

    @property
    def episodes(self) -> int:
        """Number of episodes in the dataset."""
        return sum(len(recording.episodes) for recording in self.recordings)

    @property
    def times_real_time(self) -> float:
        """Seconds of recording per second of conversion."""
        return sum(recording.duration_s for recording in self.recordings) / self.seconds


def resolved_spec(spec: FusionSpec, options: DatasetOptions) -> FusionSpec:
    """Apply the options `rate_hz`, `media` and `on_invalid` to the spec; check the options that depend on it."""
    spec = replace(spec, dataset=None, run=None, rate_hz=options.rate_hz or spec.rate_hz)
    # In a `deployed` export, the time at which an `eager` tick is computed depends on cameras: read, but not stored.
    if options.media == "none" and not (spec.emit == "eager" and options.visibility == "deployed"):
        spec = spec.without_cameras()
    if options.on_invalid != "spec":
        streams = (s if s.is_outcome else replace(s, on_invalid=options.on_invalid) for s in spec.streams)
        spec = replace(spec, streams=tuple(streams))
    if options.points and not any(has_points(stream) for stream in spec.streams):
        raise RoboCacheError("points: no stream has voxels with the features x, y, z; add them, with reduce mean")
    if not options.trim and not masks_all(spec):
        raise RoboCacheError("trim: ticks without values are kept only where on_invalid is mask; use on_invalid mask")
    if options.trim_idle_s:
        check_motion(spec)
    if spec.actions == "required" and not any(s.role == "action" for s in Labels(spec, options).spec.vectors):
        raise RoboCacheError(
            "streams: none has role: action, which policies are trained on; give it to the stream of the commands, use "
            "--action next-observation, or state actions: none"
        )
    return spec


def load_formats(spec: FusionSpec, options: DatasetOptions) -> list[DatasetFormat]:
    """Load the formats; refuse what they cannot store."""
    check_copy(spec, options)
    formats = [load_format(name) for name in options.formats]
    for format_ in formats:
        format_.check(spec, options)
    return formats


def device_of(device: str, options: DatasetOptions) -> str:
    """Return the device that converts images and clouds: `cpu` or `cuda:<index>`; refuse one that is not available."""
    selected = str(resolve_device(device))
    if options.jpeg == "gpu":
        if selected == "cpu":
            raise RoboCacheError(f"jpeg: 'gpu' needs a GPU, and device {printable(device, 20)!r} is the CPU; use cuda")
        require_jpeg()
    return selected


THREADS = 8  # recordings at URLs that are opened at the same time
MAX_FAILURE_LINES = 20  # maximum number of failed recordings listed in an error


class DatasetPlan:
    """The plan of a dataset: first `check` its recordings, then make its pieces and `complete` it, then `write` it."""

    def __init__(self, output: Output, recordings: Sequence[PlannedRecording], device: str) -> None:
        self.name, self.recordings = output.name, tuple(recordings)
        with self._named():
            spec = resolved_spec(output.spec, output.options)
            selected = device_of(device, output.options)
            self.formats = load_formats(Labels(spec, output.options).spec, output.options)
        encodings = needed_encodings(self.formats, spec, output.options)
        # Without the recordings that do not match.
        self.plan = Plan(tuple(recordings), spec, output.options, encodings, selected)
        self._total = len(self.plan.distinct)
        self.failed: dict[PlannedRecording, str] = {}  # the recordings that are not in it, and why
        self.made: tuple[Outcome, ...] = ()
        self.losses: tuple[FailedRecording, ...] = ()
        self._earlier = 0  # recordings that failed in an earlier export, and were not tried again

    def check(self, on_error: str) -> None:
        """Check the recordings; leave out those that do not match, or with `on_error` fail raise an error."""
        with self._named():
            self.failed = _check(self.plan, on_error)
        kept = tuple(recording for recording in self.plan.recordings if recording.frames_of not in self.failed)
        self.plan = replace(self.plan, recordings=kept)

    def complete(self, outcomes: Mapping[PlannedRecording, Outcome], request: ExportRequest) -> None:
        """Take the outcomes of the recordings; raise an error that names those that failed, unless they are skipped."""
        self.failed |= {each: outcomes[each].error for each in self.plan.distinct if outcomes[each].error}
        self.losses = tuple(
            FailedRecording(each.path, reason, dropped=each in outcomes and outcomes[each].dropped)
            for each, reason in self.failed.items()
        )
        self._earlier = sum(bool(outcome.error and outcome.reused) for outcome in outcomes.values())
        with self._named():
            self._check_failed(request)
        self.made = tuple(
            replace(outcomes[each.frames_of], recording=each)
            for each in self.plan.recordings
            if each.frames_of not in self.failed
        )

    def write(
        self, new: NewDataset, title: str | None, executor: Executor, progress: Progress
    ) -> tuple[ExportedRecording, ...]:
        """Write the dataset into the folder of its name, with a report if it has a title; return its recordings."""
        try:
            with self._named():
                return self._merged(new, title, executor, progress)
        finally:
            remove_copies(outcome.piece for outcome in self.made if outcome.piece)

    def _merged(
        self, new: NewDataset, title: str | None, executor: Executor, progress: Progress
    ) -> tuple[ExportedRecording, ...]:
        plan, made, formats = self.plan, self.made, self.formats
        loaded = _loaded(plan, made)
        digests = [[str(file["sha256"]) for file in files] for _, files in loaded]
        notes = repeated(zip((outcome.recording for outcome in made if outcome.piece), digests, strict=True))
        new.notes += [note for note in notes if note not in new.notes]  # of another dataset of the export
        recordings = tuple(
            replace(one, task=outcome.recording.task or plan.options.task, success=outcome.recording.success)
            for (one, _), outcome in zip(loaded, made, strict=True)
        )
        provenance = _provenance(plan, recordings, [files for _, files in loaded], self.losses)
        pieces = [
            Piece(outcome.piece, recording.bag, recording.task, recording.episodes, recording.success)
            for outcome, recording in zip(made, recordings, strict=True)
            if outcome.piece
        ]
        dataset = ExportedDataset(pieces, plan.layout, plan.options, provenance)
        folder = new.folder / self.name
        folders = {format_.name: folder if len(formats) == 1 else folder / format_.name for format_ in formats}
        for of_format in folders.values():
            of_format.mkdir(parents=True, exist_ok=True)
        below = {
            name: f"{path.relative_to(new.folder).as_posix()}/".removeprefix("./") for name, path in folders.items()
        }
        work = MergeWork(dataset, folders, new.scratch, new.staging if executor.remote else None, below)
        with written_formats(work, formats, executor, progress) as staged:
            new.staged.update(staged)
            if title is not None:
                stored, report = _stored(dataset, formats), folder / "report.html"
                write_report(recordings, report, dataset=title, stored=stored, failed=self.losses)
        return recordings

    @property
    def entries(self) -> tuple[str, ...]:
        """The files and folders in the target by which readers recognize the dataset, of each format."""
        several = len(self.formats) > 1
        parts = [(self.name, format_.name if several else "", format_.entry) for format_ in self.formats]
        return tuple("/".join(filter(None, part)) for part in parts)

    @property
    def reused(self) -> list[str]:
        """Notes on the recordings that an earlier export converted."""
        distinct = {outcome.piece: outcome for outcome in self.made}.values()
        notes = []
        if reused := sum(outcome.reused for outcome in distinct):
            were = f"{'was' if len(distinct) == 1 else 'were'} converted by an earlier export and reused"
            notes.append(f"{reused} of {number_of(len(distinct), 'recording')} {were}")
        if replaced := [outcome.recording.path.name for outcome in distinct if outcome.replaced]:
            pieces = "the piece that an earlier export made was" if len(replaced) == 1 else "their pieces were"
            notes.append(f"{printable(', '.join(replaced), 80)}: {pieces} damaged and made again")
        return [*notes, *self._not_tried]

    @property
    def _not_tried(self) -> list[str]:
        """A note on the recordings that failed in an earlier export."""
        if not self._earlier:
            return []
        failed, them = number_of(self._earlier, "recording"), "it" if self._earlier == 1 else "them"
        return [f"{failed} failed in an earlier export; robocache fleet retry lets the next one try {them}"]

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the dataset in the lines of errors, if there are several datasets."""
        try:
            yield
        except RoboCacheError as error:
            if not self.name:
                raise
            where = printable(self.name, 40)
            raise SeveralErrors("\n".join(f"{where}: {line}" for line in str(error).splitlines())) from None

    def _check_failed(self, request: ExportRequest) -> None:
        pieces = request.options.pieces
        if len(self.losses) == self._total:
            raise SeveralErrors("\n".join([failure_lines([loss.reason for loss in self.losses]), *self._not_tried]))
        failed = [loss.reason for loss in self.losses if not loss.dropped]
        if failed and request.options.on_error == "fail":
            raise SeveralErrors(
                f"{failure_lines(failed)}\n{printable(request.out, 40)}: no dataset, because {len(failed)} of "
                f"{number_of(self._total, 'recording')} failed; the others are kept in "
                f"{printable(pieces, 40) if pieces else 'it'}: run the same command again after fixing these, or with "
                "--on-error skip" + "".join(f"\n{n}" for n in self._not_tried)
            )


def check_recording(recording: PlannedRecording, spec: FusionSpec) -> None:
    """Refuse a recording that cannot be read or does not match the spec, before the first one is processed."""
    check_recordings([recording.path], spec)
    if recording.is_part and not is_url(recording.path):  # which may have to be downloaded
        with Bag(recording.path) as bag:
            recording.log_range(bag.start_ns, bag.stop_ns)


def _check(plan: Plan, on_error: str) -> dict[PlannedRecording, str]:
    """Check all recordings; return the error of each invalid one, or raise an error that names them."""

    def checked(recording: PlannedRecording) -> str:
        try:
            with file_errors(recording.path):
                check_recording(recording, plan.spec)
        except StoreError:  # which all would have
            raise
        except RoboCacheError as error:
            return str(error)
        return ""

    if any(is_url(recording.path) for recording in plan.distinct):  # these are waited for
        with ThreadPoolExecutor(THREADS, "check") as pool:
            errors = list(pool.map(checked, plan.distinct))
    else:
        errors = [checked(recording) for recording in plan.distinct]
    failed = {recording: error for recording, error in zip(plan.distinct, errors, strict=True) if error}
    if failed and (on_error == "fail" or len(failed) == len(plan.distinct)):
        others = number_of(len(plan.distinct) - len(failed), "other recording")
        can = f"\n{others} can be used; leave these out, or use --on-error skip"
        hint = can if len(failed) < len(plan.distinct) else ""
        raise SeveralErrors(failure_lines(failed.values()) + hint)
    return failed


def failure_lines(failed: Collection[str]) -> str:
    """Format one line for each failed recording, given the reasons."""
    rest = len(failed) - MAX_FAILURE_LINES
    return "\n".join(
        [*list(failed)[:MAX_FAILURE_LINES], *([f"and {number_of(rest, 'more recording')}"] if rest > 0 else [])]
    )


def open_target(request: ExportRequest, datasets: Sequence[DatasetPlan]) -> AbstractContextManager[NewDataset]:
    """Return the target of a request, as a context; see `new_dataset` and `new_bucket_dataset`."""
    out, options = request.target, request.options
    if isinstance(out, Path):
        last = datasets[-1].name or datasets[-1].formats[-1].entry
        return new_dataset(out, last, overwrite=options.overwrite, pieces=options.pieces)
    code = {"robocache_ros": robocache_ros.__version__, **fingerprint()}
    contents = [_content(each) for each in datasets]
    decides = json.dumps({"code": code, "report": options.report, "datasets": contents}, sort_keys=True, default=str)
    digest = hashlib.sha256(decides.encode()).hexdigest()
    entries = [entry for dataset in datasets for entry in dataset.entries]
    count = sum(len(dataset.plan.distinct) for dataset in datasets)
    return new_bucket_dataset(str(out), digest, count, entries, overwrite=options.overwrite, pieces=options.pieces)


def check_any_target(out: AnyPath, *, overwrite: bool = False) -> None:
    """Refuse a folder or a URL that an export would refuse because of what is in it, without writing to it."""
    if is_url(out):
        BucketTarget(str(out)).check(overwrite=overwrite)
    else:
        check_target(Path(os.path.abspath(out)), overwrite=overwrite)


def identity_of(out: AnyPath, datasets: Sequence[DatasetPlan]) -> str:
    """Return a text that is another one after the next export to the target; empty if a dataset is not there."""
    if is_url(out):
        target = BucketTarget(str(out))
        return "" if target.current() else str(target.completed().get("token", ""))
    digest = hashlib.sha256()
    for dataset in datasets:
        for format_ in dataset.formats:
            folder = out / dataset.name / (format_.name if len(dataset.formats) > 1 else "")
            try:
                digest.update((folder / CHECKSUMS).read_bytes())
            except OSError:
                return ""
    return digest.hexdigest()


def _content(dataset: DatasetPlan) -> dict[str, Any]:
    """Return what determines a dataset, except the contents of its recordings."""
    plan = dataset.plan
    return {
        "name": dataset.name,
        "spec": plan.spec.to_dict(),
        "options": asdict(plan.options),
        "encodings": plan.encodings,
        "jpeg": plan.jpeg_decoder,
        "recordings": [[str(r.path), r.start, r.stop, r.task, r.success] for r in dataset.recordings],
    }


MAX_CHECKED = 1000  # recordings that are all opened before the first conversion; those of more are opened by it alone


def make_datasets(
    request: ExportRequest, executor: Executor, progress: Progress | None = None, merging: Executor | None = None
) -> tuple[ExportResult, ...]:
    """Make all datasets of a request, with one pass over each recording. Either all of them are in `out`, or none.

    Args:
        request: without a shard, and not an append.
        executor: converts the recordings.
        progress: called with the events of the export, in this process.
        merging: puts the datasets together from the pieces; None: `executor`.

    Errors:
        RoboCacheError: a recording cannot be read, does not match the spec or changes during the export; `out` is in
            use, or contains a dataset that is not overwritten; a file system error.
    """
    recordings, options, shown, target = request.recordings, request.options, request.out, request.target
    for place in (shown, options.pieces):
        if is_url(place):
            ObjectStore(str(place)).check()  # before a recording is read
    datasets = [DatasetPlan(output, recordings, options.device) for output in request.outputs]
    started = time.perf_counter()
    progress = progress or (lambda _event: None)
    for dataset in datasets if not executor.remote and len(recordings) <= MAX_CHECKED else ():
        dataset.check(options.on_error)
        for recording, reason in dataset.failed.items():
            progress(Failed(recording, reason, dataset.name))
    if executor.remote:  # which takes some seconds to start
        check_any_target(target, overwrite=options.overwrite)
    found: list[tuple[ExportedRecording, ...]] = []
    with executor, file_errors(target), open_target(request, datasets) as new:
        plans = {dataset.name: dataset.plan for dataset in datasets}
        with file_errors(new.pieces.folder if options.pieces else target):
            outcomes = make_pieces(plans, new.pieces, executor, progress)
        errors = []
        for dataset in datasets:
            try:
                dataset.complete(outcomes[dataset.name], request)
            except RoboCacheError as error:
                errors.append(str(error))
        if errors:
            raise SeveralErrors("\n".join(errors))
        for dataset in datasets:
            progress(Merging(dataset.plan.options.formats, len(dataset.made), dataset.name))
            title = (dataset.name or target.name) if options.report else None
            found.append(dataset.write(new, title, merging or executor, progress))
            if dataset.name:
                below = f"{dataset.name}/"
                staged = (name.removeprefix(below) for name in new.staged if name.startswith(below))
                list_entries(new.folder / dataset.name, staged)
    if new.completed_elsewhere:
        found = [() for _ in datasets]
    seconds, elsewhere = time.perf_counter() - started, new.completed_elsewhere
    results = tuple(
        ExportResult(shown / each.name, recordings, seconds, each.losses, (*each.reused, *new.notes), elsewhere)
        for each, recordings in zip(datasets, found, strict=True)
    )
    progress(Ended(shown, sum(r.episodes for r in results), sum(r.frames for r in results), seconds))
    return results
