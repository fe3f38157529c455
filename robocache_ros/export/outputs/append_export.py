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
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.file_errors import file_errors
from robocache_ros.export.job import export
from robocache_ros.export.outputs.export_result import ExportResult
from robocache_ros.export.outputs.output import Output
from robocache_ros.export.recordings.planned_recording import PlannedRecording, planned
from robocache_ros.export.target import APPEND
from robocache_ros.remote.any_path import any_path, is_url
from robocache_ros.remote.file_cache import cache_folder
from robocache_ros.spec import FusionSpec


def append_export(
    bags: Sequence[str | Path | PlannedRecording],
    spec: FusionSpec,
    out: str | Path,
    options: ExportOptions | None = None,
    **arguments: Any,
) -> ExportResult:
    """Append recordings to a dataset of Delta Lake tables, which is created if there is none.

    The recordings become a dataset of their own in a hidden folder of `out`, and then a version of the tables. Any
    number of processes may append at the same time. A stopped append is continued by the same call. Recordings that
    are in the dataset are left out.

    Args:
        bags: the recordings, as for `export`.
        spec: the streams; columns, rates and alignments are those of the dataset.
        out: the folder or the URL of the dataset.
        options: of the export; the format is delta.
        arguments: of `export`, without `overwrite`.

    Errors:
        RoboCacheError: as of `export`; or the rows have other columns than those of the dataset.
    """
    options = options or ExportOptions(("delta",))
    if options.formats != ("delta",):
        raise RoboCacheError(f"append: not for the format {printable(options.formats[0], 30)}; use --format delta")
    dataset, pieces = append_folders(bags, spec, out, options)
    pieces = arguments.pop("pieces", None) or pieces
    result = export(bags, spec, dataset, options, overwrite=True, pieces=pieces, **arguments)
    from robocache_ros.export.formats.delta.append_dataset import append_dataset

    where = any_path(out, "datasets")
    with file_errors(where):
        appended = append_dataset(dataset, out)
        shutil.rmtree(dataset.parent, ignore_errors=True)
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
    bags: Sequence[str | Path | PlannedRecording], spec: FusionSpec, out: str | Path, options: ExportOptions
) -> tuple[Path, Path]:
    """Return the folders of an append that is not complete: of its dataset, and of its pieces.

    They are those of another call with the same recordings, spec and options.
    """
    decides = [[str(each) for each in planned(bags)], spec.to_dict(), asdict(options), str(out)]
    name = f"{APPEND}{hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]}"
    if is_url(out):
        folder = cache_folder("appends")
    else:
        folder = Path(os.path.abspath(out))
        if folder.exists() and not folder.is_dir():
            raise RoboCacheError(f"{printable(folder)}: is a file; give a new folder, or that of a Delta Lake dataset")
        others = [entry for entry in folder.iterdir() if entry.name[0] != "."] if folder.exists() else []
        if others and not (folder / "episodes" / "_delta_log").is_dir():
            raise RoboCacheError(f"{printable(folder)}: is not a Delta Lake dataset; choose another folder")
    return folder / name / "dataset", folder / name / "pieces"
