"""Sparse voxels and batches: the dense grid's voxels, sorted, with the batch before x."""

import pytest
import torch

from robocache_ros import RoboCacheError
from robocache_ros.ops import voxelize_pointcloud
from robocache_ros.reductions import REDUCTIONS, SPEC_REDUCTIONS

UNIT = ((0, 0, 0), 1.0, (2, 2, 2))


def cloud(*rows):
    return torch.tensor(rows, dtype=torch.float32)


def test_first_keeps_the_points_of_lowest_index_and_pads_with_zeros():
    points = cloud((1, 1, 1, 10), (0, 0, 0, 11), (1, 1, 1, 12), (1, 1, 1, 13))
    voxels = voxelize_pointcloud(points, *UNIT, "first", max_points=2, sparse=True)
    assert voxels.coordinates.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert voxels.num_points.tolist() == [1, 3]
    assert voxels.features.tolist() == [[[0, 0, 0, 11], [0, 0, 0, 0]], [[1, 1, 1, 10], [1, 1, 1, 12]]]
    dense = voxelize_pointcloud(points, *UNIT, "first", max_points=2).grid
    assert torch.equal(dense[1, 1, 1], voxels.features[1])
    assert dense.shape == (2, 2, 2, 2, 4)


@pytest.mark.parametrize("mode", SPEC_REDUCTIONS)
def test_sparse_voxels_are_the_dense_grid_s_sorted(mode):
    points = torch.rand(400, 5) * 4 - 1
    grid = ((0, 0, 0), 0.25, (8, 9, 10))
    dense, sparse = (voxelize_pointcloud(points, *grid, mode, sparse=form) for form in (False, True))
    count = voxelize_pointcloud(points, *grid, "count").grid
    assert sparse.coordinates.tolist() == torch.nonzero(count).tolist()
    x, y, z = sparse.coordinates.long().T
    assert torch.equal(sparse.num_points, count[x, y, z])
    assert torch.equal(sparse.tally, dense.tally)
    if SPEC_REDUCTIONS[mode].needs_features:
        assert torch.equal(sparse.features, dense.grid[:, x, y, z].T)


@pytest.mark.parametrize("mode", REDUCTIONS)
def test_a_ragged_batch_is_its_clouds_one_by_one(mode):
    points = torch.rand(3, 50, 4) * 3 - 0.5
    lengths = torch.tensor([50, 0, 20])
    extra = {"max_points": 2 if REDUCTIONS[mode].needs_max_points else None}
    batch = voxelize_pointcloud(points, *UNIT, mode, lengths=lengths, **extra)
    for i, length in enumerate(lengths):
        one = voxelize_pointcloud(points[i, :length], *UNIT, mode, **extra)
        assert torch.equal(batch.grid[i], one.grid)
        assert torch.equal(batch.tally[i], one.tally)


def test_a_sparse_batch_has_the_batch_before_x():
    points = cloud((0, 0, 0), (1, 1, 1))[:, None].expand(2, 3, 3).contiguous()
    voxels = voxelize_pointcloud(points, *UNIT, sparse=True)
    assert voxels.coordinates.tolist() == [[0, 0, 0, 0], [1, 1, 1, 1]]


def test_a_sparse_result_has_no_grid():
    with pytest.raises(RoboCacheError, match="sparse"):
        _ = voxelize_pointcloud(torch.zeros(1, 3), *UNIT, sparse=True).grid
