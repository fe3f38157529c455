"""The export job: converts recordings to pieces with the engine, and merges the pieces into one dataset."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from robocache_ros.bags.reader import Bag, check_recordings
from robocache_ros.errors import RoboCacheError, SeveralErrors, printable
from robocache_ros.export.episodes.labels import Labels
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.exported_recording import ExportedRecording, FailedRecording
from robocache_ros.export.file_errors import file_errors
from robocache_ros.export.merge_pieces import merge_pieces, needed_encodings
from robocache_ros.export.pieces.convert_recording import convert
from robocache_ros.export.pieces.plan import Plan
from robocache_ros.export.pieces.progress import Ended, Failed, Merging, Progress
from robocache_ros.export.pieces.recording_to_piece import Outcome
from robocache_ros.export.pieces.workers import available_cores, make_pieces
from robocache_ros.export.recordings.planned_recording import PlannedRecording, planned
from robocache_ros.export.resolved_arguments import device_of, load_formats, resolved_spec
from robocache_ros.export.target import new_dataset
from robocache_ros.spec import FusionSpec

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
    def episodes(self) -> int:
        """Number of episodes in the dataset."""
        return sum(len(recording.episodes) for recording in self.recordings)

    @property
    def times_real_time(self) -> float:
        """Seconds of recording per second of conversion."""
        return sum(recording.duration_s for recording in self.recordings) / self.seconds


# More than 50 lines, because of its docstring.
def export(
    bags: Sequence[str | Path | PlannedRecording],
    spec: FusionSpec,
    out: str | Path,
    options: ExportOptions | None = None,
    *,
    overwrite: bool = False,
    report: bool = True,
    jobs: int | None = 1,
    on_error: str = "fail",
    progress: Progress | None = None,
    pieces: str | Path | None = None,
    device: str = "cpu",
) -> ExportResult:
    """Write recordings as one dataset. Readers find no dataset in `out` until the dataset is complete.

    Each recording becomes a piece, in `pieces` or in a hidden folder of `out`. A stopped export keeps the complete
    pieces. The same call continues it. With several formats, each dataset is in a folder of `out` with the format's
    name.

    Args:
        bags: the recordings, in the order of their episodes: paths, or `PlannedRecording`s with a part, a task or an
            outcome. `find_recordings` and `load_manifest` of `robocache_ros.export.recordings` return such lists.
        spec: the streams.
        out: the folder of the dataset, new or empty.
        options: of the export; None: the defaults.
        overwrite: replace a dataset in `out`.
        report: write report.html and report.json.
        jobs: number of processes that convert recordings; None: the number of cores. With more than one, guard the code
            of the main module with `if __name__ == "__main__":`.
        on_error: `fail`: if a recording cannot be converted, convert the others, keep their pieces for the next call,
            then raise an error that names the recording. `skip`: make the dataset from the other recordings.
        progress: called with the events of the export, in this process.
        pieces: a folder outside of `out` in which the pieces stay: exports of the same recordings, spec and options
            reuse them, also at the same time. None: they are removed when the dataset is complete.
        device: converts images and clouds: `cpu`, `cuda`, `cuda:1`, or `auto`: the GPU if one works, else the CPU. The
            dataset has the same data, unless the option `jpeg` is `gpu`.

    Errors:
        RoboCacheError: a recording cannot be read, does not match the spec or changes during the export; `out` is in
            use, or contains a dataset and `overwrite` is not set; a file system error.
    """
    recordings, options = _planned(bags), options or ExportOptions()
    _check_arguments(jobs, on_error)
    spec = resolved_spec(spec, options)
    selected = device_of(device, options)
    formats = load_formats(Labels(spec, options).spec, options)
    begun, target = time.perf_counter(), Path(os.path.abspath(out))
    tell = progress or (lambda _event: None)
    with file_errors(target):
        failed = _check(recordings, spec, on_error)
        for recording, reason in failed.items():
            tell(Failed(recording, reason))
        kept = tuple(recording for recording in recordings if recording.frames_of not in failed)
        plan = Plan(kept, spec, options, needed_encodings(formats, spec, options), selected)
        with new_dataset(target, formats[-1].entry, overwrite=overwrite, pieces=pieces) as new:
            with file_errors(new.pieces.folder if pieces else target):
                outcomes = make_pieces(plan, new.pieces, jobs or available_cores(), progress)
            failed |= {each: outcomes[each].error for each in plan.distinct if outcomes[each].error}
            losses = [_loss(recording, reason, outcomes) for recording, reason in failed.items()]
            _check_failed(losses, len({recording.frames_of for recording in recordings}), on_error, Path(out), pieces)
            made = [replace(outcomes[each.frames_of], recording=each) for each in kept if each.frames_of not in failed]
            tell(Merging(options.formats, len(made)))
            merged = merge_pieces(plan, formats, made, losses, new.folder, target.name if report else None)
    result = ExportResult(Path(out), merged, time.perf_counter() - begun, tuple(losses), (*_reused(made), *new.notes))
    tell(Ended(result.out, result.episodes, result.frames, result.seconds))
    return result


def _check_arguments(jobs: int | None, on_error: str) -> None:
    if on_error not in ON_ERROR:
        raise RoboCacheError(f"on_error: {on_error!r} is not one of {', '.join(ON_ERROR)}")
    if jobs is not None and jobs < 1:
        raise RoboCacheError(f"jobs: {jobs} is below 1; use 1 or more processes")


def _check(recordings: Sequence[PlannedRecording], spec: FusionSpec, on_error: str) -> dict[PlannedRecording, str]:
    """Check all recordings; return the error of each invalid one, or raise an error that names them."""
    failed = {}
    for recording in dict.fromkeys(each.frames_of for each in recordings):
        try:
            with file_errors(recording.path):
                _check_recording(recording, spec)
        except RoboCacheError as error:
            failed[recording] = str(error)
    if failed and (on_error == "fail" or len(failed) == len({each.frames_of for each in recordings})):
        raise SeveralErrors(_lines(failed.values()))
    return failed


def _check_recording(recording: PlannedRecording, spec: FusionSpec) -> None:
    """Refuse a recording that cannot be read or does not match the spec, before the first one is processed."""
    check_recordings([recording.path], spec)
    if recording.is_part:
        with Bag(recording.path) as bag:
            recording.log_range(bag.start_ns, bag.stop_ns)


def _loss(recording: PlannedRecording, reason: str, outcomes: Mapping[PlannedRecording, Outcome]) -> FailedRecording:
    return FailedRecording(recording.path, reason, dropped=recording in outcomes and outcomes[recording].dropped)


def _check_failed(
    losses: Sequence[FailedRecording], total: int, on_error: str, out: Path, pieces: str | Path | None
) -> None:
    """Raise an error that names the failed recordings, unless the dataset is made from the others."""
    if len(losses) == total:
        raise SeveralErrors(_lines([loss.reason for loss in losses]))
    failed = [loss.reason for loss in losses if not loss.dropped]
    if failed and on_error == "fail":
        raise SeveralErrors(
            f"{_lines(failed)}\n{printable(out, 40)}: no dataset, because {len(failed)} of {total} recordings failed; "
            f"the others are kept in {printable(pieces, 40) if pieces else 'it'}: run the same command again after "
            "fixing these, or with --on-error skip"
        )


def _lines(failed: Collection[str]) -> str:
    """Format one line for each failed recording, given the reasons."""
    lines = list(failed)[:LINES]
    more = [f"and {len(failed) - LINES} more recordings"] if len(failed) > LINES else []
    return "\n".join([*lines, *more])


def _reused(made: Sequence[Outcome]) -> list[str]:
    distinct = {outcome.piece: outcome for outcome in made}.values()
    reused = sum(outcome.reused for outcome in distinct)
    return [f"{reused} of {len(distinct)} recordings were converted by an earlier export and reused"] if reused else []


def summarize(
    bag: str | Path,
    spec: FusionSpec,
    *,
    visibility: str = "ideal",
    compare_visibility: bool = False,
    progress: Progress | None = None,
) -> ExportedRecording:
    """Compute the export result of one recording for a report, without writing a dataset."""
    recording = PlannedRecording(Path(bag))
    with file_errors(recording.path):
        _check_recording(recording, spec)
        options = ExportOptions(
            visibility=visibility,
            compare_visibility=compare_visibility,
            on_invalid="mask",
            trim=False,
            min_frames=1,
            min_valid=0.0,
        )
        return convert(recording, spec, options, None, progress)


def _planned(bags: Sequence[str | Path | PlannedRecording]) -> tuple[PlannedRecording, ...]:
    if isinstance(bags, (str, Path, PlannedRecording)):
        raise RoboCacheError(f"bags: {printable(bags)} is one path; give a list of recordings")
    if not bags:
        raise RoboCacheError("bags: none given; name at least one recording")
    return planned(bags)
