"""Mean of each feature, summed in fixed point: the same bits in any order of the points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from robocache_ros.reductions.kind import FeatureReduction, PlacedPoints, columns, fixed_point

if TYPE_CHECKING:
    from torch import Tensor


class Mean(FeatureReduction):
    """(F, X, Y, Z) float32: a sum in int64 fixed point, divided in float64 and rounded once to float32."""

    summary = "the mean of each feature"
    saturates = True
    oracle_steps = 0.5

    def reduce(self, points: PlacedPoints) -> Tensor:
        """(V, F) means."""
        terms = fixed_point(points.rows[:, 3:], points.fraction_bits)
        total = terms.new_zeros((len(points.count), terms.shape[1])).index_add_(0, points.voxel, terms)
        return (total.double() / points.count[:, None].double() * 2.0**-points.fraction_bits).float()

    def oracle(self, points: Sequence[Sequence[float]]) -> list[float]:
        """The mean of each feature."""
        return [math.fsum(feature) / len(feature) for feature in columns(points)]


REDUCTION = Mean()
