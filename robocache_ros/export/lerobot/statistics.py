"""The statistics that policies normalise with: of columns exactly, of images from a histogram per channel."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
OF_VALUES = ("min", "max", "mean", "std", *QUANTILES)  # a number for each column
Stats = dict[str, Any]


def of_columns(values: NDArray[Any]) -> Stats:
    """Of (N, D) values, or (N,) as one column: min, max, mean, std, count and quantiles as lists of D.

    NaN, as floating-point columns have where there is no value, does not count; a column of nothing else gives zeros.
    Holds one column at a time, so that `values` may be a file that is mapped into memory.
    """
    table = values.reshape(len(values), -1)
    columns = [_of_column(np.ascontiguousarray(table[:, k]), alone=table.shape[1] == 1) for k in range(table.shape[1])]
    stats = {name: [column[name] for column in columns] for name in ("min", "max", "mean", "std", *QUANTILES)}
    return {**{name: stats[name] for name in ("min", "max", "mean", "std")}, "count": [len(table)], **stats}


def _of_column(values: NDArray[Any], *, alone: bool) -> Stats:
    """Of (N,) values; `alone`: the sums are those of a table of one column, which NumPy adds up pairwise."""
    if values.dtype.kind == "f":
        values = values[~np.isnan(values)] if np.isnan(values).any() else values
        values = values if len(values) else np.zeros(1, values.dtype)
    exact = values.astype(np.float64)
    mean = _sum(exact, alone) / len(exact)
    np.subtract(exact, mean, out=exact)
    np.multiply(exact, exact, out=exact)
    std = np.sqrt(_sum(exact, alone) / len(exact))
    del exact
    ordered = np.sort(values)
    quantiles = {name: _quantile(ordered, share) for name, share in QUANTILES.items()}
    return {"min": ordered[0].item(), "max": ordered[-1].item(), "mean": float(mean), "std": float(std), **quantiles}


def _sum(values: NDArray[np.float64], alone: bool) -> np.float64:
    # The same bits as `table.sum(axis=0)`: NumPy adds the rows of a wide table one after the other.
    total: np.float64 = values.sum() if alone else np.cumsum(values)[-1]
    return total


def _quantile(ordered: NDArray[Any], share: float) -> float:
    """The quantile of sorted values, linear between ranks, as NumPy has it."""
    rank = share * (len(ordered) - 1)
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    low, high = np.float64(ordered[below]), np.float64(ordered[above])
    return float(low + (rank - below) * (high - low))


class ColumnFiles:
    """Columns of a dataset in unnamed files of its folder, so that statistics of all rows need no memory for them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._columns: dict[str, tuple[BinaryIO, np.dtype[Any], tuple[int, ...]]] = {}  # file, dtype, shape of a row
        self._rows = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, in the order in which they came."""
        return tuple(self._columns)

    def append(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add (T, ...) values of every column."""
        for name, values in columns.items():
            table = values.reshape(len(values), -1)
            if name not in self._columns:
                # Unnamed: it is gone when it is closed, or when the process ends.
                file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by `close`
                self._columns[name] = (cast(BinaryIO, file), table.dtype, values.shape[1:])
            self._columns[name][0].write(np.ascontiguousarray(table).data)
        self._rows += len(next(iter(columns.values())))

    def stats(self, name: str, first: int = 0) -> Stats:
        """The statistics of a column from row `first` on, in the shape of a row."""
        file, dtype, shape = self._columns[name]
        width = math.prod(shape)
        file.flush()
        offset = first * width * dtype.itemsize
        stats = of_columns(np.memmap(file, dtype, "r", offset, (self._rows - first, width)))
        if len(shape) < 2:
            return stats
        return {**stats, **{key: np.reshape(stats[key], shape).tolist() for key in OF_VALUES}}

    def close(self) -> None:
        """Remove the files."""
        for file, _, _ in self._columns.values():
            with suppress(OSError):  # what a full disk has not stored is not needed any more
                file.close()


class Histogram:
    """Counts of the 256 values of each channel of 8-bit images, from which every statistic follows."""

    def __init__(self, channels: int = 3) -> None:
        self.counts = np.zeros((channels, 256), np.int64)
        self.images = 0

    def add(self, image: NDArray[np.uint8]) -> None:
        """Count a (C, H, W) image."""
        for channel, plane in enumerate(image):
            self.counts[channel] += np.bincount(plane.reshape(-1), minlength=256)
        self.images += 1

    def __add__(self, other: Histogram) -> Histogram:
        total = Histogram(len(self.counts))
        total.counts = self.counts + other.counts
        total.images = self.images + other.images
        return total

    def stats(self) -> Stats:
        """min, max, mean, std and quantiles as [C][1][1] in 0..1; count is the images."""
        levels = np.arange(256) / 255
        total = self.counts.sum(axis=1, keepdims=True)
        mean = (self.counts * levels).sum(axis=1, keepdims=True) / total
        variance = (self.counts * (levels - mean) ** 2).sum(axis=1, keepdims=True) / total
        seen = self.counts > 0
        columns = {
            "min": levels[seen.argmax(axis=1)],
            "max": levels[255 - seen[:, ::-1].argmax(axis=1)],
            "mean": mean[:, 0],
            "std": np.sqrt(variance[:, 0]),
        }
        cumulated = self.counts.cumsum(axis=1)
        for name, share in QUANTILES.items():
            columns[name] = levels[(cumulated >= share * total).argmax(axis=1)]
        return {**{k: v.reshape(-1, 1, 1).tolist() for k, v in columns.items()}, "count": [self.images]}
