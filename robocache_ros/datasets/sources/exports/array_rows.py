"""Depth images and voxels of an episode, read when a tick uses them."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.episode_source import DatasetError, check_image_bytes
from robocache_ros.errors import printable

MAX_BYTES = 1 << 30  # of an array


@dataclass(frozen=True)
class ArrayRows:
    """The arrays of an episode: (X, Y, Z) or (F, X, Y, Z) voxels, or (H, W, C) images.

    Args:
        count: number of rows.
        read: returns the array of a row.
        where: file and stream, for errors.
    """

    count: int
    read: Callable[[int], NDArray[Any]]
    where: str

    def __len__(self) -> int:
        return self.count

    def frames(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the (n, ...) arrays of rising rows.

        Errors:
            DatasetError: an array is damaged, missing, or has another shape or type than the others.
        """
        first = self._array(int(rows[0]))
        check_image_bytes(len(rows), (*first.shape, first.itemsize), self.where)
        found = np.empty((len(rows), *first.shape), first.dtype)
        found[0] = first
        for place, row in enumerate(rows.tolist()[1:], start=1):
            array = self._array(row)
            if array.shape != first.shape or array.dtype != first.dtype:
                raise DatasetError(f"{self.where}: row {row} is {array.dtype} {array.shape}, not {first.shape}")
            found[place] = array
        return found

    def _array(self, row: int) -> NDArray[Any]:
        try:
            return self.read(row)
        except DatasetError:
            raise
        except Exception as error:  # damaged archives and files raise errors of any kind
            raise DatasetError(
                f"{self.where}: row {row}: damaged ({printable(error, 60)}); export the dataset again"
            ) from None


def array_of(shape: tuple[int, ...], dtype: str, data: bytes | memoryview) -> NDArray[Any]:
    """Return an array from its bytes in little endian; of dtype bits as uint8.

    Errors:
        ValueError: the bytes are too few, too many or too large.
    """
    count = math.prod(shape)
    stored = np.dtype("u1" if dtype == "bits" else dtype).newbyteorder("<")
    nbytes = -(-count // 8) if dtype == "bits" else count * stored.itemsize
    if not 0 < nbytes == len(data) <= MAX_BYTES:
        raise ValueError(f"{len(data):,} bytes for {shape}")
    if dtype == "bits":
        return np.unpackbits(np.frombuffer(data, np.uint8), count=count, bitorder="little").reshape(shape)
    return np.frombuffer(data, stored).reshape(shape)


def npy_array(data: bytes) -> NDArray[Any]:
    """Return the array of numbers in an .npy file, without a copy.

    Errors:
        ValueError: it is not one, or its header does not match its size, for which numpy.load would take memory.
    """
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("not an .npy file of version 1.0")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if is_fortran or dtype.kind not in "biuf" or math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ValueError(f"{dtype} {shape} in {len(data):,} bytes")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape)


def channels_last(array: NDArray[Any], kind: str) -> NDArray[Any]:
    """Return a (C, H, W) image as (H, W, C), and voxels as they are."""
    return np.moveaxis(array, 0, -1) if kind == "image" else array
