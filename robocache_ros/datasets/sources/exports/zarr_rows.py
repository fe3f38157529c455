"""Arrays of a Zarr folder of format 2 that are chunked along their first axis, read row by row."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.storage.codecs import decompress
from robocache_ros.datasets.episode_source import DatasetError
from robocache_ros.datasets.files.dataset_files import read_object
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.file_limits import IMAGE_RATIO, RATIO, check_decoded
from robocache_ros.untrusted_files import file_below, path_below, read_bytes

CHUNK_BYTES = 256 << 20
_ZLIB = ("zlib", "gzip")


@dataclass(frozen=True)
class ZarrRows:
    """An array of `count` rows."""

    root: Path  # of the dataset
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
            if self.codec in _ZLIB:
                data = zlib.decompressobj(47).decompress(data, nbytes + 1)  # of either
            elif self.codec:
                data = decompress(self.codec, data, nbytes)
            if len(data) != nbytes:
                raise ValueError(f"{len(data):,} bytes, not {nbytes:,}")
        except DatasetError:
            raise
        except (OSError, ValueError, RoboCacheError, zlib.error) as error:
            raise DatasetError(f"{printable(path)}: damaged ({printable(error, 60)}); get the file again") from None
        return np.frombuffer(data, self.dtype).reshape(self.chunk_rows, *self.shape), size

    def _check(self, nbytes: int, stored: int, path: Path) -> None:
        try:
            check_decoded(nbytes, stored, printable(path), IMAGE_RATIO if len(self.shape) > 1 else RATIO)
        except RoboCacheError as error:
            raise DatasetError(str(error)) from None


def open_zarr(root: Path, name: str) -> ZarrRows:
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
        if (
            told.get("filters")
            or told.get("order") != "C"
            or codec not in ("", "zstd", *_ZLIB)
            or dtype.kind not in "iufb"
        ):
            raise ValueError(f"compressor {codec}, dtype {dtype}")
        if not shape or min(chunks) < 1 or min(shape) < 0 or chunks[1:] != shape[1:] or not 0 < nbytes <= CHUNK_BYTES:
            raise ValueError(f"shape {shape}, chunks {chunks}")
    except (ArithmeticError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DatasetError(f"{where}: not an array of an export ({printable(error, 60)}); export it again") from None
    return ZarrRows(root, name, shape[0], shape[1:], dtype, chunks[0], codec)
