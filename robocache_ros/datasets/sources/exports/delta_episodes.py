"""Delta Lake tables that this project exported."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.episode_source import MAX_STEPS, DatasetError, SourceEpisode, numbers
from robocache_ros.datasets.sources.exports.array_rows import ArrayRows, array_of, channels_last
from robocache_ros.datasets.sources.exports.delta_tables import EpisodeRow, blob, read_tables, tick_rows
from robocache_ros.datasets.sources.exports.export_columns import ExportedStream, export_columns, read_marks
from robocache_ros.datasets.video.video_frames import VideoFrames
from robocache_ros.errors import printable
from robocache_ros.extras import need
from robocache_ros.remote.any_path import as_path
from robocache_ros.untrusted_files import DatasetFile, file_below, path_below

REWARD = "next_reward"


class DeltaEpisodes:
    """The episodes of a dataset in the format delta, by their numbers.

    Args:
        path: the folder with `ticks` and `episodes`.
        version: of the table of episodes; None: the newest when the dataset is opened.

    Errors:
        DatasetError: the tables cannot be read, or are not an export of this project.
    """

    def __init__(self, path: str | Path, *, version: int | None = None) -> None:
        self.folder = as_path(path)
        self.name = self.folder.name
        tables = read_tables(self.folder, version)
        self._columns = export_columns({"layout": tables.layout}, printable(self.folder))
        self._episodes, self._files, self._arrays = tables.episodes, tables.files, tables.arrays

    @property
    def files(self) -> tuple[Path, ...]:
        """The files by which a change of the dataset is noticed: their names are those of their contents."""
        return tuple(path_below(self.folder, f"ticks/{file.path}") for file in self._files)

    def __len__(self) -> int:
        return len(self._episodes)

    def read(self, index: int) -> SourceEpisode:
        """Return an episode. Images are not decoded, and arrays are read when they are asked for."""
        episode = self._episodes[index]
        where = f"{printable(self.folder)}: episode {episode.number}"
        if not 0 < episode.length <= MAX_STEPS:
            raise DatasetError(f"{where}: {episode.length:,} ticks; 1 to {MAX_STEPS:,} are read")
        table = tick_rows(self.folder, self._files, episode, where)
        found: dict[str, Any] = {}
        arrays: dict[str, Any] = {}
        try:
            ticks = table["tick_ns"].to_numpy()
            valid, age_ns = (self._by_stream(table[name].combine_chunks()) for name in ("valid", "age_ns"))
            for name, about in self._columns.streams.items():
                if about.kind == "vector" and about.role in ("observation", "action"):
                    found[name] = numbers(_vector(table[name].combine_chunks(), about), f"{where}: {name}")
                elif about.kind != "vector" and name in table.column_names:
                    column = table[name].combine_chunks()
                    (arrays if name in self._arrays else found)[name] = self._media(name, column, where)
            rewards = table[REWARD].combine_chunks()
        except (
            ArithmeticError,
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            need("pyarrow", "datasets").ArrowException,
        ) as error:
            if isinstance(error, DatasetError):
                raise
            raise DatasetError(f"{where}: malformed ({printable(error, 60)}); export it again") from None
        known = None if rewards.null_count else rewards.to_numpy()
        marks = read_marks(self._columns, valid, age_ns, where)
        streams = self._columns.episode_streams(ticks, marks, found, arrays, known, where)
        return SourceEpisode(streams, episode.task, self.name, where, episode.success)

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        episode: EpisodeRow = self._episodes[index]
        if not all(isinstance(stamp, int) for stamp in (episode.start_ns, episode.stop_ns)):
            raise DatasetError(f"{printable(self.folder)}: episode {episode.number}: has no ticks; leave it out")
        return episode.start_ns, episode.stop_ns

    def _by_stream(self, column: Any) -> NDArray[Any]:
        """(T, N) fields of a struct in the order of the streams, 0 where they are null."""
        return np.stack([column.field(name).fill_null(0).to_numpy() for name in self._columns.names], axis=1)

    def _media(self, name: str, column: Any, where: str) -> Any:
        """Return the images or arrays of a stream, given the file and the row of each tick."""
        paths = column.field("path").unique().drop_null().to_pylist()
        rows = np.where(column.is_null(), -1, column.field("row").fill_null(-1)).astype(np.int64)
        if len(paths) > 1:
            raise ValueError(f"{name} is in {len(paths)} files")
        if not (rows >= 0).any():
            paths = []
        path = file_below(self.folder, paths[0]) if paths else DatasetFile(self.folder)  # which is not read
        if path.name.endswith(".mp4"):
            first = int(rows[0])
            if not np.array_equal(rows, first + np.arange(len(rows))):
                raise ValueError(f"{name} has not a frame per tick")
            rate_hz = self._columns.rate_hz
            return VideoFrames(self.folder, paths[0], first / rate_hz, rate_hz, len(rows))
        if name in self._arrays:
            told = self._arrays[name]
            shape, kind = tuple(map(int, told["shape"])), self._columns.streams[name].kind
            read = partial(_array, path, rows, shape, str(told["dtype"]), kind)
            return ArrayRows(len(rows), read, f"{where}: {name}")
        return _ImageRows(path, rows)


class _ImageRows:
    """The PNG files of an episode, each read when it is asked for."""

    def __init__(self, path: DatasetFile, rows: NDArray[np.int64]) -> None:
        self._path, self._rows = path, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> bytes:
        try:
            return blob(self._path, int(self._rows[row]))
        except (OSError, ValueError, need("pyarrow", "datasets").ArrowException) as error:
            raise DatasetError(
                f"{printable(self._path)}: damaged ({printable(error, 60)}); get the file again"
            ) from None


def _array(
    path: DatasetFile, rows: NDArray[np.int64], shape: tuple[int, ...], dtype: str, kind: str, row: int
) -> NDArray[Any]:
    if rows[row] < 0:
        return channels_last(np.zeros(shape, "u1" if dtype == "bits" else dtype), kind)
    return channels_last(array_of(shape, dtype, blob(path, int(rows[row]))), kind)


def _vector(column: Any, about: ExportedStream) -> NDArray[np.float32]:
    """(T, D) or (T, n, D) values of a column, 0 where they are null, and after the samples of a window."""
    if len(about.shape) == 1:
        return _table(column)
    values = np.zeros((len(column), *about.shape), np.float32)
    counts = column.value_lengths().fill_null(0).to_numpy()
    if counts.max(initial=0) > about.shape[0]:
        raise ValueError(f"{counts.max()} samples of a window")
    values[np.arange(about.shape[0]) < counts[:, None]] = _table(column.flatten())
    return values


def _table(column: Any) -> NDArray[np.float32]:
    fields = column.flatten() if column.type.num_fields else [column]
    return np.stack([field.fill_null(0).to_numpy(zero_copy_only=False) for field in fields], axis=1)
