"""Exports recordings as datasets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.append import append
from robocache_ros.exporter.convert import convert
from robocache_ros.exporter.datasets import ExportResult, check_recording, make_datasets
from robocache_ros.exporter.executors.base import Executor
from robocache_ros.exporter.executors.ray import chosen_executor
from robocache_ros.exporter.file_errors import file_errors
from robocache_ros.exporter.options import ExportOptions
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.exporter.progress import Progress
from robocache_ros.exporter.request import MAX_OUTPUTS, ExportRequest, Output, divided, outputs_of
from robocache_ros.exporter.shards import ShardResult, convert_shard
from robocache_ros.formats.recording import ExportedRecording
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.paths import AnyPath, any_path

__all__ = [
    "MAX_OUTPUTS",
    "ExportRequest",
    "ExportResult",
    "Output",
    "export",
    "export_together",
    "outputs_of",
    "run_export",
    "summarize",
]


def export(
    bags: Sequence[str | Path | PlannedRecording],
    spec: FusionSpec,
    out: str | AnyPath,
    options: DatasetOptions | None = None,
    *,
    progress: Progress | None = None,
    executor: str | Executor = "local",
    **given: Any,
) -> ExportResult:
    """Write recordings as one dataset. Readers find no dataset in `out` until the dataset is complete.

    Each recording becomes a piece, in `pieces` or in a hidden folder of `out`. A stopped export keeps the complete
    pieces. The same call continues it. With several formats, each dataset is in a folder of `out` with the format's
    name.

    Args:
        bags: the recordings, in the order of their episodes: paths, or `PlannedRecording`s with a part, a task or an
            outcome. `find_recordings` and `load_manifest` of `robocache_ros.exporter.recordings` return such lists.
        spec: the streams.
        out: the folder of the dataset, new or empty, or a URL such as `s3://datasets/lift`.
        options: of the dataset; None: those of the section `dataset` of the spec.
        progress: called with the events of the export, in this process.
        executor: converts the recordings: `local`, `ray`, or one of `robocache_ros.exporter.executors`. The dataset has
            the same bytes.
        given: the other keys of `ExportOptions`, such as `media="image"` or `overwrite=True`. With `jobs` above 1,
            guard the code of the main module with `if __name__ == "__main__":`.

    Errors:
        RoboCacheError: a recording cannot be read, does not match the spec or changes during the export; `out` is in
            use, or contains a dataset and `overwrite` is not set; a file system error.
    """
    of_dataset, of_run = divided(given)
    outputs = outputs_of([("", spec)], (), options, of_dataset)
    (result,) = export_together(bags, outputs, out, progress=progress, executor=executor, **of_run)
    return result


def export_together(
    bags: Sequence[str | Path | PlannedRecording],
    outputs: Sequence[Output],
    out: str | AnyPath,
    *,
    progress: Progress | None = None,
    executor: str | Executor = "local",
    **given: Any,
) -> tuple[ExportResult, ...]:
    """Write recordings as several datasets, with one pass over each recording; return the result of each.

    Each dataset is in the folder of `out` with the name of the output, and has the same bytes as if it were exported
    to a folder of this name on its own. Either all datasets are in `out`, or none.

    Args:
        bags: the recordings, as for `export`.
        outputs: the datasets; `outputs_of` returns those of several specs and rates.
        out: the folder of the datasets, new or empty.
        progress: as for `export`.
        executor: as for `export`; a GPU converts each recording once for each dataset.
        given: options of the run: those of `ExportOptions` that are not of a dataset. With `on_error` skip, a recording
            is left out of the datasets that it cannot be converted for.

    Errors:
        RoboCacheError: as of `export`, with the name of the dataset; two outputs have one name.
    """
    if isinstance(executor, str):
        given["executor"] = executor
    if executor == "local":
        given.setdefault("jobs", 1)
    request = ExportRequest.of(bags, outputs, out, given)
    done = run_export(request, None if isinstance(executor, str) else executor, progress)
    if isinstance(done, ShardResult):
        raise RoboCacheError("shard: has no dataset as its result; use run_export")
    return done


def run_export(
    request: ExportRequest, executor: Executor | None = None, progress: Progress | None = None
) -> tuple[ExportResult, ...] | ShardResult:
    """Carry out a request: write or append its datasets, or convert a shard of its recordings.

    Args:
        request: what is made.
        executor: converts the recordings; None: the one that the options name.
        progress: called with the events of the export, in this process.
    """
    executor = executor or executor_of(request.options)
    if request.options.append:
        return (append(request, executor, progress),)
    if request.options.shard:
        return convert_shard(request, executor, progress)
    return make_datasets(request, executor, progress)


def executor_of(options: ExportOptions) -> Executor:
    """Return the executor that options name."""
    return chosen_executor(options.executor, jobs=options.jobs, address=options.address, per_task=options.per_task)


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
        options = DatasetOptions(
            visibility=visibility,
            compare_visibility=compare_visibility,
            on_invalid="mask",
            trim=False,
            min_frames=1,
            min_valid=0.0,
            msg_path=tuple(msg_path),
        )
        return convert(recording, spec, options, progress)
