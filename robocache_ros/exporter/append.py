"""Exports recordings into a dataset that has others."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.exporter.datasets import ExportResult, make_datasets
from robocache_ros.exporter.executors.base import Executor
from robocache_ros.exporter.executors.local import LocalProcesses
from robocache_ros.exporter.file_errors import file_errors
from robocache_ros.exporter.piece_store import FAILED
from robocache_ros.exporter.progress import Progress
from robocache_ros.exporter.request import ExportRequest
from robocache_ros.exporter.target import APPEND, BUCKET_APPENDS
from robocache_ros.storage.cache import cache_folder
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
    from robocache_ros.formats.delta.append import append_dataset

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
    """Refuse an append of several datasets, of other formats, with options of others, or to another dataset.

    Errors:
        RoboCacheError: why it is refused; `out` has something else than a Delta Lake dataset.
    """
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
