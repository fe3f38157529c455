"""How much a file of a dataset may decode to, and parquet tables within it.

Compression, dictionaries, repeated values and chunks that were never written let kilobytes claim to hold gigabytes. The
footer of a parquet file and the header of an array state what they hold, so that it is refused before it is read.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.storage.paths import AnyPath

FREE_BYTES = 64 << 20  # that any file may decode to
RATIO = 64  # of decoded to stored bytes, beyond FREE_BYTES: constant columns compress so well, measured ones never do
IMAGE_RATIO = 1024  # of images, that may be black: what deflate reaches
FREE_ROWS = 1000  # of a table whose rows all differ; beyond them each takes a byte
MAX_TASK = 1 << 16  # characters of an instruction
CHUNK_BYTES = 256 << 20  # of an array, which are decoded as a whole
MAX_NESTING = 8  # of lists and structs in a column
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
KEPT_FOOTERS = 64
_DICTIONARIES, _DELTA_BYTE_ARRAY = {2, 8}, 7  # encodings of parquet
_INDEX_BYTES = 4  # of a value in a dictionary
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
    path: AnyPath,
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
    parquet, footer = need("pyarrow.parquet", "datasets"), _footer_of(path, where)
    starts = group_starts(path, where)
    if distinct and starts[-1] > max(FREE_ROWS, footer.size):
        raise RoboCacheError(f"{where}: {starts[-1]:,} rows in {footer.size:,} bytes; check the file")
    keep = None
    if equal is not None:
        keep = read_table(path, where, [equal[0]])[equal[0]].to_numpy() == equal[1]
        rows = (int(keep.argmax()), len(keep) - int(keep[::-1].argmax())) if keep.any() else (0, 0)
        keep = keep[slice(*rows)]
    groups = list(range(len(footer.rows)))
    if rows is not None:
        groups = [group for group in groups if starts[group] < rows[1] and starts[group + 1] > rows[0]]
    repeated = _check_table(footer, columns, groups, where)
    with parquet.ParquetFile(path, metadata=footer.parsed, read_dictionary=repeated) as file:
        names = _names(file, where)
        wanted = names if columns is None else list(columns)
        if lacking := [name for name in wanted if name not in names]:
            raise RoboCacheError(f"{where}: has no column {printable(lacking[0], 40)}; get the file again")
        # A dictionary is of a row group, and pyarrow joins those in lists and structs only as parts of a table.
        parts = [[group] for group in groups] if repeated and groups else [groups]
        tables = [file.read_row_groups(part, columns).select(wanted) for part in parts]
        table = need("pyarrow", "datasets").concat_tables(tables)
    if rows is not None and groups:
        table = table.slice(rows[0] - int(starts[groups[0]]), rows[1] - rows[0])
    return table if keep is None or keep.all() else table.filter(need("pyarrow", "datasets").array(keep))


def group_starts(path: AnyPath, where: str) -> NDArray[np.int64]:
    """Return the first row of each of the G row groups of a parquet file, and the number of rows, (G + 1,)."""
    return np.cumsum([0, *_footer_of(path, where).rows])


@contextmanager
def open_table(path: AnyPath, where: str) -> Iterator[Any]:
    """Open a `pyarrow.parquet.ParquetFile`, to read all of its row groups one by one; see `read_table`."""
    footer = _footer_of(path, where)
    repeated = _check_table(footer, None, range(len(footer.rows)), where)
    parquet = need("pyarrow.parquet", "datasets")
    with parquet.ParquetFile(path, metadata=footer.parsed, read_dictionary=repeated) as file:
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


@dataclass(frozen=True)
class _Footer:
    """What the footer of a parquet file states of its G row groups and of the C columns of its leaves."""

    size: int  # of the file
    parsed: Any  # by pyarrow, which takes 5 ms for 120 row groups
    rows: tuple[int, ...]  # (G,)
    names: tuple[str, ...]  # (C,) paths
    widths: NDArray[np.float64]  # (C,) bytes of a value; 0 for texts and bytes
    depths: tuple[int, ...]  # (C,) of lists and structs
    dictionaries: NDArray[np.bool_]  # (C,) whether values are stored once
    prefixes: NDArray[np.bool_]  # (C,) whether a value may repeat the one before
    values: NDArray[np.float64]  # (G, C)
    nbytes: NDArray[np.float64]  # (G, C) of the pages before compression


def _footer_of(path: AnyPath, where: str) -> _Footer:
    status = path.stat()
    try:
        return _footer(path, status.st_size, status.st_mtime_ns)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError, struct.error) as error:
        raise RoboCacheError(f"{where}: damaged (its footer: {printable(error, 40)}); get the file again") from None


@lru_cache(maxsize=KEPT_FOOTERS)
def _footer(path: AnyPath, size: int, mtime_ns: int) -> _Footer:
    parsed = need("pyarrow.parquet", "datasets").read_metadata(path)  # refuses a file that is not of parquet
    schema = parsed.schema
    with Path(os.fspath(path)).open("rb") as file:
        file.seek(-8, os.SEEK_END)
        (length,) = struct.unpack("<I4x", file.read())
        file.seek(-8 - length, os.SEEK_END)
        groups = _thrift(file.read(length)).get(4, [])
    # pyarrow states the same of each column, and ends the process where statistics in it are damaged.
    leaves = [schema.column(number) for number in range(len(schema))]
    parts = [[chunk[3] for chunk in group[1]] for group in groups]
    encodings = [{code for part in column for code in part[2]} for column in zip(*parts, strict=True)]
    encodings = encodings or [set() for _ in leaves]
    paths = [[b".".join(part[3]).decode() for part in group] for group in parts] or [[leaf.path for leaf in leaves]]
    if any(names != [leaf.path for leaf in leaves] for names in paths):
        raise LookupError("its columns differ between row groups")
    numbers = np.array([[(part[5], part[6]) for part in group] for group in parts], float).reshape(-1, len(leaves), 2)
    if numbers.min(initial=0) < 0:
        raise LookupError("negative sizes")
    return _Footer(
        size,
        parsed,
        tuple(group[3] for group in groups),
        tuple(paths[0]),
        np.array([_WIDTHS.get(leaf.physical_type, leaf.length) for leaf in leaves], float),
        tuple(max(leaf.max_definition_level, leaf.max_repetition_level) for leaf in leaves),
        np.array([bool(codes & _DICTIONARIES) for codes in encodings]),
        np.array([_DELTA_BYTE_ARRAY in codes for codes in encodings]),
        numbers[..., 0],
        numbers[..., 1],
    )


def _check_table(footer: _Footer, columns: Sequence[str] | None, groups: Sequence[int], where: str) -> list[str]:
    """Check what columns of row groups decode to; return those of texts and bytes that are stored as dictionaries."""
    chosen = [
        number
        for number, name in enumerate(footer.names)
        if columns is None or any(f"{name}.".startswith(f"{one}.") for one in columns)
    ]
    total, repeated = 0.0, []
    for number in chosen:
        if footer.depths[number] > MAX_NESTING:
            raise RoboCacheError(f"{where}: lists and structs are nested deeper than {MAX_NESTING}; check the file")
        values, nbytes = (each[list(groups), number] for each in (footer.values, footer.nbytes))
        if footer.widths[number]:
            held = np.maximum(values * footer.widths[number], nbytes)
        elif footer.prefixes[number]:
            held = values * nbytes
        else:
            held = values * _INDEX_BYTES + nbytes
            if footer.dictionaries[number]:
                repeated.append(footer.names[number])
        total += float(held.sum()) + (_LEVEL_BYTES * float(values.sum()) if footer.depths[number] > 1 else 0)
    check_decoded(int(total), footer.size, where)
    return repeated


def _thrift(data: bytes) -> dict[int, Any]:
    """Return the struct in the compact protocol of Thrift, by the numbers of its fields; of doubles None.

    Errors:
        IndexError, LookupError: it is damaged.
    """
    at = 0

    def unsigned() -> int:
        nonlocal at
        found = shift = 0
        while True:
            byte = data[at]
            at, found, shift = at + 1, found | (byte & 127) << shift, shift + 7
            if byte < 128:
                return found

    def value(kind: int) -> Any:
        nonlocal at
        if kind in (4, 5, 6):
            number = unsigned()
            return number >> 1 ^ -(number & 1)
        if kind == 8:
            length = unsigned()
            at += length
            return data[at - length : at]
        if kind in (9, 10):
            at += 1
            count, of = data[at - 1] >> 4, data[at - 1] & 15
            count = unsigned() if count == 15 else count
            if count > len(data):
                raise LookupError(f"a list of {count:,}")
            return [value(3 if of in (1, 2) else of) for _ in range(count)]
        if kind == 12:
            return fields()
        if kind not in (3, 7):
            raise LookupError(f"type {kind}")
        at += 1 if kind == 3 else 8
        return data[at - 1] if kind == 3 else None

    def fields() -> dict[int, Any]:
        nonlocal at
        found: dict[int, Any] = {}
        number = 0
        while head := data[at]:
            at += 1
            number = number + (head >> 4) if head >> 4 else value(4)
            found[number] = head & 15 == 1 if head & 15 in (1, 2) else value(head & 15)
        at += 1
        return found

    return fields()


def _names(file: Any, where: str) -> list[str]:
    names: list[str] = file.schema_arrow.names
    if len(set(names)) < len(names):
        raise RoboCacheError(f"{where}: has two columns of one name; get the file again")
    return names
