"""The rows of ticks: numbers, times, values, and the files that they name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.export.validate.array_values import check_finite, check_ticks, image_size
from robocache_ros.export.validate.exported_rows import ExportedRows, TickRows
from robocache_ros.export.validate.findings import Findings, file_in
from robocache_ros.extras import need
from robocache_ros.file_limits import open_table
from robocache_ros.untrusted_files import DatasetFile, open_container

STATES = 3  # 0 none, 1 aligned, 2 held


class TickRowChecks:
    """Checks rows of ticks.

    Args:
        findings: collects what is wrong.
        rate_hz: ticks per second.
        kinds: vector, image or cloud, by stream.
        windows: the streams with several samples in a tick.
        columns: of the table.

    Attributes:
        spans: by episode, the number of its rows, its first and its last tick.
        states: by episode (3, N) numbers of ticks by state and stream, of episodes with a provenance.
        exported: by episode its provenance, and its number in it.
    """

    def __init__(
        self, findings: Findings, rate_hz: int, kinds: Mapping[str, str], windows: set[str], columns: set[str]
    ) -> None:
        self._findings, self._rate_hz, self._kinds = findings, rate_hz, kinds
        self._windows, self._columns = windows, columns
        self.spans: dict[int, tuple[int, int, int]] = {}
        self._last: dict[str, int] = {}  # by file that rows name, the greatest row in it
        self._used: dict[str, list[tuple[int, int]]] = {}  # the first and the last row of each episode
        self._stamps: dict[str, list[NDArray[np.int64]]] = {}  # (K, 2) rows of a file other than a video, and stamps
        self.states: dict[int, NDArray[np.int64]] = {}
        self.exported: Mapping[int, tuple[ExportedRows, int]] = {}

    def check(self, file: str, episode: int, table: Any) -> None:
        """Check consecutive rows of an episode.

        Errors:
            ValueError, pyarrow.ArrowException: a column is missing, or has another type.
        """
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
        rows = TickRows(ticks, stamps, valid, ages, values)
        exported.check_rows(where, rows)
        counts = np.stack([(valid == state).sum(axis=0) for state in range(STATES)])
        self.states[episode] = self.states.get(episode, 0) + counts
        for stream in exported.spec.vectors:
            if stream.rows:
                lists = table["sample_age_ms"].combine_chunks().field(stream.name).to_pylist()
                padded = [[*(of_row or ()), *[-1.0] * (stream.rows - len(of_row or ()))] for of_row in lists]
                exported.check_window(where, rows, stream, np.array(padded))
        for name, kind in self._kinds.items():
            if kind != "vector" and name in table.column_names:
                self._check_places(where, exported, rows, name, table[name].combine_chunks())
        self._check_outcomes(where, exported, number, rows, table)

    def _check_outcomes(self, where: str, exported: ExportedRows, number: int, rows: TickRows, table: Any) -> None:
        told = exported.episodes[number]
        rewards, complete = table["next_reward"], len(rows.ticks_ns) == told.frames
        if streams := exported.of_role("reward"):
            off = rewards.fill_null(0).to_numpy() != rows.values[streams[0].name][:, 0]
            text = f"next_reward of row {off.argmax()} is not the value of {streams[0].name}"
            self._findings.check(not off.any(), where, text)
        elif rewards.null_count == 0 and complete:
            exported.check_rewards(where, number, rows, rewards.to_numpy())
        if complete and table["next_success"].null_count == 0:
            last = table["next_success"][len(table) - 1].as_py()
            exported.check_value(where, "next_success of the last row", last, bool(told.success))

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
            with self._findings.reading(name, ValueError, *_file_errors()):
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
            told = np.concatenate(self._stamps[name])
            off = stored[told[:, 0]] != told[:, 1]
            if off.any():
                row, stamp = told[off.argmax()].tolist()
                text = f"the stamp of row {row} is {stored[row]}; the ticks that name it have {stamp}"
                self._findings.add(name, text)

    def _check_stream(self, where: str, stream: str, kind: str, table: Any) -> None:
        """Check the values of a stream, and what is stated of them."""
        column = table[stream].combine_chunks()
        valid = table["valid"].combine_chunks().field(stream).to_numpy()
        self._findings.check(bool(((valid >= 0) & (valid < STATES)).all()), where, f"valid.{stream}: not 0, 1 or 2")
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
        """Return the number of frames of a video."""
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


def _file_errors() -> tuple[type[Exception], ...]:
    return (need("pyarrow", "export").ArrowException, need("av", "export").FFmpegError)
