"""Point clouds of a fixed size from voxel grids."""

import numpy as np
import pytest
import torch

from robocache_ros import RoboCacheError
from robocache_ros.ops import fixed_size_cloud, voxelize_pointcloud

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def by_hand(grid, count):
    """The same, with a loop over the voxels of one (F, X, Y, Z) grid."""
    points = [row for row in grid.reshape(len(grid), -1).T.numpy() if row.view(np.uint32).any()]
    chosen = [points[i * len(points) // count] for i in range(count)] if len(points) > count else points
    rows = np.zeros((count, len(grid)), np.float32)
    rows[: len(chosen)] = np.array(chosen).reshape(-1, len(grid))
    return rows, len(chosen)


def grid_of(share, seed=0, features=4):
    random = torch.Generator().manual_seed(seed)
    occupied = torch.rand(1, 5, 6, 7, generator=random) < share
    return torch.where(occupied, torch.randn(features, 5, 6, 7, generator=random), 0.0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("count", [1, 8, 40, 300])
def test_it_is_that_of_a_loop_over_the_voxels(device, share, count):
    grid = grid_of(share)
    points, number = fixed_size_cloud(grid.to(device), count)
    expected, chosen = by_hand(grid, count)
    assert points.cpu().numpy().tobytes() == expected.tobytes()
    assert int(number) == chosen


@pytest.mark.parametrize("device", DEVICES)
def test_grids_of_several_ticks_are_independent(device):
    grids = torch.stack([grid_of(0.1, 1), grid_of(0.0), grid_of(0.9, 2)])
    points, numbers = fixed_size_cloud(grids.to(device), 16)
    assert points.shape == (3, 16, 4)
    for grid, rows, number in zip(grids, points.cpu(), numbers.tolist(), strict=True):
        expected, chosen = by_hand(grid, 16)
        assert (rows.numpy().tobytes(), number) == (expected.tobytes(), chosen)


def test_the_means_of_the_coordinates_are_the_points_of_a_cloud():
    cloud = torch.tensor([[0.1, 0.1, 0.1], [0.3, 0.1, 0.1], [1.5, 0.5, 0.5]])
    features = torch.cat([cloud, cloud], dim=1)
    grid = voxelize_pointcloud(features, (0, 0, 0), 1.0, (2, 2, 2), "mean").grid
    points, number = fixed_size_cloud(grid, 4)
    assert int(number) == 2
    np.testing.assert_allclose(points.numpy(), [[0.2, 0.1, 0.1], [1.5, 0.5, 0.5], [0, 0, 0], [0, 0, 0]], atol=1e-6)


@pytest.mark.parametrize(
    ("grid", "count", "message"),
    [
        (torch.zeros(2, 3, 4), 8, r"grid: expected \(\.\.\., F, X, Y, Z\) float32 .* \(2, 3, 4\)"),
        (torch.zeros(1, 2, 3, 4, dtype=torch.uint8), 8, "grid: .* torch.uint8"),
        (torch.zeros(1, 2, 3, 4), 0, "count: 0 is below 1"),
        (torch.zeros(1, 2, 3, 4), "8", "count: expected an integer"),
    ],
)
def test_what_is_not_a_grid_of_features_is_refused(grid, count, message):
    with pytest.raises(RoboCacheError, match=message):
        fixed_size_cloud(grid, count)
