"""Columns of a dataset in temporary files, so that their statistics do not need all rows in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from robocache_ros.export.statistics import Stats, by_column


class ColumnFiles:
    """The values of each column in a file of its own.

    Args:
        folder: empty.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}  # dtype, and shape of a row

    def append(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add (T, ...) values of columns."""
        for name, values in columns.items():
            if name not in self._files:
                self._files[name] = self._path(len(self._files)).open("wb")
                self._kinds[name] = (values.dtype, values.shape[1:])
            self._files[name].write(np.ascontiguousarray(values).data)

    def stats(self, name: str, first: int = 0) -> Stats:
        """Return the statistics of a column from row `first` on."""
        table = self.table(name)[first:]
        return by_column(lambda k: table[:, k], self._kinds[name][1], len(table))

    def table(self, name: str) -> NDArray[Any]:
        """Return the (T, K) values of a column, which are in a file."""
        self._files[name].flush()
        dtype, shape = self._kinds[name]
        flat = np.memmap(self._path(list(self._files).index(name)), dtype, "r")
        return flat.reshape(-1, int(np.prod(shape, dtype=int)))

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _path(self, number: int) -> Path:
        return self._folder / str(number)
