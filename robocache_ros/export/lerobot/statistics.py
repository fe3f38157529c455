"""Statistics for normalization in policies: exact for columns, from a histogram per channel for images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
OF_VALUES = ("min", "max", "mean", "std", *QUANTILES)  # one number per column
Stats = dict[str, Any]


def of_columns(*parts: NDArray[Any]) -> Stats:
    """Of (N, D) values, or (N,) as one column, in parts: min, max, mean, std, count and quantiles as lists of D.

    NaN, which marks missing values in floating-point columns, is ignored; a column with only NaN gives zeros. Loads one
    column at a time, so the parts may be memory-mapped files. Sums are computed in row order, so the result is
    bitwise independent of the split into parts.
    """
    tables = [part.reshape(len(part), -1) for part in parts]
    width = tables[0].shape[1]
    columns = [_of_column(np.concatenate([table[:, k] for table in tables]), alone=width == 1) for k in range(width)]
    stats = {name: [column[name] for column in columns] for name in ("min", "max", "mean", "std", *QUANTILES)}
    rows = sum(len(table) for table in tables)
    return {**{name: stats[name] for name in ("min", "max", "mean", "std")}, "count": [rows], **stats}


def _of_column(values: NDArray[Any], *, alone: bool) -> Stats:
    """Statistics of (N,) values; `alone`: sum as for a table of one column, which NumPy sums pairwise."""
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
    # Bitwise equal to `table.sum(axis=0)`: NumPy adds the rows of a wide table sequentially.
    total: np.float64 = values.sum() if alone else np.cumsum(values)[-1]
    return total


def _quantile(ordered: NDArray[Any], share: float) -> float:
    """Return the quantile of sorted values, with linear interpolation between ranks as in NumPy."""
    rank = share * (len(ordered) - 1)
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    low, high = np.float64(ordered[below]), np.float64(ordered[above])
    return float(low + (rank - below) * (high - low))


class ColumnFiles:
    """Stores each column of a table in a separate file, so that statistics do not require all rows in memory.

    Attributes:
        described: dtype and row shape by column, which `stats_of_files` requires to read the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._rows = 0
        self.described: dict[str, tuple[str, Sequence[int]]] = {}

    def append(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add (T, ...) values of every column."""
        for name, values in columns.items():
            table = values.reshape(len(values), -1)
            if name not in self._files:
                self._folder.mkdir(exist_ok=True)
                self._files[name] = (self._folder / name).open("wb")
                self.described[name] = (table.dtype.str, values.shape[1:])
            self._files[name].write(np.ascontiguousarray(table).data)
        self._rows += len(next(iter(columns.values())))

    def stats(self, first: int) -> dict[str, Stats]:
        """Return the statistics of every column from row `first` on."""
        for file in self._files.values():
            file.flush()
        return {name: stats_of_files(name, self.described, [self._folder], first) for name in self._files}

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            with suppress(OSError):  # `stats` flushes at the end of each episode; the disk may be full earlier
                file.close()


def stats_of_files(
    name: str, described: Mapping[str, tuple[str, Sequence[int]]], folders: Sequence[Path], first: int = 0
) -> Stats:
    """Return the statistics of a column, in the shape of a row.

    Args:
        name: the column.
        described: `ColumnFiles.described`.
        folders: folders of several `ColumnFiles` with consecutive rows.
        first: first row to use in each folder.
    """
    dtype, shape = described[name]
    parts = [np.memmap(folder / name, dtype, "r").reshape(-1, math.prod(shape))[first:] for folder in folders]
    stats = of_columns(*parts)
    if len(shape) < 2:
        return stats
    return {**stats, **{key: np.reshape(stats[key], shape).tolist() for key in OF_VALUES}}


class Histogram:
    """Counts of the 256 values of each channel of 8-bit images, from which all statistics are computed."""

    def __init__(self, counts: Sequence[Sequence[int]] = ((0,) * 256,) * 3, images: int = 0) -> None:
        self.counts = np.array(counts, np.int64)  # (C, 256)
        self.images = images

    def add(self, image: NDArray[np.uint8]) -> None:
        """Add a (C, H, W) image."""
        for channel, plane in enumerate(image):
            self.counts[channel] += np.bincount(plane.reshape(-1), minlength=256)
        self.images += 1

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram((self.counts + other.counts).tolist(), self.images + other.images)

    def to_dict(self) -> dict[str, Any]:
        """Return the constructor arguments, for a JSON file."""
        return {"counts": self.counts.tolist(), "images": self.images}

    def stats(self) -> Stats:
        """Return min, max, mean, std and quantiles as [C][1][1] in 0..1; count is the number of images."""
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
