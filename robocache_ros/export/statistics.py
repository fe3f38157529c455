"""The statistics that policies normalise with: of columns exactly, of images from a histogram per channel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
Stats = dict[str, Any]


def of_columns(values: NDArray[Any]) -> Stats:
    """Of (N, D) values, or (N,) as one column: min, max, mean, std, count and quantiles as lists of D."""
    table = values.reshape(len(values), -1)
    ordered = np.sort(table, axis=0)
    exact = table.astype(np.float64)
    stats = {
        "min": ordered[0].tolist(),
        "max": ordered[-1].tolist(),
        "mean": exact.mean(axis=0).tolist(),
        "std": exact.std(axis=0).tolist(),
        "count": [len(table)],
    }
    for name, share in QUANTILES.items():
        stats[name] = _quantile(ordered, share).tolist()
    return stats


def _quantile(ordered: NDArray[Any], share: float) -> NDArray[np.float64]:
    """The quantile of sorted columns, linear between ranks, as NumPy has it."""
    rank = share * (len(ordered) - 1)
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below].astype(np.float64), ordered[above].astype(np.float64)
    return np.asarray(low + (rank - below) * (high - low))


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
