"""Validation of datasets of Delta Lake tables that this project exported."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.formats.delta.data_files import RANGE_EPISODES, indexed_columns
from robocache_ros.export.formats.delta.episode_columns import SHARES, recording_key
from robocache_ros.export.formats.delta.new_episodes import APPENDS, EPISODES, TICKS
from robocache_ros.export.formats.delta.tick_columns import LAYOUT, RANGE
from robocache_ros.export.formats.delta.transaction_log import LOG, check_log, reached
from robocache_ros.export.validate.checksum_list import sha256
from robocache_ros.export.validate.delta.tick_row_checks import TickRowChecks
from robocache_ros.export.validate.exported_rows import ExportedRows
from robocache_ros.export.validate.findings import Findings, file_in, read_json
from robocache_ros.extras import need
from robocache_ros.file_limits import open_table, read_table, values_of
from robocache_ros.untrusted_files import DatasetFile, path_below

_BY_CONTENTS = re.compile(r"part-([0-9a-f]{32})\.parquet")  # compaction gives other names
_EPISODE = (
    *("episode", "length", "start_ns", "stop_ns", "append", "recording", "recording_key", "task", "robot"),
    *("success", "start", "stop", "rate_hz", *SHARES),
)


class DeltaCheck:
    """Reads the newest version of both tables, and the files that rows of ticks name."""

    title = "Delta Lake tables of ticks and episodes"

    def recognizes(self, dataset: Path) -> bool:
        """Return whether the folder has both tables."""
        return all((dataset / name / LOG).is_dir() for name in (TICKS, EPISODES))

    def check(self, findings: Findings) -> None:
        """Report everything that is wrong.

        Errors:
            RoboCacheError: a table cannot be opened, or is not an export of this project.
        """
        tables = {name: _opened(findings.dataset, name) for name in (EPISODES, TICKS)}
        files = {name: _files(findings, name, table) for name, table in tables.items()}
        rows = _layout_rows(findings, tables[TICKS])
        listed: list[dict[str, Any]] = []
        for name in files[EPISODES]:
            with findings.reading(name, *_errors(), KeyError):
                read = read_table(file_in(findings.dataset, name), name, _EPISODE, distinct=True)
                values = zip(*map(values_of, read.columns), strict=True)
                listed += [dict(zip(_EPISODE, row, strict=True), file=name) for row in values]
        appends = _Appends(findings)
        rows.exported = {row["episode"]: found for row in listed if (found := appends.of(row)) is not None}
        for name in files[TICKS]:
            with findings.reading(name, *_errors()):
                for episode, table in _by_episode(file_in(findings.dataset, name)):
                    rows.check(name, episode, table)
        _check_episodes(findings, listed, rows)
        rows.check_files()


def _opened(dataset: Path, name: str) -> Any:
    check_log(dataset, name)
    with reached(name):
        return need("deltalake", "fleet").DeltaTable(dataset / name)


def _files(findings: Findings, name: str, table: Any) -> list[str]:
    """Check that the files of a table are those in its log; return them, relative to the dataset."""
    found = []
    for told in need("pyarrow", "export").table(table.get_add_actions(flatten=True)).to_pylist():
        path = f"{name}/{unquote(told['path'])}"
        with findings.reading(path):
            path_below(findings.dataset, told["path"])
            file = file_in(findings.dataset, path)
            size = file.stat().st_size
            findings.check(size == told["size_bytes"], path, f"{size} bytes; the log states {told['size_bytes']}")
            stated = all(told.get(f"{each}.episode") is not None for each in ("min", "max"))
            findings.check(stated, path, "the log does not state which episodes are in it")
            named = _BY_CONTENTS.fullmatch(file.name)
            if named:
                changed = not sha256(file).startswith(named[1])
                findings.check(not changed, path, "its contents are not those of its name: the file was changed")
                findings.counted["checksums"] += 1
            _check_logged(findings, name, path, told)
            found.append(path)
    return sorted(found)


def _check_logged(findings: Findings, table: str, path: str, told: dict[str, Any]) -> None:
    """Compare what the log states of a file, by which queries skip it, with its footer."""
    with findings.reading(path, *_errors()):
        footer = need("pyarrow.parquet", "export").read_metadata(file_in(findings.dataset, path))
        count = told.get("num_records")
        findings.check(count in (None, footer.num_rows), path, f"{footer.num_rows} rows; the log states {count}")
        for index in range(indexed_columns(footer.schema.to_arrow_schema())):
            name = footer.schema.column(index).name
            stats = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
            known = [one for one in stats if one is not None and one.has_min_max]
            if not known or isinstance(known[0].min, datetime):  # times are in the log to the millisecond
                continue
            for end, value in (("min", min(one.min for one in known)), ("max", max(one.max for one in known))):
                logged = told.get(f"{end}.{name}")
                text = f"{end} of {name} is {printable(value, 30)}; the log states {printable(logged, 30)}"
                findings.check(logged in (None, value), path, text)
            if name == "episode":
                of_range = {int(one) // RANGE_EPISODES * RANGE_EPISODES for one in (known[0].min, known[-1].max)}
                logged = told.get(f"partition.{RANGE}")
                text = f"{RANGE} of its episodes is {sorted(of_range)}; the log states {printable(logged, 20)}"
                findings.check({str(one) for one in of_range} == {str(logged)}, path, text)


class _Appends:
    """The provenance of each append, by which an episode finds what is stated of it."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._read: dict[str, tuple[ExportedRows, dict[tuple[str, int], int]] | None] = {}

    def of(self, row: dict[str, Any]) -> tuple[ExportedRows, int] | None:
        """Return the provenance of an episode, and its number in it; None if it has none."""
        append = str(row["append"])
        name = f"{APPENDS}/{append}/robocache.json"
        if append not in self._read:
            self._read[append] = None
            if (self._findings.dataset / name).is_file():
                with self._findings.reading(name, KeyError, TypeError, IndexError):
                    raw = read_json(self._findings.dataset, name)
                    exported = ExportedRows(self._findings, name, raw)
                    keys = [recording_key(recording) for recording in raw["recordings"]]
                    episodes = enumerate(raw["episodes"])
                    places = {(keys[told["recording"]], told["first_tick_ns"]): k for k, told in episodes}
                    self._read[append] = exported, places
        found = self._read[append]
        if found is None:
            return None
        number = found[1].get((row["recording_key"], row["start_ns"]))
        where = f"{row['file']}, episode {row['episode']}"
        text = f"no episode of {name} has its recording and start_ns {row['start_ns']}"
        self._findings.check(number is not None, where, text)
        return None if number is None else (found[0], number)


def _layout_rows(findings: Findings, ticks: Any) -> TickRowChecks:
    """Return the checks of rows, by the layout in the schema."""
    fields = {field["name"]: field["metadata"] for field in json.loads(ticks.schema().to_json())["fields"]}
    try:
        layout = json.loads(fields["tick_ns"][LAYOUT])
        kinds = {str(name): str(told["kind"]) for name, told in layout["streams"].items()}
        windows = {str(name) for name, told in layout["streams"].items() if len(told.get("shape", ())) > 1}
        return TickRowChecks(findings, int(layout["rate_hz"]), kinds, windows, set(fields))
    except (KeyError, TypeError, ValueError) as error:
        raise RoboCacheError(f"{TICKS}: no layout in its schema ({printable(error, 40)}); export it again") from None


def _by_episode(path: DatasetFile) -> Iterator[tuple[int, Any]]:
    """Yield the consecutive rows of each episode in a file, by its row groups."""
    arrow = need("pyarrow", "export")

    def parts() -> Iterator[tuple[int, Any]]:
        with open_table(path, path.name) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                numbers = table["episode"].to_numpy()
                edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
                for start, stop in pairwise(edges):
                    yield int(numbers[start]), table.slice(start, stop - start)

    for episode, of_episode in groupby(parts(), lambda part: part[0]):
        yield episode, arrow.concat_tables([table for _, table in of_episode]).combine_chunks()


def _check_episodes(findings: Findings, listed: list[dict[str, Any]], rows: TickRowChecks) -> None:
    """Compare the rows of episodes with those of ticks."""
    counts = Counter(row["episode"] for row in listed)
    for row in listed:
        where = f"{row['file']}, episode {row['episode']}"
        found, first, last = rows.spans.get(row["episode"], (0, None, None))
        findings.check(counts[row["episode"]] == 1, where, "its number is that of another episode")
        findings.check(found == row["length"], where, f"{found} rows of ticks; it has {row['length']}")
        if found:
            findings.check((first, last) == (row["start_ns"], row["stop_ns"]), where, "start_ns or stop_ns is wrong")
        if (exported := rows.exported.get(row["episode"])) is not None:
            _check_episode(findings, where, row, *exported, rows.states.get(row["episode"]))
        provenance = path_below(findings.dataset, f"appends/{row['append']}/robocache.json")
        findings.check(provenance.is_file(), where, "its provenance in appends is missing")
    if without := sorted(set(rows.spans) - set(counts)):
        text = f"{len(without)} episodes of {TICKS} are not in it: an append runs, or was stopped; run it again"
        findings.add(EPISODES, text)
    findings.counted["episodes"] += len(listed)


def _check_episode(
    findings: Findings,
    where: str,
    row: dict[str, Any],
    exported: ExportedRows,
    number: int,
    states: NDArray[np.int64] | None,
) -> None:
    """Compare a row of episodes with the provenance, and its shares with (3, N) numbers of ticks by state."""
    told = exported.episodes[number]
    exported.check_value(where, "length", row["length"], told.frames)
    exported.check_value(where, "stop_ns", row["stop_ns"], told.last_tick_ns)
    exported.check_value(where, "task", row["task"], told.task)
    exported.check_value(where, "success", row["success"], told.success)
    exported.check_value(where, "robot", row["robot"], exported.robot)
    exported.check_value(where, "rate_hz", row["rate_hz"], exported.spec.rate_hz)
    for end in ("start", "stop"):
        micros = (row[end] - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)
        text = f"{end} is {row[end]}, not {end}_ns {row[f'{end}_ns']}"
        findings.check(micros == row[f"{end}_ns"] // 1000, where, text)
    if states is None or not states.sum(axis=0).all():  # other states are reported
        return
    for share, state in SHARES.items():
        for n, stream in enumerate(exported.layout.names):
            wanted = float(states[state, n] / states[:, n].sum())
            found = row[share].get(stream)
            text = f"{share}.{stream} is {printable(found, 20)}; the ticks have {wanted:g}"
            findings.check(found is not None and abs(found - wanted) < 1e-9, where, text)


def _errors() -> tuple[type[Exception], ...]:
    return (need("pyarrow", "export").ArrowException, ValueError)


DELTA_CHECK = DeltaCheck()
