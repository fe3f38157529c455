"""The interface of a voxel reduction, and the arithmetic that several of them share.

A reduction of features must not depend on the order of a voxel's points: sums use int64 fixed point, and extremes
compare integers. The CUDA header of the reduction computes the same bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

# A feature is summed as round(value * 2**fraction_bits) in int64; |value| saturates at 2**(FIXED_BITS - fraction_bits).
# 2**23 points with the largest value therefore fit one voxel, in any order.
FIXED_BITS = 40


@dataclass(frozen=True)
class PlacedPoints:
    """M points in V occupied voxels, sorted by voxel; the points of a voxel are in the order of the cloud."""

    rows: Tensor  # (M, 3 + F) float32: x, y, z in the grid's frame, and the features
    voxel: Tensor  # (M,) int64 which of the V voxels contains the point
    count: Tensor  # (V,) int64 number of points in each voxel
    fraction_bits: int
    max_points: int


class ReductionKind(ABC):
    """What a voxel stores of its points."""

    summary: str  # for the reference pages: what a voxel stores
    dtype = "float32"  # of the dense grid: the name of a torch and NumPy dtype
    in_spec = True  # a stream of a fusion spec may use it
    is_flag = False  # voxels are 0 or 1
    reads_features = False  # a point with a feature that is not finite is not placed
    needs_features = False
    needs_max_points = False
    saturates = False  # features are clamped to the range of the fixed point, and the clamped ones are counted
    oracle_steps = 0.0  # from the oracle to the result before its rounding to float32, in steps of 2**-fraction_bits

    @abstractmethod
    def dense_shape(self, shape: tuple[int, int, int], features: int, max_points: int) -> tuple[int, ...]:
        """Shape of one cloud's dense grid of (X, Y, Z) voxels."""

    @abstractmethod
    def oracle(self, points: Sequence[Sequence[float]]) -> list[float]:
        """What a voxel stores, in float64, for the (3 + F) values of each of its points, in order."""


class CellReduction(ReductionKind):
    """A reduction that reads no features: one number per voxel. Its CUDA header adds points to the grid."""

    def dense_shape(self, shape: tuple[int, int, int], features: int, max_points: int) -> tuple[int, ...]:
        """(X, Y, Z)."""
        return shape

    @abstractmethod
    def fill(self, out: NDArray[Any], cell: NDArray[Any], shape: tuple[int, int, int]) -> None:
        """Write the dense grids of B clouds into `out` (B, ...).

        Args:
            out: of `dtype`, contiguous, with any contents.
            cell: (M,) int64 number of each placed point's voxel in the (B, X, Y, Z) grid.
            shape: X, Y, Z.
        """


class PointReduction(ReductionKind):
    """A reduction that reads the points of each occupied voxel."""

    reads_features = True

    @abstractmethod
    def reduce(self, points: PlacedPoints) -> Tensor:
        """(V, ...) float32: what each occupied voxel stores."""

    @abstractmethod
    def scatter(self, out: Tensor, cell: Tensor, values: Tensor, cells: int) -> None:
        """Write (V, ...) values into the cleared dense grids `out` (B, ...) of `cells` voxels each.

        `cell` is the (V,) int64 number of each occupied voxel in the (B, X, Y, Z) grid.
        """


class FeatureReduction(PointReduction):
    """A reduction of each feature to one float32. Its CUDA header combines the terms of points."""

    needs_features = True
    term_bytes = 8  # size of `Term` in its CUDA header

    def dense_shape(self, shape: tuple[int, int, int], features: int, max_points: int) -> tuple[int, ...]:
        """(F, X, Y, Z)."""
        return (features, *shape)

    def scatter(self, out: Tensor, cell: Tensor, values: Tensor, cells: int) -> None:
        """Write (V, F) values into (B, F, X, Y, Z)."""
        out.view(-1, values.shape[1], cells)[cell // cells, :, cell % cells] = values


def columns(points: Sequence[Sequence[float]]) -> list[list[float]]:
    """The values of each feature of points (3 + F), as floats."""
    return [[float(value) for value in feature] for feature in list(zip(*points, strict=True))[3:]]


def fixed_point(values: Tensor, fraction_bits: int) -> Tensor:
    """float32 -> int64 multiples of 2**-fraction_bits, rounded to nearest even, saturating (see FIXED_BITS)."""
    limit = 2.0 ** (FIXED_BITS - fraction_bits)
    return (values.clamp(-limit, limit) * 2.0**fraction_bits).round().long()


def saturates(values: Tensor, fraction_bits: int) -> Tensor:
    """Which values are clamped by `fixed_point`."""
    return values.abs() > 2.0 ** (FIXED_BITS - fraction_bits)


def key_of_float(values: Tensor) -> Tensor:
    """float32 -> int32 in the same order, -0 before +0; on the bits, it is its own inverse."""
    import torch

    bits = values.contiguous().view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def float_of_key(keys: Tensor) -> Tensor:
    """The inverse of `key_of_float`."""
    import torch

    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).view(torch.float32)


def greatest_keys(keys: Tensor, points: PlacedPoints) -> Tensor:
    """(V, F) int32: the greatest of the (M, F) int32 keys of each voxel's points."""
    import torch

    least = torch.iinfo(torch.int32).min
    greatest = keys.new_full((len(points.count), keys.shape[1]), least)
    return greatest.scatter_reduce_(0, points.voxel[:, None].expand_as(keys), keys, "amax")
