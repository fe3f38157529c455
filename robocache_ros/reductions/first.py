"""The first points of each voxel with all their values: the pillar form of VoxelNet and PointPillars.

It has no CUDA header: on a GPU, a kernel locates the points, and torch sorts and selects them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from robocache_ros.reductions.kind import PlacedPoints, PointReduction

if TYPE_CHECKING:
    from torch import Tensor


class First(PointReduction):
    """(X, Y, Z, K, 3 + F) float32: the K points with the lowest indices, zero-padded."""

    summary = "the first max_points points"
    in_spec = False  # the grid of a stream does not define K
    needs_max_points = True

    def dense_shape(self, shape: tuple[int, int, int], features: int, max_points: int) -> tuple[int, ...]:
        """(X, Y, Z, K, 3 + F)."""
        return (*shape, max_points, 3 + features)

    def reduce(self, points: PlacedPoints) -> Tensor:
        """(V, K, 3 + F), zero-padded."""
        import torch

        rows, count = points.rows, points.count
        start = torch.cumsum(count, 0) - count
        rank = torch.arange(len(points.voxel), device=rows.device) - start[points.voxel]
        kept = rank < points.max_points
        out = rows.new_zeros((len(count), points.max_points, rows.shape[1]))
        out[points.voxel[kept], rank[kept]] = rows[kept]
        return out

    def scatter(self, out: Tensor, cell: Tensor, values: Tensor, cells: int) -> None:
        """Write (V, K, 3 + F) values into (B, X, Y, Z, K, 3 + F)."""
        out.view(-1, *values.shape[1:])[cell] = values

    def oracle(self, points: Sequence[Sequence[float]]) -> list[float]:
        """The values of all points, one point after another; the caller pads or cuts them."""
        return [float(value) for point in points for value in point]


REDUCTION = First()
