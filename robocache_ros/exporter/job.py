"""Exports recordings as datasets, or into a dataset that has others."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.exporter.convert import convert
from robocache_ros.exporter.datasets import ExportResult, check_recording, make_datasets
from robocache_ros.exporter.executors import Executor, LocalProcesses, chosen_executor
from robocache_ros.exporter.options import ExportOptions
from robocache_ros.exporter.piece_store import FAILED
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.exporter.progress import Progress
from robocache_ros.exporter.recordings import recordings_of
from robocache_ros.exporter.request import ExportRequest, Output, apply_cache_bytes, divided
from robocache_ros.exporter.request import outputs_of as outputs_of
from robocache_ros.exporter.shards import ShardResult, convert_shard
from robocache_ros.exporter.target import APPEND, BUCKET_APPENDS
from robocache_ros.formats.recording import ExportedRecording
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.spec.keys import read_values, refusal
from robocache_ros.storage.cache import cache_folder
from robocache_ros.storage.errors import file_errors
from robocache_ros.storage.object_store import ObjectStore
from robocache_ros.storage.paths import AnyPath, any_path, is_url


def append(request: ExportRequest, executor: Executor, progress: Progress | None = None) -> ExportResult:
    """Append recordings to a dataset of Delta Lake tables, which is created if there is none.

    The recordings become a dataset of their own in a hidden folder of `out`, and then a version of the tables. Any
    number of processes may append at the same time. A stopped append is continued by the same call. Recordings that
    are in the dataset are left out. An executor of other machines converts the recordings; the tables are written here.

    Errors:
        RoboCacheError: there are several datasets, or options that an append does not have; the rows have other columns
            than those of the dataset; as of `export`.
    """
    check_append(request)
    dataset, own_pieces = append_folders(request, remote=executor.remote)
    store = ObjectStore(str(own_pieces)) if is_url(own_pieces) else None
    if store is not None:  # recordings that failed are tried again, as by other appends
        store.delete(name for name in store.listed() if name.endswith(f"/{FAILED}"))
    options = replace(request.options, overwrite=True, append=False, pieces=request.options.pieces or own_pieces)
    merging = LocalProcesses(1) if executor.remote else executor
    (result,) = make_datasets(replace(request, out=dataset, options=options), executor, progress, merging)
    from robocache_ros.formats.delta.log import append_dataset

    with file_errors(request.out):
        appended = append_dataset(dataset, request.out)
        shutil.rmtree(dataset.parent, ignore_errors=True)
        if store is not None:
            store.delete(store.listed())
    notes = [f"recordings that are in the dataset, and were not appended: {appended.known}"] if appended.known else []
    if appended.episodes:
        last = appended.first + appended.episodes - 1
        notes.append(f"episodes {appended.first} to {last} were appended; {appended.folder} has the report")
    return replace(result, out=request.out, notes=(*result.notes, *notes))


def check_append(request: ExportRequest) -> None:
    """Refuse an append of several datasets, of other formats, with options of others, or to another dataset."""
    if request.options.overwrite or request.options.shard:
        raise RoboCacheError("append: not with overwrite or shard; any number of appends may run at the same time")
    if len(request.outputs) > 1:
        raise RoboCacheError(f"append: {len(request.outputs)} datasets; give one spec and one rate")
    formats = request.outputs[0].options.formats
    if formats != ("delta",):
        raise RoboCacheError(f"append: not for the format {printable(formats[0], 30)}; use --format delta")
    if is_url(request.out):
        store = ObjectStore(str(request.out))
        others = any(entry[0] != "." for entry in store.entries())
        is_delta = not others or "_delta_log" in store.below("episodes").entries()
    else:
        folder = Path(os.path.abspath(request.out))
        if folder.exists() and not folder.is_dir():
            raise RoboCacheError(f"{printable(folder)}: is a file; give a new folder, or that of a Delta Lake dataset")
        others = folder.exists() and any(entry.name[0] != "." for entry in folder.iterdir())
        is_delta = not others or (folder / "episodes" / "_delta_log").is_dir()
    if not is_delta:
        raise RoboCacheError(f"{printable(request.out)}: is not a Delta Lake dataset; choose another folder")


def append_folders(request: ExportRequest, *, remote: bool = False) -> tuple[Path, AnyPath]:
    """Return the folders of an append that is not complete: of its dataset, and of its pieces.

    They are those of another call with the same recordings, spec and options. That of the dataset is on this machine;
    that of the pieces is in the bucket, if `out` is in one and other machines (`remote`) convert the recordings.
    """
    out, output = request.out, request.outputs[0]
    decides = [[str(each) for each in request.recordings], output.spec.to_dict(), asdict(output.options), str(out)]
    name = f"{APPEND}{hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]}"
    folder = cache_folder("appends") if is_url(out) else Path(os.path.abspath(out))
    pieces = any_path(f"{out}/{BUCKET_APPENDS}/{name}", "pieces") if is_url(out) and remote else None
    return folder / name / "dataset", pieces or folder / name / "pieces"


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
        bags: the recordings, in the order of their episodes: paths, or `PlannedRecording`s with a part, a task or an
            outcome. `find_recordings` and `load_manifest` of `robocache_ros.exporter.recordings` return such lists.
        outputs: the datasets; `outputs_of` returns those of several specs and rates.
        out: the folder of the datasets, new or empty, or a URL such as `s3://datasets/lift`.
        progress: called with the events of the export, in this process.
        executor: converts the recordings: `local`, `ray`, or one of `robocache_ros.exporter.executors`; the datasets
            have the same bytes. A GPU converts each recording once for each dataset.
        given: options of the run: those of `ExportOptions` that are not of a dataset. With `on_error` skip, a recording
            is left out of the datasets that it cannot be converted for.

    Errors:
        RoboCacheError: a recording cannot be read, does not match a spec or changes during the export; `out` is in use,
            or contains a dataset and `overwrite` is not set; two outputs have one name; a file system error. It has the
            name of the dataset.
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

    Without an executor, the one that the options name converts the recordings.
    """
    executor = executor or executor_of(request.options)
    if request.options.append:
        return (append(request, executor, progress),)
    if request.options.shard:
        return convert_shard(request, executor, progress)
    return make_datasets(request, executor, progress)


# `robocache_ros.export`: its keywords are the fields of `ExportOptions`, for type checkers and editors too.


P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class _Arguments(ExportOptions):
    recordings: str | Path | Sequence[str | Path | PlannedRecording]
    spec: str | Path | Mapping[str, Any] | FusionSpec
    out: str | Path
    progress: Progress | None = field(default=None, kw_only=True)


def _with_arguments(arguments: Callable[P, _Arguments]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        signature = inspect.signature(arguments).replace(
            return_annotation=inspect.signature(function).return_annotation
        )
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return decorate


@_with_arguments(_Arguments)
def export(
    recordings: str | Path | Sequence[str | Path | PlannedRecording],
    spec: str | Path | Mapping[str, Any] | FusionSpec,
    out: str | AnyPath,
    *,
    progress: Progress | None = None,
    **given: Any,
) -> ExportResult:
    """Export recordings as a dataset, as `robocache export` does.

    Readers find no dataset in `out` until it is complete. The other keywords are the options of the command:
    `formats=["rlds"]`, `task="lift the cube"`, `jobs=4`, ...; docs/reference/commands.md lists them. They come first,
    then those of the section `dataset` of the spec.

    Args:
        recordings: a recording, a folder, a glob or a URL, or a list of them, or of `PlannedRecording`.
        spec: the fusion spec, or its path, its URL or its contents.
        out: the folder of the dataset, new or empty, or its URL.
        progress: called with the events of the export.
        given: options.

    Errors:
        RoboCacheError: as of `robocache export`; one line per wrong option.
    """
    if given.get("executor", "local") == "local":
        given = {"jobs": 1, **given}
    given = read_values(ExportOptions, given)
    options = ExportOptions(**given)
    if options.shard:
        raise refusal("shard", "belongs to the command; use robocache_ros.exporter.job.run_export")
    apply_cache_bytes(options, "cache_bytes")
    where = any_path(out, "datasets")
    found = recordings_of([recordings] if isinstance(recordings, (str, Path)) else recordings, but=where)
    loaded = spec if isinstance(spec, FusionSpec) else load_spec(spec)
    request = ExportRequest(found, tuple(outputs_of([("", loaded)], given=divided(given)[0])), where, options)
    done = run_export(request, progress=progress)
    assert not isinstance(done, ShardResult)
    return done[0]


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
