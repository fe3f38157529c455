"""The rows of a LeRobot dataset: columns against features, indices, time, and values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.statistics import Stats
from robocache_ros.export.validate.findings import Findings
from robocache_ros.export.validate.lerobot.column_files import ColumnFiles
from robocache_ros.export.validate.lerobot.info_file import STANDARD, Feature, Info
from robocache_ros.export.validate.lerobot.own_columns import OwnColumns
from robocache_ros.extras import need

TIMESTAMP_TOLERANCE_S = 1e-4  # LeRobot's


class EpisodeRows:
    """Checks the rows of a dataset, episode by episode.

    Args:
        findings: collects what is wrong.
        info: of the dataset.
        folder: for the values of all columns, from which their statistics are computed; NaN for missing values.
        tasks: the tasks, by their index.

    Attributes:
        rows: number of rows so far.
        starts: the first row of each episode so far, and `rows`.
        own: the columns of this package.
    """

    def __init__(self, findings: Findings, info: Info, folder: Path, tasks: Sequence[str]) -> None:
        self._findings, self._info, self._tasks = findings, info, tasks
        self.own = OwnColumns(findings, info)
        self._columns = ColumnFiles(folder)
        self.rows = 0
        self.starts = [0]
        self._usable: set[str] | None = None  # columns that every file has, with the shape of their feature

    def check(self, file: str, table: Any, episode: int, length: int, tasks: Any = None) -> None:
        """Check the rows of an episode.

        Args:
            file: name of the file, relative to the dataset.
            table: the pyarrow table of the rows of the episode.
            episode: its index.
            length: the number of rows that it must have.
            tasks: its tasks, as its metadata state them.
        """
        where = f"{file}, episode {episode}"
        self._findings.check(len(table) == length, where, f"{len(table)} rows; the episode has {length}")
        values: dict[str, NDArray[Any]] = {}
        for key, feature in self._info.features.items():
            if feature.dtype in ("video", "string", "image"):
                continue
            with self._findings.reading(where, ValueError):
                values[key] = column_values(table, key, feature)
        self._check_indices(where, values, episode, len(table))
        self._check_tasks(where, values, episode, tasks)
        for key, column in values.items():
            if column.dtype.kind == "f" and not np.isfinite(column).all():
                bad = ~np.isfinite(column.reshape(len(column), -1)).all(axis=1)
                text = f"{key}: NaN or infinite in {int(bad.sum())} rows, the first is row {bad.argmax()}"
                self._findings.add(where, text)
        missing = self.own.check(where, values, episode)
        self._remember({**values, **missing})
        self.rows += len(table)
        self.starts.append(self.rows)
        self._findings.counted["rows"] += len(table)

    def _remember(self, values: dict[str, NDArray[Any]]) -> None:
        """Keep the values for the statistics, of the columns that all episodes have."""
        if self._usable is None:
            self._usable = set(values)
        self._usable &= set(values)
        if self._usable and len(next(iter(values.values()))):
            self._columns.append({key: values[key] for key in values if key in self._usable})

    def statistics(self, first: int = 0) -> dict[str, Stats]:
        """Return the statistics of each column from row `first` on, for the columns that all episodes have."""
        usable = sorted(self._usable or ()) if self.rows else []
        return {key: self._columns.stats(key, first) for key in usable}

    def table(self, name: str) -> NDArray[Any] | None:
        """Return the (rows, K) values of a column, which are in a file; None if an episode lacks it."""
        return self._columns.table(name) if self.rows and name in (self._usable or ()) else None

    def close(self) -> None:
        """Close the files of the columns."""
        self._columns.close()

    def _check_indices(self, where: str, values: dict[str, NDArray[Any]], episode: int, rows: int) -> None:
        wanted: dict[str, NDArray[Any]] = {
            "episode_index": np.full(rows, episode),
            "frame_index": np.arange(rows),
            "index": np.arange(self.rows, self.rows + rows),
        }
        # GR00T's annotations are tasks too.
        for key in (*STANDARD, *(key for key in values if key.startswith("annotation."))):
            if key not in values:
                continue
            column = values[key].reshape(-1)
            if key in wanted:
                off = column != wanted[key]
                meant = f"{wanted[key][off.argmax()]}" if off.any() else ""
            elif key == "timestamp":
                off = ~(np.abs(column - np.arange(rows) / self._info.fps) <= TIMESTAMP_TOLERANCE_S)
                meant = f"{off.argmax() / self._info.fps:g} s" if off.any() else ""
            else:
                off = (column < 0) | (column >= len(self._tasks))
                meant = f"0 to {len(self._tasks) - 1}"
            if off.any():
                row = int(off.argmax())
                text = f"{key}: wrong in {int(off.sum())} rows; in row {row} it is {column[row]:g} and must be {meant}"
                self._findings.add(where, text)

    def _check_tasks(self, where: str, values: dict[str, NDArray[Any]], episode: int, tasks: Any) -> None:
        """Compare the tasks of the rows with those of the episode."""
        if "task_index" not in values or not isinstance(tasks, list) or not len(values["task_index"]):
            return
        indices = values["task_index"].reshape(-1)
        found = [self._tasks[index] for index in np.unique(indices).tolist() if 0 <= index < len(self._tasks)]
        text = f"task_index: its rows have the task {found[:1]}; the episode has {tasks[:1]}"
        self._findings.check(set(found) == set(map(str, tasks)), where, text)
        self.own.check_task(where, episode, tasks[0] if len(tasks) == 1 else tasks)
        for key, column in values.items():
            if self._info.own and key.startswith("annotation."):
                off = column.reshape(-1) != indices
                self._findings.check(not off.any(), where, f"{key}: is not task_index in row {off.argmax()}")


def column_values(table: Any, key: str, feature: Feature) -> NDArray[Any]:
    """Return the (T, ...) values of a column.

    Errors:
        RoboCacheError: it is missing, has null, or its values do not have the shape and the type of the feature.
    """
    if key not in table.column_names:
        raise RoboCacheError(f"column {printable(key, 60)} is missing")
    pyarrow = need("pyarrow", "export")
    column = table[key].combine_chunks()
    if isinstance(column, pyarrow.ChunkedArray):  # of a table without rows, and of pyarrow before 12
        column = pyarrow.concat_arrays(column.chunks) if column.num_chunks else pyarrow.array([], column.type)
    while pyarrow.types.is_list(column.type) or pyarrow.types.is_large_list(column.type) or _is_fixed(column.type):
        _refuse_null(key, column)
        column = column.flatten()
    _refuse_null(key, column)
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    try:
        values = values.reshape(len(table), *feature.shape)
    except ValueError:
        raise RoboCacheError(
            f"{key}: {len(values)} values in {len(table)} rows; its shape is {list(feature.shape)}"
        ) from None
    if values.dtype.name != feature.dtype:
        raise RoboCacheError(f"{key}: is {values.dtype.name}; the feature is {feature.dtype}")
    return values


def _is_fixed(kind: Any) -> bool:
    return bool(need("pyarrow", "export").types.is_fixed_size_list(kind))


def _refuse_null(key: str, column: Any) -> None:
    if column.null_count:
        raise RoboCacheError(f"{key}: {column.null_count} values are null")
