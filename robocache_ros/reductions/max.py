"""Maximum of each feature; -0 is less than +0."""

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


class Max(FeatureReduction):
    """(F, X, Y, Z) float32: the maximum, by integer keys in the order of float32."""

    summary = "the maximum of each feature"
    term_bytes = 4

    def reduce(self, points: PlacedPoints) -> Tensor:
        """(V, F) maxima."""
        return float_of_key(greatest_keys(key_of_float(points.rows[:, 3:]), points))

    def oracle(self, points: Sequence[Sequence[float]]) -> list[float]:
        """The maximum of each feature."""
        return [max(feature) for feature in columns(points)]


REDUCTION = Max()
