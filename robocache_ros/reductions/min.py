"""Minimum of each feature; -0 is less than +0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from robocache_ros.reductions.kind import (
    FeatureReduction,
    PlacedPoints,
    columns,
    float_of_key,
    greatest_keys,
    key_of_float,
)

if TYPE_CHECKING:
    from torch import Tensor


class Min(FeatureReduction):
    """(F, X, Y, Z) float32: the minimum, by integer keys in the order of float32."""

    summary = "the minimum of each feature"
    term_bytes = 4

    def reduce(self, points: PlacedPoints) -> Tensor:
        """(V, F) minima: the smallest key has the greatest complement."""
        return float_of_key(~greatest_keys(~key_of_float(points.rows[:, 3:]), points))

    def oracle(self, points: Sequence[Sequence[float]]) -> list[float]:
        """The minimum of each feature."""
        return [min(feature) for feature in columns(points)]


REDUCTION = Min()
