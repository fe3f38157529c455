"""How much a file of a dataset may decode to, and parquet tables within it.

Compression, dictionaries, repeated values and chunks that were never written let kilobytes claim to hold gigabytes. The
footer of a parquet file and the header of an array state what they hold, so that it is refused before it is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need

FREE_BYTES = 64 << 20  # that any file may decode to
RATIO = 64  # of decoded to stored bytes, beyond FREE_BYTES: constant columns compress so well, measured ones never do
IMAGE_RATIO = 1024  # of images, that may be black: what deflate reaches
FREE_ROWS = 1000  # of a table whose rows all differ; beyond them each takes a byte
MAX_TASK = 1 << 16  # characters of an instruction
CHUNK_BYTES = 256 << 20  # of an array, which are decoded as a whole
MAX_NESTING = 8  # of lists and structs in a column
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_LEVEL_BYTES = 4  # by which a value of a nested column is larger while it is read


def check_decoded(nbytes: int, stored: int, where: str, ratio: int = RATIO) -> None:
    """Refuse what decodes to more than its stored bytes can hold.

    Errors:
        RoboCacheError: `nbytes` are more than `FREE_BYTES`, and more than `ratio` times the `stored` ones.
    """
    if nbytes > max(FREE_BYTES, ratio * stored):
        raise RoboCacheError(f"{where}: {stored:,} stored bytes claim to hold {nbytes:,}; check the file")


def check_hdf5(stored: Any, where: str, rows: int | None = None) -> None:
    """Refuse a dataset of HDF5 that claims more than is stored, before it is read.

    Args:
        stored: the dataset.
        where: for the error.
        rows: that are read; None: all.

    Errors:
        RoboCacheError: see `check_decoded`; also chunks of more than `CHUNK_BYTES`.
    """
    of_row = stored.dtype.itemsize * math.prod(stored.shape[1:])
    nbytes = of_row * (rows if rows is not None and stored.ndim else math.prod(stored.shape[:1]))
    if nbytes > FREE_BYTES:
        held = min(stored.id.get_storage_size(), stored.file.id.get_filesize())
        check_decoded(nbytes, held, where, IMAGE_RATIO if stored.ndim == 4 else RATIO)
    if stored.chunks and math.prod(stored.chunks) * stored.dtype.itemsize > CHUNK_BYTES:
        raise RoboCacheError(f"{where}: chunks of {stored.chunks} are larger than {CHUNK_BYTES >> 20} MiB; rewrite it")


def read_table(
    path: Path,
    where: str,
    columns: Sequence[str] | None = None,
    *,
    rows: tuple[int, int] | None = None,
    equal: tuple[str, int] | None = None,
    distinct: bool = False,
) -> Any:
    """Return a table of a parquet file. Repeated texts and bytes are dictionaries, see `values_of`.

    Args:
        path: of the file.
        where: for errors.
        columns: None: all.
        rows: the first one that is returned and the one after the last; None: all.
        equal: a column of integers and its value in the rows that are returned.
        distinct: whether no two rows are equal, so that each takes a byte of the file.

    Errors:
        RoboCacheError: a column is missing, or the file claims more than it can hold.
        OSError, pyarrow.ArrowException: it cannot be read.
    """
    parquet = need("pyarrow.parquet", "datasets")
    told = parquet.read_metadata(path)
    size = path.stat().st_size
    if distinct and told.num_rows > max(FREE_ROWS, size):
        raise RoboCacheError(f"{where}: {told.num_rows:,} rows in {size:,} bytes; check the file")
    starts = np.cumsum([0, *(told.row_group(group).num_rows for group in range(told.num_row_groups))])
    groups = list(range(told.num_row_groups))
    if rows is not None:
        groups = [group for group in groups if starts[group] < rows[1] and starts[group + 1] > rows[0]]
    if equal is not None:
        groups = [group for group in groups if _may_have(told.row_group(group), *equal)]
    repeated = _check_table(told, columns, groups, size, where)
    with parquet.ParquetFile(path, metadata=told, read_dictionary=repeated) as file:
        names = _names(file, where)
        wanted = names if columns is None else list(columns)
        if lacking := [name for name in wanted if name not in names]:
            raise RoboCacheError(f"{where}: has no column {printable(lacking[0], 40)}; get the file again")
        table = file.read_row_groups(groups, columns).select(wanted)
    if rows is not None and groups:
        table = table.slice(rows[0] - int(starts[groups[0]]), rows[1] - rows[0])
    if equal is not None:
        table = table.filter(need("pyarrow", "datasets").array(table[equal[0]].to_numpy() == equal[1]))
    return table


@contextmanager
def open_table(path: Path, where: str) -> Iterator[Any]:
    """Open a `pyarrow.parquet.ParquetFile`, to read all of its row groups one by one; see `read_table`."""
    parquet = need("pyarrow.parquet", "datasets")
    told = parquet.read_metadata(path)
    repeated = _check_table(told, None, range(told.num_row_groups), path.stat().st_size, where)
    with parquet.ParquetFile(path, metadata=told, read_dictionary=repeated) as file:
        _names(file, where)
        yield file


def task_texts(column: Any, where: str) -> list[str]:
    """Return the instructions in a column of `read_table`.

    Errors:
        RoboCacheError: one is longer than `MAX_TASK`.
    """
    found = [str(value) for value in values_of(column)]
    if (longest := max(map(len, found), default=0)) > MAX_TASK:
        raise RoboCacheError(f"{where}: a task of {longest:,} characters; at most {MAX_TASK:,} are read")
    return found


def values_of(column: Any) -> list[Any]:
    """Return the values of a column of `read_table` as Python objects; equal texts of a dictionary are one object."""
    found: list[Any] = []
    for chunk in getattr(column, "chunks", [column]):
        if hasattr(chunk, "dictionary"):
            words = chunk.dictionary.to_pylist()
            found += [None if number is None else words[number] for number in chunk.indices.to_pylist()]
        elif hasattr(chunk, "value_lengths") and hasattr(chunk.flatten(), "dictionary"):
            inner = iter(values_of(chunk.flatten()))
            lengths = chunk.value_lengths().to_pylist()
            found += [None if length is None else [next(inner) for _ in range(length)] for length in lengths]
        else:
            found += chunk.to_pylist()
    return found


def _names(file: Any, where: str) -> list[str]:
    names: list[str] = file.schema_arrow.names
    if len(set(names)) < len(names):
        raise RoboCacheError(f"{where}: has two columns of one name; get the file again")
    return names


def _check_table(told: Any, columns: Sequence[str] | None, groups: Sequence[int], size: int, where: str) -> list[str]:
    """Check what columns of row groups decode to; return those of texts and bytes that are stored as dictionaries."""
    nbytes, repeated = 0, set()
    for number in range(told.num_columns):
        about, is_first = told.schema.column(number), True
        if max(about.max_definition_level, about.max_repetition_level) > MAX_NESTING:
            raise RoboCacheError(f"{where}: lists and structs are nested deeper than {MAX_NESTING}; check the file")
        for group in groups:
            part = told.row_group(group).column(number)
            name = part.path_in_schema
            if is_first and columns is not None and not any(f"{name}.".startswith(f"{one}.") for one in columns):
                break
            is_first, values = False, part.num_values
            if about.physical_type != "BYTE_ARRAY":
                width = _WIDTHS.get(about.physical_type, max(about.length, 1))
                held = values * width
            elif "DELTA_BYTE_ARRAY" in part.encodings:
                held = values * part.total_uncompressed_size  # each value may repeat the one before
            else:
                held = values * 4 + part.total_uncompressed_size
                if any("DICTIONARY" in encoding for encoding in part.encodings):
                    repeated.add(name)
            nested = max(about.max_definition_level, about.max_repetition_level) > 1
            nbytes += max(held, part.total_uncompressed_size) + (_LEVEL_BYTES * values if nested else 0)
    check_decoded(nbytes, size, where)
    return sorted(repeated)


def _may_have(group: Any, column: str, value: int) -> bool:
    """Whether a row group can have a value in a column, by the least and the greatest one in it."""
    parts = (group.column(number) for number in range(group.num_columns))
    part = next((part for part in parts if part.path_in_schema == column), None)
    told = part.statistics if part is not None else None
    return told is None or not told.has_min_max or bool(told.min <= value <= told.max)
