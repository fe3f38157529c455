"""Reads a table of recordings or episodes: a list of mappings in YAML, or a CSV file with a line of column names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.export_options import check_line
from robocache_ros.export.recordings.csv_cells import CsvError, split_cells
from robocache_ros.export.recordings.moment import MOMENT
from robocache_ros.spec import strict_yaml
from robocache_ros.spec.keys import KeyType, refuse
from robocache_ros.spec.problems import KeyPath, Problem, SpecError, below, show_value, suggestion
from robocache_ros.text_file import read_text

MAX_CSV_BYTES = 16 << 20
_HINT = "give a list of {} in YAML or CSV"
_LOST = (None, "")  # an empty cell or value is a key that is not given

Place = Callable[[KeyPath], str]  # where a part of the table is: `lifts.yaml:3:5`


class RowKind(NamedTuple):
    """The rows of a table."""

    name: str  # in the plural
    example: str
    keys: Mapping[str, KeyType]
    required: Mapping[str, str] = {}  # key that a row must have -> what to give, for errors


class Table(NamedTuple):
    """A table."""

    rows: list[Any]  # mappings, if the table is as it should be
    place: Place


def read_table(path: Path, kind: RowKind) -> Table:
    """Read a table.

    Args:
        path: of the file; one named *.csv is CSV.
        kind: of its rows.

    Errors:
        RoboCacheError: the file cannot be read or is not a table.
    """
    return _csv(path, kind) if path.suffix.lower() == ".csv" else _yaml(path, kind)


def _yaml(path: Path, kind: RowKind) -> Table:
    shown = printable(path, 60)
    try:
        root = strict_yaml.load(read_text(path, _HINT.format(kind.name), strict_yaml.MAX_BYTES))
    except strict_yaml.YamlError as error:
        raise RoboCacheError(printable(f"{shown}:{error.line}:{error.column}: {error}", 199)) from None

    def place(at: KeyPath) -> str:
        node = root.at(at)
        return f"{shown}:{node.line}:{node.column}"

    if not isinstance(root.value, list):
        raise RoboCacheError(f"{place(())}: not a list of {kind.name}; write `- {kind.example}` for each")
    return Table(root.value, place)


def _csv(path: Path, kind: RowKind) -> Table:
    shown = printable(path, 60)
    try:
        header, *lines = split_cells(read_text(path, _HINT.format(kind.name), MAX_CSV_BYTES)) or [[]]
    except CsvError as error:
        raise RoboCacheError(printable(f"{shown}:{error.line}:{error.column}: {error}", 199)) from None
    names = [cell.text for cell in header]
    for column, cell in enumerate(header):
        if wrong := "twice" * (cell.text in names[:column]) or _unknown(cell.text, kind):
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

    return Table([dict(zip(names, (cell.text for cell in cells), strict=True)) for cells in lines], place)


def values_of(row: Any, kind: RowKind) -> dict[str, Any]:
    """Return the values of a row, without the keys that are not given.

    Raises:
        SpecError: lists all unknown keys and invalid values.
    """
    if not isinstance(row, Mapping):
        raise refuse(f"expected keys and values, got {show_value(row)}; write `{kind.example}`")
    problems = [Problem((key,), wrong) for key in row if (wrong := _unknown(key, kind))]
    values = {}
    for key, type_ in kind.keys.items():
        if row.get(key) in _LOST:
            if key in kind.required:
                problems.append(Problem((key,), f"missing; {kind.required[key]}"))
            continue
        try:
            values[key] = type_.read(row[key])
        except SpecError as error:
            problems += below((key,), error)
    if problems:
        raise SpecError(problems)
    return values


def _unknown(key: str, kind: RowKind) -> str:
    if key in kind.keys:
        return ""
    return f"no such key; {suggestion(key, kind.keys) or 'the keys are ' + ', '.join(kind.keys)}"


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


EPISODE_KEYS = {
    "task": KeyType("a line of text", _task, {"type": "string"}),
    "from": MOMENT,
    "to": MOMENT,
    "success": KeyType("true or false", _success, {"type": "boolean"}),
}
