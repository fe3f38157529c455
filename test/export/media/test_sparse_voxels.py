"""Voxel grids as coordinates and values."""

import numpy as np
import pytest

from robocache_ros.formats.lerobot.arrays import to_dense, to_sparse


def test_the_voxels_that_are_not_empty_are_listed_in_the_order_of_the_grid():
    grid = np.zeros((3, 4, 5), np.uint8)
    grid[2, 0, 1], grid[0, 3, 4] = 1, 7
    coordinates, values = to_sparse(grid)
    assert coordinates.dtype == np.uint8
    assert coordinates.tolist() == [[0, 3, 4], [2, 0, 1]]
    assert values.tolist() == [[7], [1]]


def test_a_voxel_with_one_feature_that_is_not_zero_has_all_features():
    grid = np.zeros((2, 300, 1, 1), np.float32)
    grid[1, 299], grid[0, 5] = -0.5, np.float32(-0.0)  # minus zero has a bit that is not zero
    coordinates, values = to_sparse(grid)
    assert coordinates.dtype == np.uint16
    assert coordinates.tolist() == [[5, 0, 0], [299, 0, 0]]
    assert values.tolist() == [[-0.0, 0.0], [0.0, -0.5]]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int32])
@pytest.mark.parametrize("shape", [(4, 5, 6), (3, 4, 5, 6), (2, 1, 1, 257)])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_a_grid_comes_back_bit_for_bit(dtype, shape, share):
    rng = np.random.default_rng(1)
    grid = (rng.normal(size=shape) * 9 * (rng.random(shape) < share)).astype(dtype)
    back = to_dense(*to_sparse(grid), shape)
    assert back.dtype == grid.dtype
    assert back.tobytes() == grid.tobytes()
