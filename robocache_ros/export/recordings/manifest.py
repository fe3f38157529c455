"""Reads a manifest: a YAML or CSV file that lists recordings, with the task, the part and the outcome of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.recordings.csv_cells import CsvError, split_cells
from robocache_ros.export.recordings.moment import MOMENT
from robocache_ros.export.recordings.planned_recording import PlannedRecording, check_line
from robocache_ros.export.recordings.search import MAX_RECORDINGS, find_recordings
from robocache_ros.spec import strict_yaml
from robocache_ros.spec.keys import KeyType, refuse
from robocache_ros.spec.problems import KeyPath, Problem, SpecError, below, show_value, suggestion
from robocache_ros.text_file import read_text

MAX_CSV_BYTES = 16 << 20
MAX_PATH = 4096  # characters
_HINT = "give a manifest in YAML or CSV"
_LOST = (None, "")  # an empty cell or value is a key that is not given

Place = Callable[[KeyPath], str]  # where a part of the manifest is: `lifts.yaml:3:5`


class _Table(NamedTuple):
    rows: list[Any]  # mappings, if the manifest is as it should be
    place: Place


def load_manifest(path: str | Path) -> tuple[PlannedRecording, ...]:
    """Read a manifest.

    The file is a list of rows with the keys `recording` (a recording, a folder or a glob, relative to the manifest) and
    optionally `task`, `from`, `to` and `success`. In YAML it is a list of mappings; a file named *.csv has a line of
    column names and a line per row.

    Returns:
        The recordings in the order of the rows. Rows that say the same are used once.

    Errors:
        RoboCacheError: the file cannot be read or is not a manifest, or a row names no recording. The message has one
            line per error, with its position in the file.
    """
    path = Path(path)
    table = _csv(path) if path.suffix.lower() == ".csv" else _yaml(path)
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


def _yaml(path: Path) -> _Table:
    shown = printable(path, 60)
    try:
        root = strict_yaml.load(read_text(path, _HINT, strict_yaml.MAX_BYTES))
    except strict_yaml.YamlError as error:
        raise RoboCacheError(printable(f"{shown}:{error.line}:{error.column}: {error}", 199)) from None

    def place(at: KeyPath) -> str:
        node = root.at(at)
        return f"{shown}:{node.line}:{node.column}"

    if not isinstance(root.value, list):
        raise RoboCacheError(f"{place(())}: not a list of recordings; write `- recording: PATH` for each")
    return _Table(root.value, place)


def _csv(path: Path) -> _Table:
    shown = printable(path, 60)
    try:
        header, *lines = split_cells(read_text(path, _HINT, MAX_CSV_BYTES)) or [[]]
    except CsvError as error:
        raise RoboCacheError(printable(f"{shown}:{error.line}:{error.column}: {error}", 199)) from None
    names = [cell.text for cell in header]
    for column, cell in enumerate(header):
        if wrong := "twice" * (cell.text in names[:column]) or _unknown(cell.text):
            what = "is given twice; remove one" if wrong == "twice" else wrong
            raise RoboCacheError(f"{shown}:{cell.line}:{cell.column}: column {show_value(cell.text)}: {what}")
    for cells in lines:
        if len(cells) != len(header):
            first = cells[min(len(header), len(cells) - 1)]
            raise RoboCacheError(
                f"{shown}:{first.line}:{first.column}: {len(cells)} cells in a table of {len(header)} columns; "
                "leave a cell empty, or quote one with a comma in it"
            )

    def place(at: KeyPath) -> str:
        row = lines[at[0]] if at and isinstance(at[0], int) else header
        cell = row[names.index(str(at[1]))] if len(at) > 1 and at[1] in names else row[0] if row else None
        return f"{shown}:{cell.line}:{cell.column}" if cell else f"{shown}:1:1"

    return _Table([dict(zip(names, (cell.text for cell in cells), strict=True)) for cells in lines], place)


def _recordings(row: Any, folder: Path, origin: str) -> Iterator[PlannedRecording]:
    """Yield the recordings of a row."""
    values = _values(row)
    values["start"], values["stop"] = values.pop("from", None), values.pop("to", None)
    try:
        for path in find_recordings([folder / Path(values.pop("recording")).expanduser()]):
            yield PlannedRecording(path, **values, origin=origin)
    except SpecError:
        raise
    except RoboCacheError as error:
        raise refuse(str(error)) from None


def _values(row: Any) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise refuse(f"expected keys and values, got {show_value(row)}; write `recording: PATH`")
    problems = [Problem((key,), wrong) for key in row if (wrong := _unknown(key))]
    values = {}
    for key, type_ in KEYS.items():
        if row.get(key) in _LOST:
            if key == "recording":
                problems.append(Problem((key,), "missing; give the path of a recording, relative to the manifest"))
            continue
        try:
            values[key] = type_.read(row[key])
        except SpecError as error:
            problems += below((key,), error)
    if problems:
        raise SpecError(problems)
    return values


def _unknown(key: str) -> str:
    if key in KEYS:
        return ""
    return f"no such key; {suggestion(key, KEYS) or 'the keys are ' + ', '.join(KEYS)}"


def _path(raw: Any) -> str:
    if not isinstance(raw, str) or "\0" in raw or len(raw) > MAX_PATH:
        raise refuse(f"{show_value(raw)} is not a path; write the path of a recording, relative to the manifest")
    return raw


def _task(raw: Any) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise refuse(f"{show_value(raw)} is not text; say in words what the robot does")
    try:
        check_line("", raw)
    except RoboCacheError as error:
        raise refuse(str(error).removeprefix(": ")) from None
    return raw


def _success(raw: Any) -> bool:
    found = raw if isinstance(raw, bool) else {"true": True, "false": False}.get(str(raw).lower())
    if found is None:
        raise refuse(f"{show_value(raw)} is not true or false; write one of them, or leave it out if it is unknown")
    return found


KEYS = {
    "recording": KeyType("a path", _path, {"type": "string"}),
    "task": KeyType("a line of text", _task, {"type": "string"}),
    "from": MOMENT,
    "to": MOMENT,
    "success": KeyType("true or false", _success, {"type": "boolean"}),
}
