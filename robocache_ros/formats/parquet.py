"""Parquet files: written with row groups of bounded size, and read within limits."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
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


class Table:
    """A table in numbered files, written in row groups of bounded size. A row group contains one episode.

    `path` has {chunk_index} and {file_index}; without them the table has one file. From `file_mb` on, the next episode
    begins a new file.
    """

    def __init__(self, folder: Path, path: str, file_mb: float = math.inf, chunk_files: int = 1) -> None:
        self._folder = folder
        self._path = path
        self._file_bytes = file_mb * 1_000_000
        self._chunk_files = chunk_files
        self._files = 0
        self._writer: Any = None
        self._file = folder
        self._waiting: list[Any] = []  # tables of the next row group
        self._waiting_bytes = 0

    def append(self, rows: Any) -> None:
        """Add a pyarrow table of at most ROW_GROUP_BYTES. Pending rows are written before they exceed this size."""
        if self._waiting_bytes + rows.nbytes > ROW_GROUP_BYTES:
            self._write_waiting()
        if len(self._waiting) == WAITING_TABLES:
            self._waiting = [_joined(self._waiting)]
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes

    def end_episode(self) -> tuple[int, int]:
        """Write the pending rows; return the chunk and file index of the episode, which is in one file."""
        self._write_waiting()
        place = divmod(self._files - 1, self._chunk_files)
        if self._writer is not None and self._file.stat().st_size >= self._file_bytes:
            self.close()
        return place

    def close(self) -> None:
        """Write the footer of the file, which is required to read it."""
        self._waiting, self._waiting_bytes = [], 0
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _write_waiting(self) -> None:
        if self._waiting:
            rows = _joined(self._waiting)
            self._waiting, self._waiting_bytes = [], 0
            self._write(rows)

    def _write(self, rows: Any) -> None:
        if self._writer is None:
            chunk, file = divmod(self._files, self._chunk_files)
            self._file = self._folder / self._path.format(chunk_index=chunk, file_index=file)
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._writer = need("pyarrow.parquet", "export").ParquetWriter(self._file, rows.schema)
            self._files += 1
        self._writer.write_table(rows)


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
