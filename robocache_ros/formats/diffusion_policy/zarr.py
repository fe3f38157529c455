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
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.file_limits import IMAGE_RATIO, RATIO, check_decoded
from robocache_ros.formats.diffusion_policy.schema import CODECS, MAX_CHUNK_BYTES
from robocache_ros.formats.read import DatasetError, read_object
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


@dataclass(frozen=True)
class ZarrRows:
    """An array of `count` rows."""

    root: AnyPath  # of the dataset
    name: str
    count: int
    shape: tuple[int, ...]  # of a row
    dtype: np.dtype[Any]
    chunk_rows: int
    codec: str

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows [start, stop).

        Errors:
            DatasetError: a chunk is missing or damaged. Zarr takes zeros for a missing one; exports leave out none.
        """
        found = np.zeros((stop - start, *self.shape), self.dtype)
        nbytes = stored = 0
        for number in range(start // self.chunk_rows, -(-stop // self.chunk_rows)):
            first = number * self.chunk_rows
            low, high = max(first, start), min(first + self.chunk_rows, stop)
            chunk, size = self._chunk(self._chunk_name(number))
            nbytes, stored = nbytes + chunk.nbytes, stored + size
            self._check(nbytes, stored, self.root / self.name)
            found[low - start : high - start] = chunk[low - first : high - first]
        return found

    def row(self, row: int, *, absent: bool) -> NDArray[Any]:
        """Return a row; zeros if its stream has no value there and the export left out its chunk.

        Errors:
            DatasetError: its chunk is missing or damaged.
        """
        if absent and self.chunk_rows == 1 and not path_below(self.root, self._chunk_name(row)).exists():
            return np.zeros(self.shape, self.dtype)
        array: NDArray[Any] = self.read(row, row + 1)[0]
        return array

    def _chunk_name(self, number: int) -> str:
        return f"{self.name}/{'.'.join(map(str, (number, *[0] * len(self.shape))))}"

    def _chunk(self, name: str) -> tuple[NDArray[Any], int]:
        """Return a chunk, and the size of its file."""
        path = file_below(self.root, name)
        nbytes = self.chunk_rows * math.prod(self.shape) * self.dtype.itemsize
        try:
            data: Any = read_bytes(path)
            size = len(data)
            self._check(nbytes, size, path)
            data = unpacked(self.codec, data, nbytes)
        except DatasetError:
            raise
        except (OSError, ValueError, RoboCacheError) as error:
            raise DatasetError(f"{printable(path)}: damaged ({printable(error, 60)}); get the file again") from None
        return np.frombuffer(data, self.dtype).reshape(self.chunk_rows, *self.shape), size

    def _check(self, nbytes: int, stored: int, path: AnyPath) -> None:
        try:
            check_decoded(nbytes, stored, printable(path), IMAGE_RATIO if len(self.shape) > 1 else RATIO)
        except RoboCacheError as error:
            raise DatasetError(str(error)) from None


def unpacked(codec: str, data: Any, nbytes: int) -> Any:
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
        raise ValueError(f"is damaged ({printable(error, 60)})") from None
    if len(data) != nbytes:
        raise ValueError(f"has {len(data):,} bytes; a chunk has {nbytes:,}")
    return data


def open_zarr(root: AnyPath, name: str) -> ZarrRows:
    """Read the description of an array, by its name below the root of a dataset.

    Errors:
        DatasetError: it is missing or malformed, or the array has chunks, a dtype or a compression that are not read.
    """
    path = file_below(root, f"{name}/.zarray")
    where, told = printable(path), read_object(path)
    try:
        shape, chunks = (tuple(int(size) for size in told[key]) for key in ("shape", "chunks"))
        dtype, codec = np.dtype(told["dtype"]), (told.get("compressor") or {}).get("id", "")
        nbytes = math.prod(chunks) * dtype.itemsize
        if told.get("filters") or told.get("order") != "C" or codec not in CODECS or dtype.kind not in "iufb":
            raise ValueError(f"compressor {codec}, dtype {dtype}")
        if (
            not shape
            or min(chunks) < 1
            or min(shape) < 0
            or chunks[1:] != shape[1:]
            or not 0 < nbytes <= MAX_CHUNK_BYTES
        ):
            raise ValueError(f"shape {shape}, chunks {chunks}")
    except (ArithmeticError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DatasetError(f"{where}: not an array of an export ({printable(error, 60)}); export it again") from None
    return ZarrRows(root, name, shape[0], shape[1:], dtype, chunks[0], codec)
