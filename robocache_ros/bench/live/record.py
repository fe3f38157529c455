"""Numbers recorded during a measurement, and their summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Columns:
    """Rows of int64 in memory that is allocated at the start, so that it does not grow during a measurement.

    Args:
        names: of the columns.
        rows: the most that are kept; later ones are counted in `lost`.
    """

    def __init__(self, names: Sequence[str], rows: int) -> None:
        self.names = tuple(names)
        self.lost = 0
        self._data = np.full((rows, len(self.names)), 0, np.int64)  # written to, so that its pages are there
        self._count = 0

    def add(self, *values: int) -> None:
        """Keep a row."""
        if self._count == len(self._data):
            self.lost += 1
            return
        self._data[self._count] = values
        self._count += 1

    def to_dict(self) -> dict[str, NDArray[np.int64]]:
        """The columns by name."""
        return {name: self._data[: self._count, i] for i, name in enumerate(self.names)}


def percentiles(values: Iterable[float] | NDArray[Any]) -> dict[str, float] | None:
    """p50, p99, max and count; None without values."""
    data = np.asarray(list(values) if not isinstance(values, np.ndarray) else values, np.float64)
    if not data.size:
        return None
    p50, p99, most = np.percentile(data, [50, 99, 100]).tolist()
    return {"p50": p50, "p99": p99, "max": most, "count": float(data.size)}


def slope_per_minute(times_s: Sequence[float], values: Sequence[float]) -> float:
    """Growth per minute, by least squares; 0 for fewer than two values."""
    if len(times_s) < 2:
        return 0.0
    slope: float = np.polyfit(np.asarray(times_s) - times_s[0], values, 1)[0]
    return float(slope) * 60
