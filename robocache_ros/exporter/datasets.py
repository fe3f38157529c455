"""Makes the datasets of a request: converts recordings to pieces, and merges the pieces."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import robocache_ros
from robocache_ros.bags.reader import Bag, check_recordings
from robocache_ros.engine.backends.factory import resolve_device
from robocache_ros.errors import RoboCacheError, SeveralErrors, number_of, printable
from robocache_ros.exporter.boundaries import check_motion
from robocache_ros.exporter.convert import masks_all
from robocache_ros.exporter.episodes import Labels
from robocache_ros.exporter.executors.base import Executor
from robocache_ros.exporter.file_errors import file_errors
from robocache_ros.exporter.merge import merge_pieces, needed_encodings
from robocache_ros.exporter.piece_store import remove_copies
from robocache_ros.exporter.piece_writer import has_points
from robocache_ros.exporter.pieces import Outcome, Plan, fingerprint, make_pieces
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.exporter.progress import Ended, Failed, Merging, Progress
from robocache_ros.exporter.request import ExportRequest, Output
from robocache_ros.exporter.target import (
    BucketTarget,
    NewDataset,
    check_target,
    new_bucket_dataset,
    new_dataset,
)
from robocache_ros.formats.checksums import FILE as CHECKSUMS
from robocache_ros.formats.dataset_folder import list_entries
from robocache_ros.formats.pictures import check_copy
from robocache_ros.formats.recording import ExportedRecording, FailedRecording
from robocache_ros.formats.registry import DatasetFormat, load_format
from robocache_ros.ops.image.nvjpeg import require_jpeg
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.errors import StoreError
from robocache_ros.storage.object_store import ObjectStore
from robocache_ros.storage.paths import AnyPath, is_url


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
    """The plan of a dataset: first `check` its recordings, then make its pieces and `complete` it, then `write` it.

    Args:
        output: the dataset.
        recordings: of the export, in the order of the episodes.
        device: as for an export.

    Attributes:
        name: of its folder; empty if it is the only dataset.
        recordings: of the export.
        plan: without the recordings that do not match.
        formats: that it is written in.
        failed: the recordings that are not in it, and why.

    Errors:
        RoboCacheError: the spec and the options cannot be used.
    """

    def __init__(self, output: Output, recordings: Sequence[PlannedRecording], device: str) -> None:
        self.name, self.recordings = output.name, tuple(recordings)
        with self._named():
            spec = resolved_spec(output.spec, output.options)
            selected = device_of(device, output.options)
            self.formats = load_formats(Labels(spec, output.options).spec, output.options)
        encodings = needed_encodings(self.formats, spec, output.options)
        self.plan = Plan(tuple(recordings), spec, output.options, encodings, selected)
        self._total = len(self.plan.distinct)
        self.failed: dict[PlannedRecording, str] = {}
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
        with self._named():
            made, losses = self.made, self.losses
            try:
                return merge_pieces(self.plan, self.formats, made, losses, new, self.name, title, executor, progress)
            finally:
                remove_copies(outcome.piece for outcome in made if outcome.piece)

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
    failure_lines = list(failed)[:MAX_FAILURE_LINES]
    more = (
        [f"and {number_of(len(failed) - MAX_FAILURE_LINES, 'more recording')}"]
        if len(failed) > MAX_FAILURE_LINES
        else []
    )
    return "\n".join([*failure_lines, *more])


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
