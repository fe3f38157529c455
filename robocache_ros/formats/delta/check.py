"""Check exported Delta Lake tables."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.file_limits import open_table, read_table, values_of
from robocache_ros.formats.check import (
    ExportedRows,
    Findings,
    FormatCheck,
    TickRows,
    check_finite,
    check_ticks,
    file_in,
    image_size,
    read_json,
)
from robocache_ros.formats.dataset_folder import sha256
from robocache_ros.formats.delta.log import (
    APPENDS,
    EPISODES,
    LAYOUT,
    LOG,
    RANGE,
    RANGE_EPISODES,
    TICKS,
    check_log,
    indexed_columns,
    reached,
    recording_key,
)
from robocache_ros.formats.read import STATES
from robocache_ros.untrusted_files import DatasetFile, open_container, path_below


class TickRowChecks:
    """Checks rows of ticks."""

    def __init__(
        self, findings: Findings, rate_hz: int, kinds: Mapping[str, str], windows: set[str], columns: set[str]
    ) -> None:
        self._findings, self._rate_hz, self._kinds = findings, rate_hz, kinds
        self._windows, self._columns = windows, columns
        self.spans: dict[int, tuple[int, int, int]] = {}  # rows, first and last tick, by episode
        self._last: dict[str, int] = {}  # by file that rows name, the greatest row in it
        self._used: dict[str, list[tuple[int, int]]] = {}  # the first and the last row of each episode
        self._stamps: dict[str, list[NDArray[np.int64]]] = {}  # (K, 2) rows of a file other than a video, and stamps
        # (3, N) numbers of ticks by state and stream, of episodes with a provenance.
        self.states: dict[int, NDArray[np.int64]] = {}
        self.exported: Mapping[int, tuple[ExportedRows, int]] = {}  # by episode its provenance, and its number in it

    def check(self, file: str, episode: int, table: Any) -> None:
        """Check consecutive rows of an episode."""
        where = f"{file}, episode {episode}"
        if missing := sorted(self._columns - {"episode_range"} - set(table.column_names)):
            self._findings.add(where, f"column {missing[0]} is missing")
            return
        numbers, ticks = table["tick"].to_numpy(), table["tick_ns"].to_numpy()
        count, first, _ = self.spans.get(episode, (0, int(ticks[0]), 0))
        consecutive = np.array_equal(numbers, count + np.arange(len(numbers)))
        self._findings.check(consecutive, where, f"its ticks are not {count}, {count + 1}, …")
        check_ticks(self._findings, where, ticks, self._rate_hz)
        self.spans[episode] = (count + len(ticks), first, int(ticks[-1]))
        for stream, kind in self._kinds.items():
            if stream in table.column_names:
                self._check_stream(where, stream, kind, table)
        self._findings.counted["rows"] += len(ticks)
        if episode in self.exported:
            self._check_exported(where, episode, ticks, table)

    def _check_exported(self, where: str, episode: int, ticks: NDArray[np.int64], table: Any) -> None:
        """Compare rows with each other and with the spec."""
        exported, number = self.exported[episode]
        names = exported.layout.names
        valid, ages, stamps = (
            np.stack(
                [table[key].combine_chunks().field(name).fill_null(0).to_numpy(zero_copy_only=False) for name in names],
                axis=1,
            )
            for key in ("valid", "age_ns", "stamp_ns")
        )
        values = {}
        for stream in exported.spec.vectors:
            if not stream.rows:
                column = table[stream.name].combine_chunks()
                fields = column.flatten() if need("pyarrow", "export").types.is_struct(column.type) else [column]
                numbers = [field.fill_null(0).to_numpy(zero_copy_only=False) for field in fields]
                values[stream.name] = np.stack(numbers, axis=1)
        ages_ms = {}
        for name in exported.windows:
            lists = table["sample_age_ms"].combine_chunks().field(name).to_pylist()
            size = exported.spec.stream(name).rows
            padded = [[*(of_row or ()), *[-1.0] * (size - len(of_row or ()))] for of_row in lists]
            ages_ms[name] = np.array(padded)
        rows = TickRows(ticks, stamps, valid, ages, values, ages_ms=ages_ms)
        exported.check_rows(where, rows)
        counts = np.stack([(valid == state).sum(axis=0) for state in range(len(STATES))])
        self.states[episode] = self.states.get(episode, 0) + counts
        for name, kind in self._kinds.items():
            if kind != "vector" and name in table.column_names:
                self._check_places(where, exported, rows, name, table[name].combine_chunks())
        self._check_outcomes(where, exported, number, rows, table)

    def _check_outcomes(self, where: str, exported: ExportedRows, number: int, rows: TickRows, table: Any) -> None:
        stated = exported.episodes[number]
        rewards, complete = table["next_reward"], len(rows.ticks_ns) == stated.frames
        if streams := exported.of_role("reward"):
            off = rewards.fill_null(0).to_numpy() != rows.values[streams[0].name][:, 0]
            text = f"next_reward of row {off.argmax()} is not the value of {streams[0].name}"
            self._findings.check(not off.any(), where, text)
        elif rewards.null_count == 0 and complete:
            exported.check_rewards(where, number, rows, rewards.to_numpy())
        if complete and table["next_success"].null_count == 0:
            last = table["next_success"][len(table) - 1].as_py()
            exported.check_value(where, "next_success of the last row", last, bool(stated.success))

    def _check_places(self, where: str, exported: ExportedRows, rows: TickRows, stream: str, column: Any) -> None:
        """Check the places of images or voxels: a frame per tick of a video, else a row per sample."""
        paths, places = column.field("path"), column.field("row").fill_null(-1).to_numpy(zero_copy_only=False)
        names = paths.unique().drop_null().to_pylist()
        if len(names) != 1:
            self._findings.check(not names, where, f"{stream}: the episode is in {len(names)} files")
            return
        has = np.asarray(column.is_valid()) & (places >= 0)
        n = exported.layout.names.index(stream)
        stamps = rows.stamps_ns[:, n]
        if names[0].endswith(".mp4"):
            same = np.concatenate([[True], np.diff(places) == 1])
            text = f"{stream}: row {same.argmin()} is not the frame after that of the row before"
            self._findings.check(bool(same.all()), where, text)
        else:
            agrees = np.array_equal(has, rows.valid[:, n] > 0)
            self._findings.check(agrees, where, f"{stream}: is not null exactly where valid is 0")
            again = np.concatenate([[False], places[1:] == places[:-1]])
            exported.check_media(where, rows, exported.spec.stream(stream), again)
            self._stamps.setdefault(names[0], []).append(np.stack([places, stamps], axis=1)[has])
        if has.any():
            span = int(places[has].min()), int(places[has].max())
            self._used.setdefault(names[0], []).append(span)

    def check_files(self) -> None:
        """Check the files that rows name."""
        for name, last in sorted(self._last.items()):
            with self._findings.reading(name):
                path = file_in(self._findings.dataset, name)
                video = path.suffix == ".mp4"
                count = self._frames(name, path) if video else self._rows(name, path)
                text = f"{count} {'frames' if video else 'rows'}; a tick names number {last}"
                if self._findings.check(last < count, name, text) and self._used.get(name):
                    self._check_used(name, count)
        if self._last and not self._findings.decode:
            self._findings.skip("pictures: frames and files are counted, not decoded; --decode decodes them")

    def _check_used(self, name: str, count: int) -> None:
        """Check that each row of a file is of one episode; of a file other than a video, that it has their stamps."""
        spans = sorted(self._used[name])
        edges = [-1, *(edge for span in spans for edge in span), count]
        gaps = [(end, start) for end, start in zip(edges[::2], edges[1::2], strict=True) if start != end + 1]
        # Rows of one episode in two files of ticks may have the same image at the border.
        text = f"rows {gaps[0][0] + 1} to {gaps[0][1] - 1} are of no episode, or of two" if gaps else ""
        shared = [gap for gap in gaps if gap[1] != gap[0]]
        self._findings.check(not shared, name, text)
        if name in self._stamps:
            with open_table(file_in(self._findings.dataset, name), name) as file:
                if "stamp_ns" not in file.schema_arrow.names:
                    return
                stored = file.read(columns=["stamp_ns"])["stamp_ns"].to_numpy()
            stated = np.concatenate(self._stamps[name])
            off = stored[stated[:, 0]] != stated[:, 1]
            if off.any():
                row, stamp = stated[off.argmax()].tolist()
                text = f"the stamp of row {row} is {stored[row]}; the ticks that name it have {stamp}"
                self._findings.add(name, text)

    def _check_stream(self, where: str, stream: str, kind: str, table: Any) -> None:
        """Check the values of a stream, and what is stated of them."""
        column = table[stream].combine_chunks()
        valid = table["valid"].combine_chunks().field(stream).to_numpy()
        self._findings.check(
            bool(((valid >= 0) & (valid < len(STATES))).all()), where, f"valid.{stream}: not 0, 1 or 2"
        )
        for name in ("age_ns", "stamp_ns"):
            nulls = table[name].combine_chunks().field(stream).is_null()
            agrees = np.array_equal(np.asarray(nulls), valid == 0)
            self._findings.check(agrees, where, f"{name}.{stream}: is not null exactly where valid is 0")
        if kind == "vector":
            if stream not in self._windows:
                agrees = np.array_equal(np.asarray(column.is_null()), valid == 0)
                self._findings.check(agrees, where, f"{stream}: is not null exactly where valid is 0")
            for values in _leaves(column):
                check_finite(self._findings, f"{where}, {stream}", values)
        else:
            paths, rows = column.field("path"), column.field("row").fill_null(-1).to_numpy()
            for name in paths.unique().drop_null().to_pylist():
                self._last[name] = max(self._last.get(name, 0), int(rows.max(initial=0)))

    def _frames(self, name: str, path: DatasetFile) -> int:
        self._findings.counted["videos"] += 1
        with open_container(path) as container:
            count = sum(bool(packet.size) for packet in container.demux(video=0))
        if self._findings.decode:
            with open_container(path) as container:
                decoded = sum(not frame.is_corrupt for frame in container.decode(video=0))
            self._findings.check(decoded == count, name, f"{decoded} of {count} frames can be decoded")
            self._findings.counted["decoded frames"] += decoded
        return count

    def _rows(self, name: str, path: DatasetFile) -> int:
        """Return the number of rows of a file of images or arrays; decode the images if asked for."""
        with open_table(path, name) as file:
            for group in range(file.num_row_groups if self._findings.decode and "/images/" in name else 0):
                for data in file.read_row_group(group, ["data"])["data"]:
                    image_size(data.as_py(), decode=True)
                    self._findings.counted["images"] += 1
            return int(file.metadata.num_rows)


def _leaves(column: Any) -> list[NDArray[Any]]:
    """Return the values of a column of numbers, of structs or of lists of them, without nulls."""
    types = need("pyarrow", "export").types
    while types.is_list(column.type) or types.is_large_list(column.type):
        column = column.flatten()
    fields = column.flatten() if types.is_struct(column.type) else [column]
    return [field.drop_null().to_numpy(zero_copy_only=False) for field in fields]


_BY_CONTENTS = re.compile(r"part-([0-9a-f]{32})\.parquet")  # compaction gives other names
_EPISODE = (
    *("episode", "length", "start_ns", "stop_ns", "append", "recording", "recording_key", "task", "robot"),
    *("success", "start", "stop", "rate_hz", *STATES),
)


def _recognizes(dataset: Path) -> bool:
    """Return whether the folder has both tables."""
    return all((dataset / name / LOG).is_dir() for name in (TICKS, EPISODES))


def _check(findings: Findings) -> None:
    """Read the newest version of both tables, and the files that rows of ticks name."""
    tables = {name: _opened(findings.dataset, name) for name in (EPISODES, TICKS)}
    files = {name: _files(findings, name, table) for name, table in tables.items()}
    rows = _layout_rows(findings, tables[TICKS])
    listed: list[dict[str, Any]] = []
    for name in files[EPISODES]:
        with findings.reading(name):
            read = read_table(file_in(findings.dataset, name), name, _EPISODE, distinct=True)
            values = zip(*map(values_of, read.columns), strict=True)
            listed += [dict(zip(_EPISODE, row, strict=True), file=name) for row in values]
    appends = _Appends(findings)
    rows.exported = {row["episode"]: found for row in listed if (found := appends.of(row)) is not None}
    for name in files[TICKS]:
        with findings.reading(name):
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
    for entry in need("pyarrow", "export").table(table.get_add_actions(flatten=True)).to_pylist():
        path = f"{name}/{unquote(entry['path'])}"
        with findings.reading(path):
            path_below(findings.dataset, entry["path"])
            file = file_in(findings.dataset, path)
            size = file.stat().st_size
            findings.check(size == entry["size_bytes"], path, f"{size} bytes; the log states {entry['size_bytes']}")
            stated = all(entry.get(f"{each}.episode") is not None for each in ("min", "max"))
            findings.check(stated, path, "the log does not state which episodes are in it")
            named = _BY_CONTENTS.fullmatch(file.name)
            if named:
                changed = not sha256(file).startswith(named[1])
                findings.check(not changed, path, "its contents are not those of its name: the file was changed")
                findings.counted["checksums"] += 1
            _check_logged(findings, name, path, entry)
            found.append(path)
    return sorted(found)


def _check_logged(findings: Findings, table: str, path: str, stated: dict[str, Any]) -> None:
    """Compare what the log states of a file, by which queries skip it, with its footer."""
    with findings.reading(path):
        footer = need("pyarrow.parquet", "export").read_metadata(file_in(findings.dataset, path))
        count = stated.get("num_records")
        findings.check(count in (None, footer.num_rows), path, f"{footer.num_rows} rows; the log states {count}")
        for index in range(indexed_columns(footer.schema.to_arrow_schema())):
            name = footer.schema.column(index).name
            stats = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
            known = [one for one in stats if one is not None and one.has_min_max]
            if not known or isinstance(known[0].min, datetime):  # times are in the log to the millisecond
                continue
            for end, value in (("min", min(one.min for one in known)), ("max", max(one.max for one in known))):
                logged = stated.get(f"{end}.{name}")
                text = f"{end} of {name} is {printable(value, 30)}; the log states {printable(logged, 30)}"
                findings.check(logged in (None, value), path, text)
            if name == "episode":
                of_range = {int(one) // RANGE_EPISODES * RANGE_EPISODES for one in (known[0].min, known[-1].max)}
                logged = stated.get(f"partition.{RANGE}")
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
                with self._findings.reading(name):
                    raw = read_json(self._findings.dataset, name)
                    exported = ExportedRows(self._findings, name, raw)
                    keys = [recording_key(recording) for recording in raw["recordings"]]
                    episodes = enumerate(raw["episodes"])
                    places = {(keys[stated["recording"]], stated["first_tick_ns"]): k for k, stated in episodes}
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
        kinds = {str(name): str(stated["kind"]) for name, stated in layout["streams"].items()}
        windows = {str(name) for name, stated in layout["streams"].items() if len(stated.get("shape", ())) > 1}
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
    stated = exported.episodes[number]
    exported.check_value(where, "length", row["length"], stated.frames)
    exported.check_value(where, "stop_ns", row["stop_ns"], stated.last_tick_ns)
    exported.check_value(where, "task", row["task"], stated.task)
    exported.check_value(where, "success", row["success"], stated.success)
    exported.check_value(where, "robot", row["robot"], exported.robot)
    exported.check_value(where, "rate_hz", row["rate_hz"], exported.spec.rate_hz)
    for end in ("start", "stop"):
        micros = (row[end] - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)
        text = f"{end} is {row[end]}, not {end}_ns {row[f'{end}_ns']}"
        findings.check(micros == row[f"{end}_ns"] // 1000, where, text)
    if states is None or not states.sum(axis=0).all():  # other states are reported
        return
    for share, state in STATES.items():
        for n, stream in enumerate(exported.layout.names):
            wanted = float(states[state, n] / states[:, n].sum())
            found = row[share].get(stream)
            text = f"{share}.{stream} is {printable(found, 20)}; the ticks have {wanted:g}"
            findings.check(found is not None and abs(found - wanted) < 1e-9, where, text)


DELTA_CHECK = FormatCheck("Delta Lake tables of ticks and episodes", _recognizes, _check)
