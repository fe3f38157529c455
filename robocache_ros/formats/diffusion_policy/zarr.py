"""Arrays of a zarr group (version 2): written in chunks, and read by rows within limits."""

from __future__ import annotations

import json
import math
import os
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.storage.codecs import decompress
from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need
from robocache_ros.file_limits import IMAGE_RATIO, RATIO, check_decoded
from robocache_ros.formats.diffusion_policy.schema import MAX_CHUNK_BYTES, MAX_CHUNKS
from robocache_ros.formats.read import DatasetError, refusing
from robocache_ros.storage.paths import AnyPath
from robocache_ros.untrusted_files import file_below, path_below, read_bytes

# Zarr format 2 folders: JSON metadata and one file per chunk
# (https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html).
#
# Written without the zarr library, whose version 3 and the version 2 that Diffusion Policy needs exclude each other.


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


_ZLIB = ("zlib", "gzip")


@dataclass(eq=False)
class ZarrRows:
    """An array that is stored in chunks; `read` and `row` need one that is chunked along its first axis only.

    Attributes:
        root: of the dataset.
        name: below the root.
        where: for errors.
        codec: of chunks; those that are not in `CODECS` are not read.
    """

    root: AnyPath
    name: str
    where: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    codec: str
    order: str
    separator: str

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of chunks along each axis."""
        return tuple(-(-side // chunk) for side, chunk in zip(self.shape, self.chunks, strict=True))

    @property
    def chunk_bytes(self) -> int:
        """Size of a chunk."""
        return math.prod(self.chunks) * int(self.dtype.itemsize)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows [start, stop).

        Errors:
            DatasetError: a chunk is missing or damaged. Zarr takes zeros for a missing one; exports leave out none.
        """
        found = np.zeros((stop - start, *self.shape[1:]), self.dtype)
        nbytes = stored = 0
        for number in range(start // self.chunks[0], -(-stop // self.chunks[0])):
            first = number * self.chunks[0]
            low, high = max(first, start), min(first + self.chunks[0], stop)
            chunk, size = self.chunk(self.file_of(number))
            nbytes, stored = nbytes + chunk.nbytes, stored + size
            self._check(nbytes, stored, self.where)
            found[low - start : high - start] = chunk[low - first : high - first]
        return found

    def row(self, row: int, *, absent: bool) -> NDArray[Any]:
        """Return a row; zeros if its stream has no value there and the export left out its chunk.

        Errors:
            DatasetError: its chunk is missing or damaged.
        """
        if absent and self.chunks[0] == 1 and not path_below(self.root, f"{self.name}/{self.file_of(row)}").exists():
            return np.zeros(self.shape[1:], self.dtype)
        array: NDArray[Any] = self.read(row, row + 1)[0]
        return array

    def file_of(self, number: int) -> str:
        """Return the name of the file of a chunk of rows."""
        return self.separator.join(map(str, (number, *[0] * (len(self.shape) - 1))))

    def chunk(self, file: str) -> tuple[NDArray[Any], int]:
        """Return a chunk, and the size of its file.

        Errors:
            DatasetError: it is missing or damaged.
        """
        where, path = f"{self.where}/{file}", path_below(self.root, f"{self.name}/{file}")
        if not path.exists():
            raise DatasetError(f"{where}: not there; get the file again")
        with refusing(where, "damaged"):
            data = read_bytes(file_below(self.root, f"{self.name}/{file}"))
            self._check(self.chunk_bytes, len(data), where)
            values = np.frombuffer(_unpacked(self.codec, data, self.chunk_bytes), self.dtype)
            return values.reshape(self.chunks), len(data)

    def _check(self, nbytes: int, stored: int, where: str) -> None:
        check_decoded(nbytes, stored, where, IMAGE_RATIO if len(self.shape) > 2 else RATIO)


def _unpacked(codec: str, data: Any, nbytes: int) -> Any:
    """Return the bytes of a chunk of `nbytes`, given those of its file.

    Errors:
        ValueError: it is damaged.
    """
    try:
        if codec in _ZLIB:
            data = zlib.decompressobj(47).decompress(data, nbytes + 1)  # of either
        elif codec:
            data = decompress(codec, data, nbytes)
    except (RoboCacheError, zlib.error) as error:
        raise ValueError(str(error)) from None
    if len(data) != nbytes:
        raise ValueError(f"has {len(data):,} bytes; a chunk has {nbytes:,}")
    return data


def zarr_array(stated: Any, root: AnyPath, name: str, where: str) -> ZarrRows:
    """Return an array by its description, the contents of .zarray.

    Errors:
        DatasetError: the description is malformed, or the array has chunks or a dtype that are not read.
    """
    with refusing(f"{where}/.zarray", "not an array of Zarr format 2", "export it again"):
        shape, chunks = (tuple(int(size) for size in stated[key]) for key in ("shape", "chunks"))
        dtype, codec = np.dtype(stated["dtype"]), str((stated.get("compressor") or {}).get("id", ""))
        order, separator = str(stated.get("order", "C")), str(stated.get("dimension_separator", "."))
        usable = len(shape) == len(chunks) > 0 and min(chunks) > 0 and min(shape) >= 0 and dtype.kind in "biuf"
        codec = "filters" if stated.get("filters") else codec
        found = ZarrRows(root, name, where, shape, chunks, dtype, codec, order, separator)
        if not usable or separator not in (".", "/"):
            raise ValueError(f"shape {shape}, chunks {chunks}, {dtype}")
        if math.prod(found.counts) > MAX_CHUNKS or found.chunk_bytes > MAX_CHUNK_BYTES:
            raise ValueError(f"{math.prod(found.counts):,} chunks of {found.chunk_bytes:,} bytes")
    return found
