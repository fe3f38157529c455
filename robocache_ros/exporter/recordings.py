"""Find the recordings of an export: in folders, at URLs, and in manifests."""

from __future__ import annotations

import glob
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path
from typing import Any, NamedTuple

from robocache_ros.bags.reader import check_files, storage_files
from robocache_ros.bags.storage.metadata import is_stored
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.exporter.planned_recording import MOMENT, PlannedRecording, planned
from robocache_ros.recorder.episodes import TRASH, is_episode_name, read_episode
from robocache_ros.spec import strict_yaml
from robocache_ros.spec.dataset import line
from robocache_ros.spec.keys import KeyPath, KeyType, Problem, Problems, SpecError, refuse, show_value, suggestion
from robocache_ros.storage.paths import AnyPath, RemotePath, any_path, is_url
from robocache_ros.untrusted_files import read_text

# Splits CSV text (RFC 4180, with commas) into cells that know their position, for exact error messages.


MAX_CELL = 8192  # characters
MAX_LINES = 100_001  # of a table in CSV: the names of the columns, and as many rows as an export has recordings

_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_PLAIN = re.compile(r'[^",\r\n]*')
_END = re.compile(r"\r\n|\n|\r|\Z")


class CsvError(RoboCacheError):
    """Text that is not CSV within the limits; `line` and `column` count from 1."""

    def __init__(self, line: int, column: int, message: str) -> None:
        super().__init__(message)
        self.line, self.column = line, column


class Cell(NamedTuple):
    """The text of a cell without its quotes; `line` and `column` count from 1."""

    text: str
    line: int
    column: int


def split_cells(text: str, most: int) -> list[list[Cell]]:
    """Return the cells of each row, at most `most`; empty lines are left out.

    Errors:
        CsvError: a quote is not closed or not at the start of a cell, a cell is longer than MAX_CELL, a row has more
            cells, or there are more than MAX_LINES.
    """
    rows: list[list[Cell]] = []
    row: list[Cell] = []
    at = line_start = 0  # position in the text, and of the start of its line
    line = 1
    while at < len(text) or row:
        column = at - line_start + 1
        match = _QUOTED.match(text, at) or _PLAIN.match(text, at)
        assert match
        value = match[1].replace('""', '"') if match.re is _QUOTED else match[0].strip()
        if len(value) > MAX_CELL:
            raise CsvError(line, column, f"a cell of {len(value):,} characters; use at most {MAX_CELL:,}")
        if len(row) == most:
            raise CsvError(line, column, f"more than {most} cells in a row; quote one with a comma in it")
        if line > MAX_LINES:
            raise CsvError(line, column, f"more than {MAX_LINES:,} lines; use two tables")
        row.append(Cell(value, line, column))
        if "\n" in match[0]:
            line += match[0].count("\n")
            line_start = match.start() + match[0].rfind("\n") + 1
        at = match.end()
        if text.startswith(",", at):
            at += 1
            continue
        end = _END.match(text, at)
        if not end:
            raise CsvError(
                line,
                at - line_start + 1,
                'a quote that is not closed, or is inside a cell; quote the whole cell, and write " in it as ""',
            )
        if len(row) > 1 or row[0].text:
            rows.append(row)
        row, at, line, line_start = [], end.end(), line + 1, end.end()
    return rows


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


def read_table(path: AnyPath, kind: RowKind) -> Table:
    """Read a table: CSV if the file is named *.csv, else YAML."""
    return _csv(path, kind) if path.suffix.lower() == ".csv" else _yaml(path, kind)


def _yaml(path: AnyPath, kind: RowKind) -> Table:
    rows, place = strict_yaml.read_file(path, _HINT.format(kind.name))
    if not isinstance(rows, list):
        raise RoboCacheError(f"{place(())}: not a list of {kind.name}; write `- {kind.example}` for each")
    return Table(rows, place)


def _csv(path: AnyPath, kind: RowKind) -> Table:
    shown = printable(path, 60)
    try:
        text = read_text(path, _HINT.format(kind.name), MAX_CSV_BYTES)
        header, *lines = split_cells(text, len(kind.keys) + 1) or [[]]  # one more may be a key with an error
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
    problems = Problems(Problem((key,), wrong) for key in row if (wrong := _unknown(key, kind)))
    values = {}
    for key, type_ in kind.keys.items():
        if row.get(key) in _LOST:
            if key in kind.required:
                problems.append(Problem((key,), f"missing; {kind.required[key]}"))
            continue
        with problems.below(key):
            values[key] = type_.read(row[key])
    problems.raise_any()
    return values


def _unknown(key: str, kind: RowKind) -> str:
    if key in kind.keys:
        return ""
    return f"no such key; {suggestion(key, kind.keys) or 'the keys are ' + ', '.join(kind.keys)}"


def _success(raw: Any) -> bool:
    found = raw if isinstance(raw, bool) else {"true": True, "false": False}.get(str(raw).lower())
    if found is None:
        raise refuse(f"{show_value(raw)} is not true or false; write one of them, or leave it out if it is unknown")
    return found


EPISODE_KEYS = {
    "task": line("say in words what the robot does"),
    "from": MOMENT,
    "to": MOMENT,
    "success": KeyType("true or false", _success, {"type": "boolean"}),
}


METADATA = "metadata.yaml"


def _find_remote(url: str, but: str) -> Iterator[RemotePath]:
    """Yield the recordings that a URL names: one recording, those in a folder, or those that a glob matches.

    Over http, `*`, `?`, `[…]` and `**` are not those of a glob. The folder at the URL `but` is left out.

    Errors:
        RoboCacheError: it names no recording, or cannot be listed.
    """
    base, pattern = _split(url)
    root = any_path(base, "recordings")
    assert isinstance(root, RemotePath)
    if not pattern and is_stored(root.name):
        check_files(root)
        yield root
        return
    tree = _Tree(root, but)
    if not pattern and not tree.files:
        check_files(root)  # says that it is not there
    found = list(tree.matches(pattern) if pattern else tree.recordings(""))
    if not found:
        what = "matches no recording; correct the pattern" if pattern else "no recordings in it; give another folder"
        raise RoboCacheError(f"{printable(url)}: {what}")
    yield from (root / name if name else root for name in found)


class _Tree:
    """The files below a folder; names are relative to it, and that of the folder itself is empty."""

    def __init__(self, root: RemotePath, but: str) -> None:
        self._root = root
        start = len(root.url) + 1
        shown = (file.url for file in root.find() if not but or not file.url.startswith(f"{but}/"))
        self.files = [name for url in shown if not _is_hidden(name := url[start:])]
        self._folders: defaultdict[str, set[str]] = defaultdict(set)
        self._names: defaultdict[str, list[str]] = defaultdict(list)
        for file in self.files:
            folder, _, name = file.rpartition("/")
            self._names[folder].append(name)
            while folder and folder not in self._folders[_parent(folder)]:
                self._folders[_parent(folder)].add(folder)
                folder = _parent(folder)

    def recordings(self, folder: str) -> Iterator[str]:
        """Yield the recordings in a folder and below it."""
        waiting = [folder]
        while waiting:
            folder = waiting.pop()
            names, below = self._names[folder], self._folders[folder]
            stored = [name for name in names if is_stored(name)]
            whole = self._root / folder if folder else self._root
            if METADATA in names or (not below and _is_one_recording(whole, stored)):
                yield folder
                continue
            yield from (f"{folder}/{name}" if folder else name for name in stored)
            waiting += below

    def matches(self, pattern: str) -> Iterator[str]:
        """Yield the recordings that a glob matches, some of them several times."""
        parts = pattern.split("/")
        for folder in [*self._names, *self._folders]:
            if _matches(folder, parts):
                yield from self.recordings(folder)
        for file in self.files:
            if is_stored(file) and _matches(file, parts):
                yield _parent(file) if METADATA in self._names[_parent(file)] else file


def _split(url: str) -> tuple[str, str]:
    """Split a URL before its first part that is a pattern."""
    protocol, mark, rest = url.partition("://")
    parts = rest.rstrip("/").split("/")
    first = next((n for n, part in enumerate(parts) if has_magic(part)), len(parts))
    if protocol.startswith("http") or first == len(parts):
        return url.rstrip("/"), ""
    return f"{protocol}{mark}{'/'.join(parts[:first])}", "/".join(parts[first:])


def _matches(name: str, pattern: Sequence[str]) -> bool:
    """Whether a name matches the parts of a glob; `**` stands for any number of its parts."""
    places = {0}  # in the pattern, where the rest of the name may match
    for part in (*name.split("/"), None):
        for place in sorted(places):
            while place < len(pattern) and pattern[place] == "**":
                place += 1
                places.add(place)
        if part is None:
            break
        rest = [place for place in places if place < len(pattern)]
        places = {place for place in rest if pattern[place] == "**"}
        places |= {place + 1 for place in rest if pattern[place] != "**" and fnmatchcase(part, pattern[place])}
    return len(pattern) in places


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or "/." in name or f"/{TRASH}/" in f"/{name}"


MAX_RECORDINGS = 100_000
MAX_ENTRIES = 1_000_000  # files and folders that a search looks at
MAX_DEPTH = 16  # folders below the folder that is searched

# `rosbag record --split` of ROS 1 writes name_2024-05-01-12-00-00_0.bag, name_2024-05-01-12-10-00_1.bag
_SPLIT_OF_ROS1 = re.compile(r"[0-9]{4}(-[0-9]{2}){5}_[0-9]+(?=\.bag)")
_DIGITS = re.compile(r"([0-9]+)")


def find_recordings(arguments: Iterable[str | AnyPath], *, but: AnyPath | None = None) -> tuple[AnyPath, ...]:
    """Return the recordings that the arguments name, each once, sorted by path with numbers in numeric order.

    A folder is a recording if it has a metadata.yaml, a single storage file, or the split files of a recording named
    after it. Every other folder is searched, with the folders in it; hidden ones and those named trash are left out. In
    a glob, `**` stands for any number of folders, and a storage file stands for the recording that contains it.

    Args:
        arguments: recordings, folders and globs, also as URLs.
        but: a folder that is not searched, such as the target of an export.

    Errors:
        RoboCacheError: an argument names no recording, or there are more files than the limits allow.
    """
    search = _Search(but)
    left_out = str(but) if is_url(but) else ""
    found: dict[str, AnyPath] = {}
    for argument in arguments:
        text = str(argument)
        for path in _find_remote(text, left_out) if is_url(argument) else search.argument(text):
            found.setdefault(str(path) if is_url(path) else os.path.realpath(path), path)
            if len(found) > MAX_RECORDINGS:
                raise RoboCacheError(f"recordings: more than {MAX_RECORDINGS:,}; name fewer")
    local = [path for path in found.values() if isinstance(path, Path)]
    inside = {os.path.realpath(file) for path in local if path.is_dir() for file in storage_files(path)}
    inside |= {real for real, path in found.items() if is_url(path) and str(path.parent) in found}
    return tuple(sorted((path for real, path in found.items() if real not in inside), key=_natural))


def _natural(path: AnyPath) -> tuple[object, ...]:
    """Return the sort key of a path; `lift_2` comes before `lift_10`."""
    numbers = [
        [(0, int(piece), "") if piece.isascii() and piece.isdigit() else (1, 0, piece) for piece in _DIGITS.split(part)]
        for part in path.parts
    ]
    return numbers, str(path)


def _is_one_recording(folder: AnyPath, names: Sequence[str]) -> bool:
    """Whether storage files of a folder without metadata.yaml are one recording: one file, or its split files."""
    if len(names) <= 1:
        return bool(names) and not is_episode_name(names[0])
    ros2 = re.compile(re.escape(folder.name) + r"_(0|[1-9][0-9]*)\.(mcap|db3)(\.zstd)?")
    if all(ros2.fullmatch(name) for name in names):
        return True
    return all(_SPLIT_OF_ROS1.search(name) for name in names) and len({_SPLIT_OF_ROS1.sub("", n) for n in names}) == 1


def _is_recording(folder: Path) -> bool:
    return (folder / METADATA).is_file() and bool(storage_files(folder))


class _Search:
    def __init__(self, but: AnyPath | None) -> None:
        self.but = os.path.realpath(but) if isinstance(but, Path) else None
        self.entries = 0

    def argument(self, text: str) -> Iterator[Path]:
        path = Path(text)
        if not os.path.lexists(path) and glob.has_magic(text):
            yield from self.matches(text)
            return
        if not path.is_dir():
            check_files(path)
            yield path
            return
        found = list(self.folder(path))
        if not found:
            raise RoboCacheError(
                f"{printable(path)}: no rosbag2 folders and no .mcap, .db3 or .bag files in it; give another folder"
            )
        yield from found

    def matches(self, pattern: str) -> Iterator[Path]:
        found = False
        for match in glob.iglob(os.path.expanduser(pattern), recursive=True):
            self.count()
            path = Path(match)
            if TRASH in path.parts and TRASH not in Path(pattern).parts:
                continue
            if path.is_dir():
                for recording in self.folder(path):
                    found = True
                    yield recording
            elif is_stored(path.name):
                found = True
                yield path.parent if _is_recording(path.parent) and path in storage_files(path.parent) else path
        if not found:
            raise RoboCacheError(f"{printable(pattern)}: matches no recording; correct the pattern")

    def folder(self, root: Path) -> Iterator[Path]:
        """Yield the recordings in a folder and below it."""
        waiting = [(root, 0)]
        seen = set()
        while waiting:
            folder, depth = waiting.pop()
            real = os.path.realpath(folder)
            if real in seen or real == self.but:
                continue
            seen.add(real)  # links can lead back
            folders, files = self.contents(folder)
            stored = [name for name in files if is_stored(name)]
            if (METADATA in files and _is_recording(folder)) or (not folders and _is_one_recording(folder, stored)):
                yield folder
                continue
            yield from (folder / name for name in stored)
            if folders and depth == MAX_DEPTH:
                raise RoboCacheError(
                    f"{printable(folder)}: {MAX_DEPTH} folders deep; give a folder nearer to the recordings"
                )
            waiting += [(folder / name, depth + 1) for name in folders]

    def contents(self, folder: Path) -> tuple[list[str], list[str]]:
        folders: list[str] = []
        files: list[str] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self.count()
                    if not entry.name.startswith(".") and not (entry.name == TRASH and entry.is_dir()):
                        (folders if entry.is_dir() else files).append(entry.name)
        except OSError as error:
            raise RoboCacheError(
                f"{printable(folder)}: cannot be searched: {error.strerror}; check its permissions"
            ) from None
        return folders, files

    def count(self) -> None:
        self.entries += 1
        if self.entries > MAX_ENTRIES:
            raise RoboCacheError(f"recordings: more than {MAX_ENTRIES:,} files to search; name folders nearer to them")


MAX_PATH = 4096  # characters


def load_manifest(path: str | AnyPath) -> tuple[PlannedRecording, ...]:
    """Read a manifest.

    The file is a list of rows with the keys `recording` (a URL, or a recording, a folder or a glob relative to the
    manifest, which may be at a URL itself) and optionally `task`, `from`, `to` and `success`. In YAML it is a list of
    mappings; a file named `.csv` has a line of column names and a line per row.

    Returns:
        The recordings in the order of the rows. Rows that say the same are used once.

    Errors:
        RoboCacheError: the file cannot be read or is not a manifest, or a row names no recording. The message has one
            line per error, with its position in the file.
    """
    where = any_path(path, "manifests")
    table = read_table(where, ROWS)
    if not table.rows:
        raise RoboCacheError(f"{table.place(())}: lists no recordings; name one at least")
    found: dict[PlannedRecording, None] = {}
    problems = Problems()
    for number, row in enumerate(table.rows):
        with problems.below(number):
            found |= dict.fromkeys(_recordings(row, where.parent, table.place((number,))))
        if len(found) > MAX_RECORDINGS:
            raise RoboCacheError(
                f"{table.place((number,))}: more than {MAX_RECORDINGS:,} recordings; use two manifests"
            )
    problems.raise_any(table.place)
    return tuple(found)


def _recordings(row: Any, folder: AnyPath, origin: str) -> Iterator[PlannedRecording]:
    values = values_of(row, ROWS)
    values["start"], values["stop"] = values.pop("from", None), values.pop("to", None)
    try:
        for path in find_recordings([_named(values.pop("recording"), folder)]):
            yield PlannedRecording(path, **values, origin=origin)
    except SpecError:
        raise
    except RoboCacheError as error:
        raise refuse(str(error)) from None


def _named(recording: str, folder: AnyPath) -> str | AnyPath:
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


def recordings_of(
    given: Sequence[str | Path | PlannedRecording] | None,
    manifest: str | Path | None = None,
    *,
    but: AnyPath | None = None,
) -> tuple[PlannedRecording, ...]:
    """Return the recordings of a command or a call.

    Files of this package's recorder that are not at a URL state their task and their outcome.

    Args:
        given: recordings, folders and globs; or planned recordings, which stay in their order.
        manifest: a manifest, instead.
        but: a folder that is not searched.
    """
    if manifest is None:
        if not given:
            raise RoboCacheError("recordings: none given; name at least one, or give --manifest FILE")
        if any(isinstance(each, PlannedRecording) for each in given):
            return planned(given)
        found = find_recordings([each for each in given if not isinstance(each, PlannedRecording)], but=but)
        return tuple(_labelled(recording) for recording in planned(found))
    if given:
        raise RoboCacheError("recordings: named and in a manifest; name all of them, or list all in the manifest")
    return tuple(_labelled(recording) for recording in load_manifest(manifest))


def _labelled(recording: PlannedRecording) -> PlannedRecording:
    """Return a recording with the task and the outcome in its file, where they are not given."""
    path = recording.path
    if not isinstance(path, Path) or path.suffix != ".mcap" or (recording.task and recording.success is not None):
        return recording
    episode = read_episode(path)
    if episode is None:
        return recording
    success = episode.success if recording.success is None else recording.success
    return replace(recording, task=recording.task or episode.labels.task, success=success)
