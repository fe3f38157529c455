"""The parquet files of a table: in a folder for each range of episodes, and named by their contents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from robocache_ros.export.formats.delta.tick_columns import RANGE
from robocache_ros.export.formats.lerobot.parquet_tables import Table
from robocache_ros.export.validate.checksum_list import sha256
from robocache_ros.extras import need

RANGE_EPISODES = 1000  # episodes of a partition
FILE_MB = 100  # from this size on, the next episode begins another file
DRAFT = "draft-{chunk_index}-{file_index}.parquet"


@dataclass(frozen=True)
class DataFile:
    """A file of a table.

    Attributes:
        path: in the folder of the table.
        size: in bytes.
        first_of_range: its partition.
        stats: statistics of its columns, as JSON of the Delta protocol.
    """

    path: str
    size: int
    first_of_range: int
    stats: str


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
    drafts: dict[Path, None] = {}
    with closing(Table(folder, DRAFT, FILE_MB)) as files:
        for _, parts in episodes:
            for part in parts:
                files.append(part)
            chunk, file = files.end_episode()
            drafts[folder / DRAFT.format(chunk_index=chunk, file_index=file)] = None
    found = []
    for draft in drafts:
        named = draft.rename(folder / f"part-{sha256(draft)[:32]}.parquet")
        path = named.relative_to(table).as_posix()
        found.append(DataFile(path, named.stat().st_size, first_of_range, _statistics(named)))
    return found


def indexed_columns(schema: Any) -> int:
    """Return the number of columns of which the log has statistics: those before the first struct or list.

    deltalake (1.6) takes a column with statistics in which the minimum is missing for one that matches no filter, and
    Polars (2.1) does not read those of some fields of a struct only. So the columns with statistics are stated, and
    each has all of them.
    """
    nested = [index for index, field in enumerate(schema) if field.type.num_fields]
    return nested[0] if nested else len(schema)


def _statistics(path: Path) -> str:
    """Return the statistics of a parquet file, by which queries skip files, from its footer."""
    told = need("pyarrow.parquet", "export").read_metadata(path)
    found: dict[str, Any] = {"numRecords": told.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for index in range(indexed_columns(told.schema.to_arrow_schema())):
        stats = [told.row_group(group).column(index).statistics for group in range(told.num_row_groups)]
        name = told.schema.column(index).name
        found["nullCount"][name] = sum(one.null_count for one in stats)
        if known := [one for one in stats if one.has_min_max]:  # all values may be null
            found["minValues"][name] = _plain(min(one.min for one in known))
            found["maxValues"][name] = _plain(max(one.max for one in known))
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return a value for JSON; a time in UTC, to the millisecond, as the protocol has it."""
    return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03d}Z" if isinstance(value, datetime) else value
