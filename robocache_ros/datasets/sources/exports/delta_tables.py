"""The tables of a Delta Lake dataset that this project exported: what their logs state, and rows of ticks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.episode_source import MAX_EPISODES, DatasetError
from robocache_ros.datasets.sources.lerobot_layout import read_parquet
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.formats.delta.dataset_place import DatasetPlace
from robocache_ros.export.formats.delta.new_episodes import EPISODES
from robocache_ros.export.formats.delta.tick_columns import ARRAY, LAYOUT
from robocache_ros.export.formats.delta.transaction_log import check_log, reached
from robocache_ros.extras import need
from robocache_ros.file_limits import values_of
from robocache_ros.untrusted_files import DatasetFile, file_below, path_below

OPEN_FILES, OPEN_GROUPS = 64, 4


class EpisodeRow(NamedTuple):
    """What the table of episodes states of an episode."""

    number: int
    length: int
    task: str
    success: bool | None
    start_ns: int
    stop_ns: int


@dataclass(frozen=True)
class TickFile:
    """A file of the table of ticks, and the first and the last episode in it; None: the log does not state them."""

    path: str
    first: int | None
    last: int | None

    def may_have(self, episode: int) -> bool:
        """Whether an episode can be in the file."""
        return self.first is None or self.last is None or self.first <= episode <= self.last


@dataclass(frozen=True)
class DeltaTables:
    """What the logs of both tables state.

    Attributes:
        episodes: by their numbers.
        files: of the table of ticks.
        layout: of the rows.
        arrays: shape and dtype of the streams of voxels and depth images.
    """

    episodes: list[EpisodeRow]
    files: list[TickFile]
    layout: dict[str, Any]
    arrays: dict[str, dict[str, Any]]


def read_tables(folder: Path, version: int | None) -> DeltaTables:
    """Read the logs, and the table of episodes.

    Args:
        folder: of the dataset.
        version: of the table of episodes; None: the newest.

    Errors:
        DatasetError: there are no such tables, or they are not those of this package.
    """
    where = printable(folder)
    for name in ("episodes", "ticks"):
        check_log(folder, name)
    with _errors(folder):
        deltalake, place = need("deltalake", "fleet"), DatasetPlace(str(folder))
        episodes = deltalake.DeltaTable(place.uri("episodes"), version=version, storage_options=place.storage)
        # After that of episodes: it has all ticks of these.
        ticks = deltalake.DeltaTable(place.uri("ticks"), storage_options=place.storage)
        of_episodes, actions = (
            need("pyarrow", "datasets").table(table.get_add_actions(flatten=True)).to_pylist()
            for table in (episodes, ticks)
        )
        for file in (*of_episodes, *actions):
            path_below(folder, file["path"])
        fields = {field["name"]: field["metadata"] for field in json.loads(ticks.schema().to_json())["fields"]}
    try:
        paths = [file_below(folder, f"{EPISODES}/{file['path']}") for file in of_episodes]
        found = [row for path in paths for row in _episode_rows(path)]
        if len(found) > MAX_EPISODES:
            raise DatasetError(f"{where}: {len(found):,} episodes; at most {MAX_EPISODES:,} are read")
        files = [TickFile(file["path"], *(file.get(f"{each}.episode") for each in ("min", "max"))) for file in actions]
        layout = json.loads(fields["tick_ns"][LAYOUT])
        arrays = {name: json.loads(told[ARRAY]) for name, told in fields.items() if ARRAY in told}
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"{where}: not an export ({printable(error, 60)}); export it with --format delta") from None
    return DeltaTables(sorted(found), files, layout, arrays)


def _episode_rows(path: DatasetFile) -> list[EpisodeRow]:
    table = read_parquet(path, ["episode", *EpisodeRow._fields[1:]], distinct=True)
    rows = [EpisodeRow(*row) for row in zip(*map(values_of, table.columns), strict=True)]
    if odd := [row for row in rows if not (isinstance(row.number, int) and isinstance(row.length, int))]:
        raise ValueError(f"episode {odd[0].number} of {odd[0].length} ticks")
    return rows


def tick_rows(folder: Path, files: list[TickFile], episode: EpisodeRow, where: str) -> Any:
    """Return the rows of an episode as a pyarrow table, in the order of its ticks.

    Errors:
        DatasetError: a file is missing or damaged, or rows are missing.
    """
    arrow = need("pyarrow", "datasets")
    paths = [file.path for file in files if file.may_have(episode.number)]
    parts = [read_parquet(file_below(folder, f"ticks/{path}"), equal=("episode", episode.number)) for path in paths]
    if not parts:
        raise DatasetError(f"{where}: its ticks are not in the table; append the recording again")
    table = arrow.concat_tables(parts).sort_by("tick").combine_chunks()
    if not np.array_equal(table["tick"], np.arange(episode.length)):
        raise DatasetError(f"{where}: {len(table):,} rows, not ticks 0 to {episode.length - 1:,}; export it again")
    return table


def blob(path: DatasetFile, row: int) -> bytes:
    """Return the bytes in a row of a file of images or arrays.

    Errors:
        ValueError: there is no such row. Others are those of pyarrow.
    """
    starts = _group_starts(path, os.getpid())
    if not 0 <= row < starts[-1]:
        raise ValueError(f"no row {row}")
    group = int(np.searchsorted(starts, row, "right")) - 1
    data: bytes = _group(path, group, os.getpid())["data"][row - int(starts[group])].as_py()
    return data


@lru_cache(maxsize=OPEN_FILES)
def _group_starts(path: DatasetFile, process: int) -> NDArray[np.int64]:
    """Return the first row of each row group, and the number of rows."""
    told = need("pyarrow.parquet", "datasets").read_metadata(path)
    return np.cumsum([0, *(told.row_group(group).num_rows for group in range(told.num_row_groups))])


@lru_cache(maxsize=OPEN_GROUPS)
def _group(path: DatasetFile, group: int, process: int) -> Any:
    starts = _group_starts(path, process)
    return read_parquet(path, ["data"], rows=(int(starts[group]), int(starts[group + 1])))


@contextmanager
def _errors(folder: Path) -> Iterator[None]:
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
