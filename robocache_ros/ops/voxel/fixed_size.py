"""Point clouds of a fixed size from voxel grids: one point per voxel, as policies on point clouds need them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.checks import checked_integer
from robocache_ros.ops.tensor_checks import check_tensor, described


class FixedSizeCloud(NamedTuple):
    """N points of F features, in the order of their voxels; later rows are zero."""

    points: Tensor  # (..., N, F) float32
    num_points: Tensor  # (...) int64, the number of points, at most N


def fixed_size_cloud(grid: Tensor, count: Any) -> FixedSizeCloud:
    """Return the features of the voxels that are not empty, as a cloud of a fixed number of points.

    With the features x, y, z and the reduction mean, these are the points of the cloud, averaged in each voxel. Of more
    than N voxels, those number floor(i * voxels / N) are used, i = 0 ... N - 1, in the order of x, y, z. It copies
    values: CPU and CUDA give the same bits. On CUDA it does not synchronise.

    Args:
        grid: (..., F, X, Y, Z) float32; a voxel is empty if all bits of its features are zero.
        count: N, from 1.

    Raises:
        RoboCacheError: a wrong shape, dtype or count.
    """
    count = checked_integer("count", count)
    if count < 1:
        raise RoboCacheError(f"count: {count} is below 1; give the number of points of a cloud")
    check_tensor("grid", grid)
    if grid.dtype != torch.float32 or grid.ndim < 4 or not grid.numel():
        raise RoboCacheError(f"grid: expected (..., F, X, Y, Z) float32 and not empty, got {described(grid)}")
    cells = grid.contiguous().flatten(-3)
    until = (cells.view(torch.int32) != 0).any(-2).cumsum(-1)  # occupied voxels up to and including each one
    total = until[..., -1:]
    numbers = torch.arange(count, device=grid.device).expand(*total.shape[:-1], count)
    ranks = torch.where(total > count, numbers * total // count, numbers)
    places = torch.searchsorted(until, ranks + 1).clamp(max=cells.shape[-1] - 1)
    points = cells.gather(-1, places[..., None, :].expand(*cells.shape[:-1], count)).transpose(-1, -2)
    points = torch.where((numbers < total)[..., None], points, 0.0)
    return FixedSizeCloud(points.contiguous(), total.squeeze(-1).clamp(max=count))
