"""Parquet files: written with row groups of bounded size, and read within limits."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import printable
from robocache_ros.extras import need
from robocache_ros.file_limits import group_starts, read_table
from robocache_ros.formats.read import refusing
from robocache_ros.storage.paths import AnyPath
from robocache_ros.untrusted_files import DatasetError, DatasetFile

# Files of a table, as in LeRobot v3.0.
DATA_FILES = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
CHUNK_FILES = 1000  # files per folder
DATA_FILE_MB = 100  # from this size on, the next episode begins another file
# Size of a row group before compression. Readers load a row group as a whole, and fail for more than 2 GiB.
ROW_GROUP_BYTES = 32 << 20
OPEN_FILES, OPEN_GROUPS = 64, 4  # whose row groups are known, and which are in memory
# Row groups that are read together. It limits what is read and kept for a few rows at random, of our own files to this
# times ROW_GROUP_BYTES. With 1, reading rows in order would open the file again for each row group.
GROUPS_TOGETHER = 4
WAITING_TABLES = 64  # pending tables before they are joined: a table of one row takes far more memory than its values


def column(values: NDArray[Any], *, as_list: bool = False) -> Any:
    """Convert (N,) values, (N, D) rows or (N, n, D) arrays to a pyarrow array; rows with D = 1 become a plain column.

    LeRobot v3.0 expects a plain column for D = 1; with `as_list` it has lists of one value. Arrays are lists of lists,
    as `Array2D` of Hugging Face datasets reads.
    """
    pyarrow = need("pyarrow", "export")
    if values.ndim == 3:
        array = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
        for size in values.shape[:0:-1]:
            array = pyarrow.ListArray.from_arrays(np.arange(0, len(array) + 1, size, dtype=np.int32), array)
        return array
    if values.ndim == 1 or (values.shape[1] == 1 and not as_list):
        return pyarrow.array(values.reshape(-1))
    flat = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
    return pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])


def write_table(
    folder: Path, path: str, episodes: Iterable[Iterable[Any]], file_mb: float = math.inf, chunk_files: int = 1
) -> list[tuple[int, int]]:
    """Write a table to numbered files, in row groups of bounded size. A row group contains one episode.

    Args:
        folder: of the table.
        path: of a file in it, with {chunk_index} and {file_index}; without them the table has one file.
        episodes: the rows of each, pyarrow tables of at most ROW_GROUP_BYTES.
        file_mb: from this size on, the next episode begins a new file.
        chunk_files: number of files with one chunk index.

    Returns:
        The chunk and file index of each episode, which is in one file.
    """
    places: list[tuple[int, int]] = []
    writer: Any = None
    files, file = 0, folder
    try:
        for parts in episodes:
            for rows in _row_groups(parts):
                if writer is None:
                    chunk, index = divmod(files, chunk_files)
                    file = folder / path.format(chunk_index=chunk, file_index=index)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    writer = need("pyarrow.parquet", "export").ParquetWriter(file, rows.schema)
                    files += 1
                writer.write_table(rows)
            places.append(divmod(files - 1, chunk_files))
            if writer is not None and file.stat().st_size >= file_mb * 1_000_000:
                writer, full = None, writer
                full.close()
    finally:
        if writer is not None:
            writer.close()  # writes the footer, which is required to read the file
    return places


def _row_groups(parts: Iterable[Any]) -> Iterator[Any]:
    """Join tables up to ROW_GROUP_BYTES."""
    waiting: list[Any] = []
    nbytes = 0
    for rows in parts:
        if waiting and nbytes + rows.nbytes > ROW_GROUP_BYTES:
            yield _joined(waiting)
            waiting, nbytes = [], 0
        if len(waiting) == WAITING_TABLES:
            waiting = [_joined(waiting)]
        waiting.append(rows)
        nbytes += rows.nbytes
    if waiting:
        yield _joined(waiting)


def _joined(tables: list[Any]) -> Any:
    return need("pyarrow", "export").concat_tables(tables).combine_chunks()


def read_parquet(path: DatasetFile, columns: list[str] | None = None, **chosen: Any) -> Any:
    """Return a table of a parquet file; see `file_limits.read_table`, which has more arguments.

    Errors:
        DatasetError: the file is missing or damaged, or claims more than it can hold.
    """
    with parquet_errors(path):
        return read_table(path, printable(path), columns, **chosen)


def row_group(path: DatasetFile, row: int, columns: tuple[str, ...]) -> tuple[Any, int]:
    """Return the row group that has a row, and the place of the row in it. A few row groups stay in memory."""
    starts, group = _group_starts(path, os.getpid()), _group_of(path, row)
    return _group(path, (int(starts[group]), int(starts[group + 1])), columns, os.getpid()), row - int(starts[group])


def groups_around(path: DatasetFile, first: int, stop: int) -> tuple[int, int]:
    """Return the first row, and the one after the last, of the row groups that are read together for some rows.

    They are a few more than those of the rows: who reads on does not open the file for each row group, and who reads at
    random does not read all of it.
    """
    starts = _group_starts(path, os.getpid())
    begin, last = _group_of(path, first), _group_of(path, stop - 1)
    end = min((last // GROUPS_TOGETHER + 1) * GROUPS_TOGETHER, len(starts) - 1)
    return int(starts[begin // GROUPS_TOGETHER * GROUPS_TOGETHER]), int(starts[end])


def _group_of(path: DatasetFile, row: int) -> int:
    starts = _group_starts(path, os.getpid())
    if not 0 <= row < starts[-1]:
        raise DatasetError(f"{printable(path)}: no row {row}; get the file again")
    return int(np.searchsorted(starts, row, "right")) - 1


@lru_cache(maxsize=OPEN_FILES)
def _group_starts(path: DatasetFile, process: int) -> NDArray[np.int64]:
    with parquet_errors(path):
        return group_starts(path, printable(path))


@lru_cache(maxsize=OPEN_GROUPS)
def _group(path: DatasetFile, rows: tuple[int, int], columns: tuple[str, ...], process: int) -> Any:
    return read_parquet(path, list(columns), rows=rows)


def column_names(path: DatasetFile) -> list[str]:
    """Return the names of the columns of a parquet file."""
    with parquet_errors(path):
        names: list[str] = need("pyarrow.parquet", "datasets").read_schema(path).names
    return names


def column_array(column: Any, where: str) -> NDArray[Any]:
    """Return (T,) or (T, ...) numbers of a column of numbers, or of lists of one length.

    Errors:
        DatasetError: it has other values, values are missing, or lists differ in length.
    """
    pyarrow, shape = need("pyarrow", "datasets"), [len(column)]
    column = column.combine_chunks()
    if isinstance(column, pyarrow.ChunkedArray):  # of a table without rows, and of pyarrow before 12
        column = pyarrow.concat_arrays(column.chunks) if column.num_chunks else pyarrow.array([], column.type)
    while hasattr(column, "flatten") and hasattr(column.type, "value_type"):
        count, inner = len(column), column.flatten()
        if column.null_count or (count and len(inner) % count):
            raise DatasetError(f"{where}: its rows are not of one length; get the file again")
        shape.append(len(inner) // count if count else 0)
        column = inner
    if hasattr(column, "dictionary"):
        raise DatasetError(f"{where}: texts, not numbers; get the file again")
    if column.null_count:
        raise DatasetError(
            f"{where}: {column.null_count:,} values are missing; repair the file or leave the episode out"
        )
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False).reshape(shape)
    return values


@contextmanager
def parquet_errors(path: AnyPath) -> Iterator[None]:
    """Turn the errors of reading a parquet file into those of datasets."""
    with refusing(printable(path), "damaged", errors=(OSError, need("pyarrow", "datasets").ArrowException)):
        yield
