"""The rows of ticks: numbers, times, values, and the files that they name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.export.validate.array_values import check_finite, check_ticks, image_size
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
    """

    def __init__(
        self, findings: Findings, rate_hz: int, kinds: Mapping[str, str], windows: set[str], columns: set[str]
    ) -> None:
        self._findings, self._rate_hz, self._kinds = findings, rate_hz, kinds
        self._windows, self._columns = windows, columns
        self.spans: dict[int, tuple[int, int, int]] = {}
        self._last: dict[str, int] = {}  # by file that rows name, the greatest row in it

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

    def check_files(self) -> None:
        """Check the files that rows name."""
        for name, last in sorted(self._last.items()):
            with self._findings.reading(name, ValueError, *_file_errors()):
                path = file_in(self._findings.dataset, name)
                video = path.suffix == ".mp4"
                count = self._frames(name, path) if video else self._rows(name, path)
                text = f"{count} {'frames' if video else 'rows'}; a tick names number {last}"
                self._findings.check(last < count, name, text)
        if self._last and not self._findings.decode:
            self._findings.skip("pictures: frames and files are counted, not decoded; --decode decodes them")

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
