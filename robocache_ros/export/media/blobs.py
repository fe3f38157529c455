"""A file of many byte strings, read by index."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def _ends(path: Path) -> Path:
    return path.with_name(f"{path.name}.ends")


class BlobWriter:
    """Writes byte strings one after the other, and where each ends to a second file.

    Args:
        path: the file; its folder is created.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = path.open("wb")
        self._ends: list[int] = []

    def append(self, data: bytes | memoryview) -> int:
        """Write a byte string; return its index."""
        self._file.write(data)
        self._ends.append((self._ends[-1] if self._ends else 0) + len(data))
        return len(self._ends) - 1

    def close(self, *, complete: bool) -> None:
        """Close the file; if `complete`, write the ends, which are required to read it."""
        self._file.close()
        if complete:
            np.array(self._ends, "<i8").tofile(_ends(self._path))


class Blobs:
    """The byte strings of a file.

    Args:
        path: written by a `BlobWriter`.
    """

    def __init__(self, path: Path) -> None:
        self._ends: NDArray[np.int64] = np.fromfile(_ends(path), "<i8").astype(np.int64)
        self._data = np.memmap(os.fspath(path), np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(K,) number of bytes of each byte string."""
        return np.diff(self._ends, prepend=0)

    def __getitem__(self, index: int) -> bytes:
        data: bytes = self.view(index).tobytes()
        return data

    def view(self, index: int) -> NDArray[np.uint8]:
        """Return the bytes of a byte string in the file, which is mapped into memory, without a copy."""
        start = int(self._ends[index - 1]) if index else 0
        return self._data[start : int(self._ends[index])]
