"""Read exported Delta Lake tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.file_limits import values_of
from robocache_ros.formats.columns import (
    ArrayRows,
    ExportedStream,
    FileRows,
    channels_last,
    export_columns,
    read_marks,
)
from robocache_ros.formats.delta.log import ARRAY, EPISODES, LAYOUT, TICKS, check_log, reached, storage_options
from robocache_ros.formats.images import VideoFrames
from robocache_ros.formats.parquet import read_parquet, row_group
from robocache_ros.formats.pieces import ArrayInfo
from robocache_ros.formats.read import (
    MALFORMED,
    MAX_EPISODES,
    MAX_STEPS,
    DatasetError,
    SourceEpisode,
    numbers,
    refusing,
)
from robocache_ros.storage.paths import AnyPath, as_path
from robocache_ros.untrusted_files import DatasetFile, dataset_file, file_below, path_below


class _EpisodeRow(NamedTuple):
    """What the table of episodes states of an episode."""

    number: int
    length: int
    task: str
    success: bool | None
    start_ns: int
    stop_ns: int


def _episode_rows(path: DatasetFile) -> list[_EpisodeRow]:
    table = read_parquet(path, ["episode", *_EpisodeRow._fields[1:]], distinct=True)
    rows = [_EpisodeRow(*row) for row in zip(*map(values_of, table.columns), strict=True)]
    if odd := [row for row in rows if not (isinstance(row.number, int) and isinstance(row.length, int))]:
        raise ValueError(f"episode {odd[0].number} of {odd[0].length} ticks")
    return rows


def blob(path: DatasetFile, row: int) -> bytes:
    """Return the bytes in a row of a file of images or arrays."""
    table, place = row_group(path, row, ("data",))
    data: bytes = table["data"][place].as_py()
    return data


@contextmanager
def _errors(folder: AnyPath) -> Iterator[None]:
    """Turn errors of deltalake and pyarrow into those of datasets."""
    try:
        with reached(str(folder)):
            yield
    except DatasetError:
        raise
    except (RoboCacheError, need("pyarrow", "datasets").ArrowException) as error:
        where, reason = printable(folder, 60), str(error)
        if isinstance(error, RoboCacheError):  # whose parts before and after the reason are those of this one
            reason = reason.removeprefix(f"{where}: ").rpartition("; ")[0]
        raise DatasetError(f"{where}: no Delta Lake dataset is read ({printable(reason, 80)}); check it") from None


REWARD = "next_reward"


class DeltaEpisodes:
    """The episodes of a dataset in the format delta, by their numbers.

    Args:
        path: the folder with `ticks` and `episodes`.
        version: of the table of episodes; None: the newest when the dataset is opened.
    """

    def __init__(self, path: str | AnyPath, *, version: int | None = None) -> None:
        folder = self.folder = as_path(path)
        self.name, where = folder.name, printable(folder)
        for name in (EPISODES, TICKS):
            check_log(folder, name)
        with _errors(folder):
            deltalake, options = need("deltalake", "fleet"), storage_options(str(folder))
            episodes = deltalake.DeltaTable(f"{folder}/{EPISODES}", version=version, storage_options=options)
            # After that of episodes: it has all ticks of these.
            ticks = deltalake.DeltaTable(f"{folder}/{TICKS}", storage_options=options)
            of_episodes, self._files = (
                need("pyarrow", "datasets").table(table.get_add_actions(flatten=True)).to_pylist()
                for table in (episodes, ticks)
            )
            for file in (*of_episodes, *self._files):
                path_below(folder, file["path"])
            fields = {field["name"]: field["metadata"] for field in json.loads(ticks.schema().to_json())["fields"]}
        with refusing(where, "not an export", "export it with --format delta"):
            paths = [file_below(folder, f"{EPISODES}/{file['path']}") for file in of_episodes]
            self._episodes = sorted(row for path in paths for row in _episode_rows(path))
            if len(self._episodes) > MAX_EPISODES:
                raise DatasetError(f"{where}: {len(self._episodes):,} episodes; at most {MAX_EPISODES:,} are read")
            layout = json.loads(fields["tick_ns"][LAYOUT])
            of_arrays = {name: json.loads(stated[ARRAY]) for name, stated in fields.items() if ARRAY in stated}
            self._arrays = {
                name: ArrayInfo(tuple(map(int, stated["shape"])), str(stated["dtype"]))
                for name, stated in of_arrays.items()
            }
        self.export = export_columns({"layout": layout}, where)

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The files by which a change of the dataset is noticed: their names are those of their contents."""
        return tuple(path_below(self.folder, f"{TICKS}/{file['path']}") for file in self._files)

    def __len__(self) -> int:
        return len(self._episodes)

    def read(self, index: int) -> SourceEpisode:
        """Return an episode. Images are not decoded, and arrays are read when they are asked for."""
        episode = self._episodes[index]
        where = f"{printable(self.folder)}: episode {episode.number}"
        if not 0 < episode.length <= MAX_STEPS:
            raise DatasetError(f"{where}: {episode.length:,} ticks; 1 to {MAX_STEPS:,} are read")
        table = self._ticks(episode, where)
        found: dict[str, Any] = {}
        errors = (*MALFORMED, need("pyarrow", "datasets").ArrowException)
        with refusing(where, advice="export it again", errors=errors):
            ticks = table["tick_ns"].to_numpy()
            valid, age_ns = (self._by_stream(table[name].combine_chunks()) for name in ("valid", "age_ns"))
            for name, about in self.export.streams.items():
                if about.kind == "vector" and about.role in ("observation", "action"):
                    found[name] = numbers(_vector(table[name].combine_chunks(), about), f"{where}: {name}")
                elif about.kind != "vector" and name in table.column_names:
                    column = table[name].combine_chunks()
                    found[name] = self._media(name, column, where)
            rewards = table[REWARD].combine_chunks()
        known = None if rewards.null_count else rewards.to_numpy()
        marks = read_marks(self.export, valid, age_ns, where)
        streams = self.export.episode_streams(ticks, marks, found, known, where)
        return SourceEpisode(streams, episode.task, self.name, where, episode.success)

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        episode: _EpisodeRow = self._episodes[index]
        if not all(isinstance(stamp, int) for stamp in (episode.start_ns, episode.stop_ns)):
            raise DatasetError(f"{printable(self.folder)}: episode {episode.number}: has no ticks; leave it out")
        return episode.start_ns, episode.stop_ns

    def _ticks(self, episode: _EpisodeRow, where: str) -> Any:
        """Return the rows of an episode as a pyarrow table, in the order of its ticks."""
        paths = [
            file["path"]
            for file in self._files
            for first, last in ((file.get("min.episode"), file.get("max.episode")),)
            if first is None or last is None or first <= episode.number <= last  # else it cannot be in the file
        ]
        equal = ("episode", episode.number)
        parts = [read_parquet(file_below(self.folder, f"{TICKS}/{path}"), equal=equal) for path in paths]
        if not parts:
            raise DatasetError(f"{where}: its ticks are not in the table; append the recording again")
        table = need("pyarrow", "datasets").concat_tables(parts).sort_by("tick").combine_chunks()
        if not np.array_equal(table["tick"], np.arange(episode.length)):
            raise DatasetError(f"{where}: {len(table):,} rows, not ticks 0 to {episode.length - 1:,}; export it again")
        return table

    def _by_stream(self, column: Any) -> NDArray[Any]:
        """(T, N) fields of a struct in the order of the streams, 0 where they are null."""
        return np.stack([column.field(name).fill_null(0).to_numpy() for name in self.export.names], axis=1)

    def _media(self, name: str, column: Any, where: str) -> Any:
        """Return the images or arrays of a stream, given the file and the row of each tick."""
        paths = column.field("path").unique().drop_null().to_pylist()
        rows = np.where(column.is_null(), -1, column.field("row").fill_null(-1)).astype(np.int64)
        if len(paths) > 1:
            raise ValueError(f"{name} is in {len(paths)} files")
        if not (rows >= 0).any():
            paths = []
        path = file_below(self.folder, paths[0]) if paths else dataset_file(self.folder)  # which is not read
        if path.name.endswith(".mp4"):
            first = int(rows[0])
            if not np.array_equal(rows, first + np.arange(len(rows))):
                raise ValueError(f"{name} has not a frame per tick")
            rate_hz = self.export.rate_hz
            return VideoFrames(self.folder, paths[0], first / rate_hz, rate_hz, len(rows))
        if name in self._arrays:
            read = partial(_array, path, rows, self._arrays[name], self.export.streams[name].kind)
            return ArrayRows(len(rows), read, f"{where}: {name}")
        return FileRows(len(rows), partial(_image, path, rows))


def _image(path: DatasetFile, rows: NDArray[np.int64], row: int) -> bytes:
    return blob(path, int(rows[row]))


def _array(path: DatasetFile, rows: NDArray[np.int64], info: ArrayInfo, kind: str, row: int) -> NDArray[Any]:
    if rows[row] < 0:
        return channels_last(np.zeros(info.shape, info.numpy_dtype), kind)
    return channels_last(info.array(blob(path, int(rows[row]))), kind)


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
