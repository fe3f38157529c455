"""Reads a manifest: a YAML or CSV file that lists recordings, with the task, the part and the outcome of each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from robocache_ros.errors import RoboCacheError
from robocache_ros.export.recordings.planned_recording import PlannedRecording
from robocache_ros.export.recordings.row_table import EPISODE_KEYS, RowKind, read_table, values_of
from robocache_ros.export.recordings.search import MAX_RECORDINGS, find_recordings
from robocache_ros.remote.any_path import any_path, is_url
from robocache_ros.remote.remote_path import RemotePath
from robocache_ros.spec.keys import KeyType, refuse
from robocache_ros.spec.problems import Problem, SpecError, below, show_value

MAX_PATH = 4096  # characters


def load_manifest(path: str | Path) -> tuple[PlannedRecording, ...]:
    """Read a manifest.

    The file is a list of rows with the keys `recording` (a URL, or a recording, a folder or a glob relative to the
    manifest, which may be at a URL itself) and optionally `task`, `from`, `to` and `success`. In YAML it is a list of
    mappings; a file named *.csv has a line of column names and a line per row.

    Returns:
        The recordings in the order of the rows. Rows that say the same are used once.

    Errors:
        RoboCacheError: the file cannot be read or is not a manifest, or a row names no recording. The message has one
            line per error, with its position in the file.
    """
    path = any_path(path, "manifests")
    table = read_table(path, ROWS)
    if not table.rows:
        raise RoboCacheError(f"{table.place(())}: lists no recordings; name one at least")
    found: dict[PlannedRecording, None] = {}
    problems: list[Problem] = []
    for number, row in enumerate(table.rows):
        try:
            found |= dict.fromkeys(_recordings(row, path.parent, table.place((number,))))
        except SpecError as error:
            problems += below((number,), error)
        if len(found) > MAX_RECORDINGS:
            raise RoboCacheError(
                f"{table.place((number,))}: more than {MAX_RECORDINGS:,} recordings; use two manifests"
            )
    if problems:
        raise SpecError(problems, table.place)
    return tuple(found)


def _recordings(row: Any, folder: Path, origin: str) -> Iterator[PlannedRecording]:
    """Yield the recordings of a row."""
    values = values_of(row, ROWS)
    values["start"], values["stop"] = values.pop("from", None), values.pop("to", None)
    try:
        for path in find_recordings([_named(values.pop("recording"), folder)]):
            yield PlannedRecording(path, **values, origin=origin)
    except SpecError:
        raise
    except RoboCacheError as error:
        raise refuse(str(error)) from None


def _named(recording: str, folder: Path) -> str | Path:
    """Return the path or URL of a recording, relative to the folder of the manifest."""
    if is_url(recording):
        return recording
    if isinstance(folder, RemotePath):
        return str(folder.relative(recording))
    return folder / Path(recording).expanduser()


def _path(raw: Any) -> str:
    if not isinstance(raw, str) or "\0" in raw or len(raw) > MAX_PATH:
        raise refuse(f"{show_value(raw)} is not a path; write the path of a recording, relative to the manifest")
    return raw


ROWS = RowKind(
    "recordings",
    "recording: PATH",
    {"recording": KeyType("a path", _path, {"type": "string"}), **EPISODE_KEYS},
    {"recording": "give the path of a recording, relative to the manifest"},
)
