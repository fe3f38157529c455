"""Statistics for normalization in policies: exact for columns, from a histogram per channel for images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.extras import need

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
Stats = dict[str, Any]


def of_columns(*parts: NDArray[Any]) -> Stats:
    """Of (N, D) values, or (N,) as one column, in parts: min, max, mean, std, count and quantiles as lists of D.

    NaN, which marks missing values in floating-point columns, is ignored; a column with only NaN gives zeros. Sums are
    computed in row order, so the result is bitwise independent of the split into parts.
    """
    tables = [part.reshape(len(part), -1) for part in parts]
    rows = sum(len(table) for table in tables)
    width = tables[0].shape[1]
    return by_column((np.concatenate([table[:, k] for table in tables]) for k in range(width)), (width,), rows)


def by_column(columns: Iterable[NDArray[Any]], shape: Sequence[int], rows: int) -> Stats:
    """As `of_columns`, for the (N,) values of each number, one at a time to bound memory; `shape` is that of a row."""
    single = math.prod(shape) == 1
    found = [_of_column(values, single=single) for values in columns]
    stats = {name: [values[name] for values in found] for name in ("min", "max", "mean", "std", *QUANTILES)}
    if len(shape) > 1:
        stats = {name: np.reshape(values, shape).tolist() for name, values in stats.items()}
    return {**{name: stats[name] for name in ("min", "max", "mean", "std")}, "count": [rows], **stats}


def _of_column(values: NDArray[Any], *, single: bool) -> Stats:
    """Statistics of (N,) values; `single`: sum as for a table of one column, which NumPy sums pairwise."""
    if values.dtype.kind == "f":
        values = values[~np.isnan(values)] if np.isnan(values).any() else values
        values = values if len(values) else np.zeros(1, values.dtype)
    values = values.astype(np.int64) if values.dtype.kind == "b" else values
    exact = values.astype(np.float64)
    mean = _sum(exact, single) / len(exact)
    np.subtract(exact, mean, out=exact)
    np.multiply(exact, exact, out=exact)
    std = np.sqrt(_sum(exact, single) / len(exact))
    del exact
    ordered = np.sort(values)
    quantiles = {name: _quantile(ordered, share) for name, share in QUANTILES.items()}
    return {"min": ordered[0].item(), "max": ordered[-1].item(), "mean": float(mean), "std": float(std), **quantiles}


def _sum(values: NDArray[np.float64], single: bool) -> np.float64:
    # Bitwise equal to `table.sum(axis=0)`: NumPy adds the rows of a wide table sequentially.
    total: np.float64 = values.sum() if single else np.cumsum(values)[-1]
    return total


def _quantile(ordered: NDArray[Any], share: float) -> float:
    """Return the quantile of sorted values, with linear interpolation between ranks as in NumPy."""
    rank = share * (len(ordered) - 1)
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    low, high = np.float64(ordered[below]), np.float64(ordered[above])
    return float(low + (rank - below) * (high - low))


class Histogram:
    """Counts of the L values of each of C channels, from which all statistics are computed; of 8-bit RGB by default."""

    def __init__(self, counts: Sequence[Sequence[int]] = ((0,) * 256,) * 3, images: int = 0) -> None:
        self.counts = np.array(counts, np.int64)  # (C, L)
        self.images = images

    def add(self, image: NDArray[np.uint8]) -> None:
        """Add a (3, H, W) image."""
        # Three times as fast as np.bincount.
        picture = need("PIL.Image", "export").fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
        self.counts += np.reshape(picture.histogram(), (-1, 256))
        self.images += 1

    def add_values(self, values: NDArray[Any]) -> None:
        """Add an image of one channel, of unsigned integers below L."""
        self.counts[0] += np.bincount(values.reshape(-1), minlength=self.counts.shape[1])
        self.images += 1

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram((self.counts + other.counts).tolist(), self.images + other.images)

    def to_dict(self) -> dict[str, Any]:
        """Return the constructor arguments, for a JSON file."""
        return {"counts": self.counts.tolist(), "images": self.images}

    def stats(self, levels: NDArray[np.float64] | None = None) -> Stats:
        """Return min, max, mean, std and quantiles as [C][1][1]; count is the number of images.

        levels: (L,) what each value stands for, rising; 0 to 1 by default.
        """
        levels = np.arange(256) / 255 if levels is None else levels
        total = self.counts.sum(axis=1, keepdims=True)
        mean = (self.counts * levels).sum(axis=1, keepdims=True) / total
        variance = (self.counts * (levels - mean) ** 2).sum(axis=1, keepdims=True) / total
        seen = self.counts > 0
        columns = {
            "min": levels[seen.argmax(axis=1)],
            "max": levels[len(levels) - 1 - seen[:, ::-1].argmax(axis=1)],
            "mean": mean[:, 0],
            "std": np.sqrt(variance[:, 0]),
        }
        cumulated = self.counts.cumsum(axis=1)
        for name, share in QUANTILES.items():
            columns[name] = levels[(cumulated >= share * total).argmax(axis=1)]
        return {**{k: v.reshape(-1, 1, 1).tolist() for k, v in columns.items()}, "count": [self.images]}
