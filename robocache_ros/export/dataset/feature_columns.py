"""The numbers of a feature in all pieces of a dataset, for statistics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.export.dataset import row_columns
from robocache_ros.export.dataset.features import Feature
from robocache_ros.spec.layout import Layout

STATS_BYTES = 128 << 20  # bytes of columns that statistics are computed from at once


class FeatureColumns:
    """Reads the values of each number of a feature from all pieces, several numbers at a time in bounded memory."""

    def __init__(self, feature: Feature, pieces: Sequence[Path], layout: Layout, rows: int) -> None:
        self._feature, self._pieces, self._layout = feature, pieces, layout
        self._step = max(1, STATS_BYTES // (8 * rows))
        self._first, self._block = -self._step, np.zeros((0, 0))

    def __call__(self, k: int) -> NDArray[Any]:
        """Return the values of number k of all rows, NaN where there is none."""
        if not self._first <= k < self._first + self._step:
            numbers = range(k, min(k + self._step, len(self._feature.columns)))
            self._first, self._block = k, np.concatenate([self._read(piece, numbers) for piece in self._pieces], axis=1)
        values: NDArray[Any] = self._block[k - self._first]
        return values

    def _read(self, piece: Path, numbers: Sequence[int]) -> NDArray[Any]:
        rows = row_columns.load(piece, self._layout)  # of one piece at a time: the number of mapped files is limited
        return np.stack([self._feature.column(rows, k) for k in numbers])
