"""Zarr format 2 folders: JSON metadata and one file per chunk (https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html).

Written without the zarr library, whose version 3 and the version 2 that Diffusion Policy needs exclude each other.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.extras import need

CHUNK_BYTES = 2_000_000  # of arrays of small rows, as ReplayBuffer chooses them
ZSTD_LEVEL = 1


def write_group(folder: Path, attributes: dict[str, Any] | None = None) -> None:
    """Create a group, with attributes of JSON values."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / ".zgroup", {"zarr_format": 2})
    if attributes:
        _write_json(folder / ".zattrs", attributes)


class ZarrArray:
    """Writes an array row by row. A chunk is a number of whole rows, compressed with zstd.

    Args:
        folder: of the array.
        rows: length of the array.
        shape: of a row.
        dtype: of the values; stored in little endian.
        chunk_rows: rows per chunk; None: as many as `CHUNK_BYTES` allow.
        first_row: the first row that is written, at the beginning of a chunk. The metadata are written with row 0.
    """

    def __init__(
        self,
        folder: Path,
        rows: int,
        shape: tuple[int, ...],
        dtype: str,
        *,
        chunk_rows: int | None = None,
        first_row: int = 0,
    ) -> None:
        self._folder, self._dtype = folder, np.dtype(dtype).newbyteorder("<")
        row_bytes = max(1, self._dtype.itemsize * math.prod(shape))
        self._chunk_rows = chunk_rows or max(1, min(rows, CHUNK_BYTES // row_bytes))
        self._buffer: NDArray[Any] = np.zeros((self._chunk_rows, *shape), self._dtype)
        self._row = first_row
        folder.mkdir(parents=True, exist_ok=True)
        if first_row:
            return
        metadata = {
            "chunks": [self._chunk_rows, *shape],
            "compressor": {"id": "zstd", "level": ZSTD_LEVEL},
            "dtype": self._dtype.str,
            "fill_value": 0,
            "filters": None,
            "order": "C",
            "shape": [rows, *shape],
            "zarr_format": 2,
        }
        _write_json(folder / ".zarray", metadata)

    def append(self, values: NDArray[Any]) -> None:
        """Write the next rows."""
        while len(values):
            place = self._row % self._chunk_rows
            fits = values[: self._chunk_rows - place]
            self._buffer[place : place + len(fits)] = fits
            self._row += len(fits)
            if self._row % self._chunk_rows == 0:
                self._flush(self._row - 1)
            values = values[len(fits) :]

    def repeat(self, value: NDArray[Any] | None, count: int) -> None:
        """Write the next `count` rows, which are equal, into an array of one row per chunk. None: zeros.

        Chunks that are equal share the space of one file, where the file system has hard links.
        """
        first = self._path(self._row)
        if value is not None:
            self._write(first, np.ascontiguousarray(value, self._dtype))
            for row in range(self._row + 1, self._row + count):
                _link(first, self._path(row))
        self._row += count

    def __enter__(self) -> ZarrArray:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._row % self._chunk_rows:
            self._buffer[self._row % self._chunk_rows :] = 0
            self._flush(self._row)

    def _flush(self, row: int) -> None:
        """Write the chunk that contains a row."""
        self._write(self._path(row), self._buffer)

    def _write(self, path: Path, chunk: NDArray[Any]) -> None:
        codec = need("pyarrow", "export").Codec("zstd", compression_level=ZSTD_LEVEL)
        with path.open("wb") as file:
            file.write(codec.compress(chunk))

    def _path(self, row: int) -> Path:
        return self._folder / ".".join(map(str, (row // self._chunk_rows, *[0] * (self._buffer.ndim - 1))))


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # no hard links on this file system, or too many of one file
        shutil.copyfile(source, target)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=4, sort_keys=True), encoding="utf-8")
