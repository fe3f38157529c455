"""The export job: converts recordings to pieces with the engine, and merges the pieces into one dataset."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import starmap
from pathlib import Path
from typing import Any

import robocache_ros
from robocache_ros.bags.fuse import without_cameras
from robocache_ros.bags.reader import check_recordings
from robocache_ros.errors import RoboCacheError, SeveralErrors, printable
from robocache_ros.export.dataset_writer import ExportOptions, load_format
from robocache_ros.export.exported_recording import ExportedRecording, FailedRecording
from robocache_ros.export.file_errors import file_errors
from robocache_ros.export.pieces import recording_file
from robocache_ros.export.pieces.plan import Plan
from robocache_ros.export.pieces.recording_to_piece import Outcome, Progress, convert, masks_all
from robocache_ros.export.pieces.workers import available_cores, make_pieces
from robocache_ros.export.report.page import write_report
from robocache_ros.export.target import NewDataset, new_dataset
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.layout import Layout

ON_ERROR = ("fail", "skip")
LINES = 20  # maximum number of failed recordings listed in an error


@dataclass(frozen=True)
class ExportResult:
    """The result of an export."""

    out: Path
    recordings: tuple[ExportedRecording, ...]
    seconds: float  # from the first access to a recording until the dataset is complete, without library imports
    failed: tuple[FailedRecording, ...] = ()  # with `on_error` skip: recordings that are not in the dataset
    notes: tuple[str, ...] = ()  # files of earlier exports: reused, removed, completed, or to be handled by the user

    @property
    def frames(self) -> int:
        """Number of ticks in the dataset."""
        return sum(recording.frames for recording in self.recordings)

    @property
    def times_real_time(self) -> float:
        """Seconds of recording per second of conversion."""
        return sum(recording.duration_s for recording in self.recordings) / self.seconds


def export(
    bags: Sequence[str | Path],
    spec: FusionSpec,
    out: str | Path,
    options: ExportOptions | None = None,
    *,
    overwrite: bool = False,
    report: bool = True,
    jobs: int | None = 1,
    on_error: str = "fail",
    progress: Progress | None = None,
) -> ExportResult:
    """Write recordings as one dataset. Readers find no dataset in `out` until the dataset is complete.

    Each recording is converted to a piece in a hidden folder of `out`. An export that is stopped or fails keeps the
    complete pieces. The same call continues the export.

    Args:
        bags: the recordings, in the order of their episodes.
        spec: the streams.
        out: the folder of the dataset, new or empty.
        options: of the export; None: the defaults.
        overwrite: replace a dataset in `out`.
        report: write report.html.
        jobs: number of processes that convert recordings; None: the number of cores. With more than one, guard the code
            of the main module with `if __name__ == "__main__":`.
        on_error: `fail`: if a recording cannot be converted, convert the others, keep their pieces for the next call,
            then raise an error that names the recording. `skip`: make the dataset from the other recordings.
        progress: called with the progress of each recording.

    Errors:
        RoboCacheError: a recording cannot be read, does not match the spec or changes during the export; `out` is in
            use, or contains a dataset and `overwrite` is not set; a file system error.
    """
    paths, options = _paths(bags), options or ExportOptions()
    _check_arguments(jobs, on_error)
    spec = _resolved(spec, options)
    load_format(options.format)
    begun, target = time.perf_counter(), Path(os.path.abspath(out))
    with file_errors(target):
        failed = _check(paths, spec, on_error)
        plan = Plan(tuple(path for path in paths if path not in failed), spec, options)
        with new_dataset(target, overwrite=overwrite) as new:
            outcomes = make_pieces(plan, new.pieces, jobs or available_cores(), progress)
            failed |= {path: outcome.error for path, outcome in outcomes.items() if outcome.error}
            _check_failed(failed, len(set(paths)), on_error, Path(out))
            made = [outcomes[path] for path in plan.recordings if path not in failed]
            losses = tuple(starmap(FailedRecording, failed.items()))
            recordings = _merge(plan, made, losses, new, target.name if report else None)
    return ExportResult(Path(out), recordings, time.perf_counter() - begun, losses, (*_reused(made), *new.notes))


def _check_arguments(jobs: int | None, on_error: str) -> None:
    if on_error not in ON_ERROR:
        raise RoboCacheError(f"on_error: {on_error!r} is not one of {', '.join(ON_ERROR)}")
    if jobs is not None and jobs < 1:
        raise RoboCacheError(f"jobs: {jobs} is below 1; use 1 or more processes")


def _check(paths: Sequence[Path], spec: FusionSpec, on_error: str) -> dict[Path, str]:
    """Check all recordings. With `skip`, return the error of each invalid recording, otherwise raise an error."""
    if on_error == "fail":
        check_recordings(paths, spec)
        return {}
    failed = {}
    for path in dict.fromkeys(paths):
        try:
            with file_errors(path):
                check_recordings([path], spec)
        except RoboCacheError as error:
            failed[path] = str(error)
    if len(failed) == len(set(paths)):
        raise SeveralErrors(_lines(failed))
    return failed


def _check_failed(failed: dict[Path, str], total: int, on_error: str, out: Path) -> None:
    """Raise an error that names the failed recordings, unless the dataset is made from the others."""
    if len(failed) == total:
        raise SeveralErrors(_lines(failed))
    if failed and on_error == "fail":
        raise SeveralErrors(
            f"{_lines(failed)}\n{printable(out, 40)}: no dataset, because {len(failed)} of {total} recordings failed; "
            "the others are kept in it: run the same command again after fixing these, or with --on-error skip"
        )


def _lines(failed: dict[Path, str]) -> str:
    """Format one line for each failed recording."""
    lines = list(failed.values())[:LINES]
    more = [f"and {len(failed) - LINES} more recordings"] if len(failed) > LINES else []
    return "\n".join([*lines, *more])


def _merge(
    plan: Plan, made: Sequence[Outcome], failed: Sequence[FailedRecording], new: NewDataset, name: str | None
) -> tuple[ExportedRecording, ...]:
    """Merge the pieces into the dataset, and write the report with the dataset's name."""
    pieces = [outcome.piece for outcome in made if outcome.piece]
    bags = [outcome.recording for outcome in made]
    loaded = [
        recording_file.load(piece, bag, plan.spec, plan.options.visibility)
        for piece, bag in zip(pieces, bags, strict=True)
    ]
    recordings = tuple(recording for recording, _ in loaded)
    names = [printable(bag, 60) for bag in bags]
    merge = load_format(plan.options.format).merge(new.folder, Layout(plan.spec), plan.options, pieces, names)
    provenance = _provenance(plan.spec, plan.options, recordings, [files for _, files in loaded], failed)
    merge.write(provenance)
    if name is not None:
        report = new.folder / "report.html"
        write_report(recordings, report, dataset=name, stored=merge.stored, failed=failed)
    return recordings


def _reused(made: Sequence[Outcome]) -> list[str]:
    distinct = {outcome.recording: outcome for outcome in made}.values()
    reused = sum(outcome.reused for outcome in distinct)
    return [f"{reused} of {len(distinct)} recordings were converted by an earlier export and reused"] if reused else []


def summarize(
    bag: str | Path, spec: FusionSpec, *, visibility: str = "ideal", progress: Progress | None = None
) -> ExportedRecording:
    """Compute the export result of one recording for a report, without writing a dataset."""
    with file_errors(Path(bag)):
        check_recordings([Path(bag)], spec)
        options = ExportOptions(visibility=visibility, on_invalid="mask", trim=False)
        return convert(Path(bag), spec, options, None, progress)


def _paths(bags: Sequence[str | Path]) -> list[Path]:
    if isinstance(bags, (str, Path)):
        raise RoboCacheError(f"bags: {printable(bags)} is one path; give a list of recordings")
    paths = [Path(bag) for bag in bags]
    if not paths:
        raise RoboCacheError("bags: none given; name at least one recording")
    return paths


def _resolved(spec: FusionSpec, options: ExportOptions) -> FusionSpec:
    """Apply the options `media` and `on_invalid` to the spec."""
    # In a `deployed` export, the time at which an `eager` tick is computed depends on cameras: read, but not stored.
    if options.media == "none" and not (spec.emit == "eager" and options.visibility == "deployed"):
        spec = without_cameras(spec)
    if options.on_invalid != "spec":
        spec = replace(spec, streams=tuple(replace(s, on_invalid=options.on_invalid) for s in spec.streams))
    if not options.trim and not masks_all(spec):
        raise RoboCacheError("trim: ticks without values are kept only where on_invalid is mask; use on_invalid mask")
    return spec


def _provenance(
    spec: FusionSpec,
    options: ExportOptions,
    recordings: Sequence[ExportedRecording],
    checksums: Sequence[recording_file.Files],
    failed: Sequence[FailedRecording],
) -> dict[str, Any]:
    """Return the provenance: the data needed to recreate the dataset and to verify that it is identical."""
    return {
        "robocache_ros": robocache_ros.__version__,
        "options": asdict(options),
        "spec": spec.to_dict(),
        "layout": Layout(spec).to_dict(),
        "recordings": [
            {
                "bag": printable(recording.bag, 4096),
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
                "first_tick_ns": int(recording.ticks_ns[start]),
                "last_tick_ns": int(recording.ticks_ns[stop - 1]),
                "frames": stop - start,
            }
            for index, recording in enumerate(recordings)
            for start, stop in recording.episodes
        ],
    }
