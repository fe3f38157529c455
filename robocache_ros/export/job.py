"""The export job: converts recordings to pieces with the engine, and merges the pieces into datasets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from robocache_ros.errors import RoboCacheError, SeveralErrors, printable
from robocache_ros.export.engines.local_processes import LocalProcesses
from robocache_ros.export.engines.task_engine import Engine
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.exported_recording import ExportedRecording
from robocache_ros.export.file_errors import file_errors
from robocache_ros.export.outputs.any_target import check_any_target, check_buckets, open_target, target_path
from robocache_ros.export.outputs.dataset_plan import DatasetPlan, check_recording
from robocache_ros.export.outputs.export_result import ExportResult
from robocache_ros.export.outputs.output import Output, check_outputs
from robocache_ros.export.pieces.convert_recording import convert
from robocache_ros.export.pieces.make_pieces import make_pieces
from robocache_ros.export.pieces.progress import Ended, Failed, Merging, Progress
from robocache_ros.export.publish import list_entries
from robocache_ros.export.recordings.planned_recording import PlannedRecording, planned
from robocache_ros.remote.any_path import any_path
from robocache_ros.spec import FusionSpec

__all__ = ["ExportResult", "export", "export_together", "summarize"]

ON_ERROR = ("fail", "skip")
MAX_CHECKED = 1000  # recordings that are all opened before the first conversion; those of more are opened by it alone


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
    engine: Engine | None = None,
) -> ExportResult:
    """Write recordings as one dataset. Readers find no dataset in `out` until the dataset is complete.

    Each recording becomes a piece, in `pieces` or in a hidden folder of `out`. A stopped export keeps the complete
    pieces. The same call continues it. With several formats, each dataset is in a folder of `out` with the format's
    name.

    Args:
        bags: the recordings, in the order of their episodes: paths, or `PlannedRecording`s with a part, a task or an
            outcome. `find_recordings` and `load_manifest` of `robocache_ros.export.recordings` return such lists.
        spec: the streams.
        out: the folder of the dataset, new or empty, or a URL such as `s3://datasets/lift`.
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
        engine: runs the conversions and the merge, such as `RayTasks` of `robocache_ros.export.engines.ray_tasks`;
            None: `jobs` processes of this machine. The dataset has the same bytes.

    Errors:
        RoboCacheError: a recording cannot be read, does not match the spec or changes during the export; `out` is in
            use, or contains a dataset and `overwrite` is not set; a file system error.
    """
    (result,) = export_together(
        bags,
        [Output("", spec, options or ExportOptions())],
        out,
        overwrite=overwrite,
        report=report,
        jobs=jobs,
        on_error=on_error,
        progress=progress,
        pieces=pieces,
        device=device,
        engine=engine,
    )
    return result


# More than 50 lines, because of its docstring.
def export_together(
    bags: Sequence[str | Path | PlannedRecording],
    outputs: Sequence[Output],
    out: str | Path,
    *,
    overwrite: bool = False,
    report: bool = True,
    jobs: int | None = 1,
    on_error: str = "fail",
    progress: Progress | None = None,
    pieces: str | Path | None = None,
    device: str = "cpu",
    engine: Engine | None = None,
) -> tuple[ExportResult, ...]:
    """Write recordings as several datasets, with one pass over each recording.

    Each dataset is in the folder of `out` with the name of the output, and has the same bytes as if it were exported
    to a folder of this name on its own. Either all datasets are in `out`, or none.

    Args:
        bags: the recordings, as for `export`.
        outputs: the datasets; `outputs_of` of `robocache_ros.export.outputs.output` returns those of several specs and
            rates.
        out: the folder of the datasets, new or empty.
        overwrite: replace the datasets in `out`.
        report: write a report into each dataset.
        jobs: as for `export`.
        on_error: as for `export`; with `skip`, a recording is left out of the datasets that it cannot be converted for.
        progress: called with the events of the export, in this process.
        pieces: as for `export`.
        device: as for `export`; a GPU converts each recording once for each dataset.
        engine: as for `export`.

    Returns:
        The result of each output.

    Errors:
        RoboCacheError: as of `export`, with the name of the dataset; two outputs have one name.
    """
    recordings = _planned(bags)
    check_on_error(on_error)
    engine = engine or LocalProcesses(jobs)
    check_outputs(outputs)
    check_buckets(out, pieces)
    datasets = [DatasetPlan(output, recordings, device) for output in outputs]
    begun = time.perf_counter()
    shown, target = target_path(out)
    tell = progress or (lambda _event: None)
    for dataset in datasets if not engine.remote and len(recordings) <= MAX_CHECKED else ():
        dataset.check(on_error)
        for recording, reason in dataset.failed.items():
            tell(Failed(recording, reason, dataset.name))
    if engine.remote:  # which takes some seconds to start
        check_any_target(target, overwrite=overwrite)
    found: list[tuple[ExportedRecording, ...]] = []
    with engine, file_errors(target), open_target(target, datasets, overwrite, pieces, report) as new:
        plans = {dataset.name: dataset.plan for dataset in datasets}
        with file_errors(new.pieces.folder if pieces else target):
            outcomes = make_pieces(plans, new.pieces, engine, progress)
        errors = []
        for dataset in datasets:
            try:
                dataset.complete(outcomes[dataset.name], on_error, shown, pieces)
            except RoboCacheError as error:
                errors.append(str(error))
        if errors:
            raise SeveralErrors("\n".join(errors))
        for dataset in datasets:
            tell(Merging(dataset.plan.options.formats, len(dataset.made), dataset.name))
            title = (dataset.name or target.name) if report else None
            found.append(dataset.write(new, title, engine, tell))
            if dataset.name:
                list_entries(new.folder / dataset.name, new.staged_below(dataset.name))
    if new.by_another:
        found = [() for _ in datasets]
    seconds, notes = time.perf_counter() - begun, new.notes
    results = tuple(
        ExportResult(shown / each.name, recordings, seconds, each.losses, (*each.reused, *notes), new.by_another)
        for each, recordings in zip(datasets, found, strict=True)
    )
    tell(Ended(shown, sum(r.episodes for r in results), sum(r.frames for r in results), seconds))
    return results


def check_on_error(on_error: str) -> None:
    """Refuse a value of `on_error` that is not known."""
    if on_error not in ON_ERROR:
        raise RoboCacheError(f"on_error: {on_error!r} is not one of {', '.join(ON_ERROR)}")


def summarize(
    bag: str | Path,
    spec: FusionSpec,
    *,
    visibility: str = "ideal",
    compare_visibility: bool = False,
    progress: Progress | None = None,
    msg_path: Sequence[str] = (),
) -> ExportedRecording:
    """Compute the export result of one recording for a report, without writing a dataset."""
    recording = PlannedRecording(any_path(bag, "recordings"))
    with file_errors(recording.path):
        check_recording(recording, spec)
        options = ExportOptions(
            visibility=visibility,
            compare_visibility=compare_visibility,
            on_invalid="mask",
            trim=False,
            min_frames=1,
            min_valid=0.0,
            msg_path=tuple(msg_path),
        )
        return convert(recording, spec, options, progress)


def _planned(bags: Sequence[str | Path | PlannedRecording]) -> tuple[PlannedRecording, ...]:
    if isinstance(bags, (str, Path, PlannedRecording)):
        raise RoboCacheError(f"bags: {printable(bags)} is one path; give a list of recordings")
    if not bags:
        raise RoboCacheError("bags: none given; name at least one recording")
    return planned(bags)
