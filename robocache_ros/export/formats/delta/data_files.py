"""The parquet files of a table: in a folder for each range of episodes, and named by their contents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from robocache_ros.export.formats.delta.tick_columns import RANGE
from robocache_ros.export.formats.lerobot.parquet_tables import Table
from robocache_ros.export.validate.checksum_list import sha256

RANGE_EPISODES = 1000  # episodes of a partition
FILE_MB = 100  # from this size on, the next episode begins another file
DRAFT = "draft-{chunk_index}-{file_index}.parquet"


@dataclass(frozen=True)
class DataFile:
    """A file of a table: its path in the folder of the table, its partition, and the episodes in it."""

    path: str
    size: int
    first_of_range: int
    rows: int
    first: int
    last: int

    def stats(self) -> str:
        """Return the statistics of the Delta protocol, by which queries of some episodes skip other files."""
        told = {
            "numRecords": self.rows,
            "minValues": {"episode": self.first},
            "maxValues": {"episode": self.last},
            "nullCount": {"episode": 0},
        }
        return json.dumps(told, separators=(",", ":"))


def write_data_files(table: Path, episodes: Iterable[tuple[int, Iterable[Any]]]) -> list[DataFile]:
    """Write rows into the folder of a table. Files with equal rows have equal bytes and names.

    Args:
        table: the folder.
        episodes: the number of each episode, in rising order, and its rows as pyarrow tables of bounded size.
    """
    found: list[DataFile] = []
    for first_of_range, of_range in groupby(episodes, lambda episode: episode[0] // RANGE_EPISODES * RANGE_EPISODES):
        found += _write_range(table, first_of_range, of_range)
    return found


def _write_range(table: Path, first_of_range: int, episodes: Iterator[tuple[int, Iterable[Any]]]) -> list[DataFile]:
    folder = table / f"{RANGE}={first_of_range}"
    rows: dict[Path, dict[int, int]] = {}  # by file, the number of rows of each episode
    with closing(Table(folder, DRAFT, FILE_MB)) as files:
        for number, parts in episodes:
            count = 0
            for part in parts:
                files.append(part)
                count += len(part)
            chunk, file = files.end_episode()
            rows.setdefault(folder / DRAFT.format(chunk_index=chunk, file_index=file), {})[number] = count
    found = []
    for draft, of_file in rows.items():
        named = draft.rename(folder / f"part-{sha256(draft)[:32]}.parquet")
        size, path = named.stat().st_size, named.relative_to(table).as_posix()
        found.append(DataFile(path, size, first_of_range, sum(of_file.values()), min(of_file), max(of_file)))
    return found
