"""Exports recordings into a dataset that has others."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.exporter.executors.base import Executor
from robocache_ros.exporter.executors.local import MergedLocally
from robocache_ros.exporter.file_errors import file_errors
from robocache_ros.exporter.job import ExportResult, Output, export
from robocache_ros.exporter.piece_store import FAILED
from robocache_ros.exporter.planned_recording import PlannedRecording, planned
from robocache_ros.exporter.target import APPEND, BUCKET_APPENDS
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.cache import cache_folder
from robocache_ros.storage.object_store import ObjectStore
from robocache_ros.storage.paths import any_path, is_url


def append_export(
    bags: Sequence[str | Path | PlannedRecording],
    spec: FusionSpec,
    out: str | Path,
    options: DatasetOptions | None = None,
    **arguments: Any,
) -> ExportResult:
    """Append recordings to a dataset of Delta Lake tables, which is created if there is none.

    The recordings become a dataset of their own in a hidden folder of `out`, and then a version of the tables. Any
    number of processes may append at the same time. A stopped append is continued by the same call. Recordings that
    are in the dataset are left out. An engine of other machines converts the recordings; the tables are written here.

    Args:
        bags: the recordings, as for `export`.
        spec: the streams; columns, rates and alignments are those of the dataset.
        out: the folder or the URL of the dataset.
        options: of the export; the format is delta.
        arguments: of `export`, without `overwrite`.

    Errors:
        RoboCacheError: as of `export`; or the rows have other columns than those of the dataset.
    """
    options = options or DatasetOptions(formats=("delta",))
    if options.formats != ("delta",):
        raise RoboCacheError(f"append: not for the format {printable(options.formats[0], 30)}; use --format delta")
    engine: Executor | None = arguments.pop("engine", None)
    remote = engine is not None and engine.remote
    dataset, own_pieces = append_folders(bags, spec, out, options, remote=remote)
    pieces = arguments.pop("pieces", None) or own_pieces
    if engine is not None and remote:
        engine = MergedLocally(engine)
    store = ObjectStore(str(own_pieces)) if is_url(own_pieces) else None
    if store is not None:  # recordings that failed are tried again, as by other appends
        store.delete(name for name in store.listed() if name.endswith(f"/{FAILED}"))
    result = export(bags, spec, dataset, options, overwrite=True, pieces=pieces, engine=engine, **arguments)
    from robocache_ros.formats.delta.append import append_dataset

    where = any_path(out, "datasets")
    with file_errors(where):
        appended = append_dataset(dataset, out)
        shutil.rmtree(dataset.parent, ignore_errors=True)
        if store is not None:
            store.delete(store.listed())
    notes = [f"recordings that are in the dataset, and were not appended: {appended.known}"] if appended.known else []
    if appended.episodes:
        last = appended.first + appended.episodes - 1
        notes.append(f"episodes {appended.first} to {last} were appended; {appended.folder} has the report")
    return replace(result, out=where, notes=(*result.notes, *notes))


def append_outputs(
    bags: Sequence[str | Path | PlannedRecording],
    outputs: Sequence[Output],
    out: str | Path,
    *,
    overwrite: bool,
    shard: object = None,
    **arguments: Any,
) -> tuple[ExportResult, ...]:
    """Append the only output of an export, as `append_export`.

    Errors:
        RoboCacheError: there are several outputs; or options that an append does not have.
    """
    if overwrite or shard:
        raise RoboCacheError("append: not with overwrite or shard; any number of appends may run at the same time")
    if len(outputs) > 1:
        raise RoboCacheError(f"append: {len(outputs)} datasets; give one spec and one rate")
    return (append_export(bags, outputs[0].spec, out, outputs[0].options, **arguments),)


def append_folders(
    bags: Sequence[str | Path | PlannedRecording],
    spec: FusionSpec,
    out: str | Path,
    options: DatasetOptions,
    *,
    remote: bool = False,
) -> tuple[Path, Path]:
    """Return the folders of an append that is not complete: of its dataset, and of its pieces.

    They are those of another call with the same recordings, spec and options. That of the dataset is on this machine;
    that of the pieces is in the bucket, if `out` is in one and other machines (`remote`) convert the recordings.

    Errors:
        RoboCacheError: `out` has something else than a Delta Lake dataset.
    """
    decides = [[str(each) for each in planned(bags)], spec.to_dict(), asdict(options), str(out)]
    name = f"{APPEND}{hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]}"
    if is_url(out):
        folder, store = cache_folder("appends"), ObjectStore(str(out))
        others = any(entry[0] != "." for entry in store.entries())
        is_delta = not others or "_delta_log" in store.below("episodes").entries()
    else:
        folder = Path(os.path.abspath(out))
        if folder.exists() and not folder.is_dir():
            raise RoboCacheError(f"{printable(folder)}: is a file; give a new folder, or that of a Delta Lake dataset")
        others = folder.exists() and any(entry.name[0] != "." for entry in folder.iterdir())
        is_delta = not others or (folder / "episodes" / "_delta_log").is_dir()
    if not is_delta:
        raise RoboCacheError(f"{printable(out)}: is not a Delta Lake dataset; choose another folder")
    pieces = any_path(f"{out}/{BUCKET_APPENDS}/{name}", "pieces") if is_url(out) and remote else None
    return folder / name / "dataset", pieces or folder / name / "pieces"
