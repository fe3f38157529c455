"""Voxels: cases worked by hand, the float64 reference, and what is refused."""

import numpy as np
import pytest
import torch

from robocache_ros import RoboCacheError
from robocache_ros.ops import fixed_size_cloud, voxelize_pointcloud
from robocache_ros.reductions import REDUCTIONS, SPEC_REDUCTIONS

UNIT = ((0, 0, 0), 1.0, (2, 2, 2))
NAN, INF = float("nan"), float("inf")


def cloud(*rows):
    return torch.tensor(rows, dtype=torch.float32)


def occupied(grid):
    return torch.nonzero(grid).tolist()


def kept(mode):
    """The argument of a reduction that keeps points."""
    return {"max_points": 2} if REDUCTIONS[mode].needs_max_points else {}


def test_a_face_belongs_to_the_voxel_above_it_and_the_end_of_the_grid_to_none():
    voxels = voxelize_pointcloud(cloud((1, 1, 1), (2, 0, 0), (0, 0, 2)), *UNIT)
    assert occupied(voxels.grid) == [[1, 1, 1]]
    assert voxels.outside == 2


def test_a_point_a_subnormal_below_the_grid_is_outside():
    voxels = voxelize_pointcloud(cloud((-1e-45, 0, 0), (-0.0, 0, 0)), *UNIT)
    assert (int(voxels.outside), int(voxels.grid.sum())) == (1, 1)


def test_the_index_is_a_division_rounded_to_float32_not_a_product_with_the_reciprocal():
    size = np.float32(0.7)
    edges = np.arange(1, 1000, dtype=np.float32) * size
    edge = edges[np.floor(edges / size) != np.floor(edges * (1 / size))][0]
    voxels = voxelize_pointcloud(cloud((float(edge), 0, 0)), (0, 0, 0), float(size), (1000, 1, 1))
    assert occupied(voxels.grid) == [[int(np.floor(edge / size)), 0, 0]]


@pytest.mark.parametrize("size", [2, 2.0, np.float32(2), (2, 2, 2), np.full(3, 2.0), torch.tensor([2.0, 2, 2])])
def test_a_voxel_s_size_is_a_number_or_three(size):
    points = torch.rand(20, 3) * 4
    wanted = voxelize_pointcloud(points, (0, 0, 0), (2.0, 2.0, 2.0), (2, 2, 2), "count").grid
    assert torch.equal(voxelize_pointcloud(points, (0, 0, 0), size, (2, 2, 2), "count").grid, wanted)


def test_bit_z_modulo_32_of_word_z_over_32_is_voxel_z():
    points = cloud((0, 0, 0), (0, 0, 31), (0, 1, 32), (0, 1, 34))
    bits = voxelize_pointcloud(points, (0, 0, 0), 1, (1, 2, 35), "occupancy_bits").grid
    assert bits.dtype == torch.int32
    assert bits.tolist() == [[[1 - 2**31, 0], [0, 0b101]]]


@pytest.mark.parametrize(("mode", "held"), [("mean", [1.5, -6]), ("max", [2, -5]), ("min", [1, -7])])
def test_features_are_reduced_over_the_points_of_a_voxel_and_0_elsewhere(mode, held):
    points = cloud((0, 0, 0, 1, -5), (0, 0, 0, 2, -7), (1, 1, 1, 8, 8))
    grid = voxelize_pointcloud(points, *UNIT, mode).grid
    assert grid.shape == (2, 2, 2, 2)
    assert grid[:, 0, 0, 0].tolist() == held
    assert grid[:, 1, 1, 1].tolist() == [8, 8]
    assert grid[:, 0, 0, 1].tolist() == [0, 0]


def test_a_mean_is_in_steps_of_the_fixed_point_and_saturates_at_its_range():
    points = cloud((0, 0, 0, 0.3), (1, 0, 0, 300.0), (1, 1, 0, -300))
    voxels = voxelize_pointcloud(points, *UNIT, "mean", fraction_bits=32)
    assert voxels.grid[0, :, 0, 0].tolist() == [pytest.approx(0.3, abs=2**-24), 256]
    assert voxels.grid[0, 1, 1, 0] == -256
    assert voxels.saturated == 2
    coarse = voxelize_pointcloud(points, *UNIT, "mean", fraction_bits=1)
    assert coarse.grid[0, :, 0, 0].tolist() == [0.5, 300]


@pytest.mark.parametrize(("mode", "negative"), [("max", [False, True]), ("min", [True, True])])
def test_negative_zero_is_less_than_zero(mode, negative):
    points = cloud((0, 0, 0, 0.0), (0, 0, 0, -0.0), (1, 0, 0, -0.0))
    grid = voxelize_pointcloud(points, *UNIT, mode).grid
    assert torch.signbit(grid[0, :, 0, 0]).tolist() == negative


@pytest.mark.parametrize("mode", REDUCTIONS)
def test_a_feature_that_is_not_finite_refuses_its_point_where_it_is_read(mode):
    points = cloud((0, 0, 0, 1), (0, 0, 0, NAN), (0, 0, 0, INF))
    assert voxelize_pointcloud(points, *UNIT, mode, **kept(mode)).nonfinite == 2 * REDUCTIONS[mode].reads_features


@pytest.mark.parametrize("mode", REDUCTIONS)
@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (0, 5, 4)])
def test_no_points_give_an_empty_grid(mode, shape):
    voxels = voxelize_pointcloud(torch.zeros(shape), *UNIT, mode, **kept(mode))
    assert not voxels.grid.any()
    assert voxels.grid.shape[: len(shape) - 2] == shape[:-2]
    assert len(voxelize_pointcloud(torch.zeros(shape), *UNIT, mode, sparse=True, **kept(mode)).coordinates) == 0


def test_rows_may_be_strided_and_start_anywhere():
    storage = torch.rand(40, 7) * 2
    view = storage[3::2, 2:6]
    dense = voxelize_pointcloud(view.contiguous(), *UNIT, "mean").grid
    assert torch.equal(voxelize_pointcloud(view, *UNIT, "mean").grid, dense)


@pytest.mark.parametrize("mode", REDUCTIONS)
def test_out_is_cleared_written_and_returned(mode):
    points = torch.rand(9, 4) * 3
    wanted = voxelize_pointcloud(points, *UNIT, mode, **kept(mode)).grid
    out = torch.full_like(wanted, 7)
    assert voxelize_pointcloud(points, *UNIT, mode, out=out, **kept(mode)).grid is out
    assert torch.equal(out, wanted)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"points": torch.zeros(4, 2)}, ["points", "(4, 2)"]),
        ({"points": torch.zeros(4, 3, dtype=torch.float64)}, ["points", "float64"]),
        ({"points": torch.zeros(3, 4).t()}, ["points", "contiguous"]),
        ({"mode": "sum"}, ["mode", "sum", "occupancy"]),
        ({"mode": "mean"}, ["mode", "mean", "features"]),
        ({"mode": "first"}, ["max_points", "None"]),
        ({"max_points": 3}, ["max_points", "3", "first"]),
        ({"mode": "first", "max_points": 0}, ["max_points", "0"]),
        ({"grid_min": (0, 0)}, ["grid_min", "(x, y, z)", "(0, 0)"]),
        ({"grid_min": (0, 0, NAN)}, ["grid_min", "nan"]),
        ({"voxel_size": 0}, ["voxel_size", "0"]),
        ({"voxel_size": (1, 1e-50, 1)}, ["voxel_size", "1e-50"]),
        ({"grid_size": (2, 0, 2)}, ["grid_size", "0"]),
        ({"grid_size": (2048, 2048, 1024)}, ["grid_size", "2**31"]),
        ({"fraction_bits": 41}, ["fraction_bits", "41"]),
        ({"lengths": torch.tensor([1])}, ["lengths", "single"]),
        ({"points": torch.zeros(2, 4, 3), "lengths": torch.tensor([1, 5])}, ["lengths", "5", "4"]),
        ({"points": torch.zeros(2, 4, 3), "lengths": torch.tensor([1])}, ["lengths", "(2,)"]),
        ({"points": torch.zeros(2, 4, 3), "lengths": torch.tensor([1.0, 2.0])}, ["lengths", "float32"]),
        ({"out": torch.zeros(2, 2, 2)}, ["out", "uint8"]),
        ({"sparse": True, "out": torch.zeros(2, 2, 2, dtype=torch.uint8)}, ["out", "sparse"]),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(change, words):
    arguments = {"points": torch.zeros(4, 3), "grid_min": (0, 0, 0), "voxel_size": 1.0, "grid_size": (2, 2, 2)}
    with pytest.raises(RoboCacheError) as caught:
        voxelize_pointcloud(**{**arguments, **change})
    assert all(word in str(caught.value) for word in words), str(caught.value)


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
    batch = voxelize_pointcloud(points, *UNIT, mode, lengths=lengths, **kept(mode))
    for i, length in enumerate(lengths):
        one = voxelize_pointcloud(points[i, :length], *UNIT, mode, **kept(mode))
        assert torch.equal(batch.grid[i], one.grid)
        assert torch.equal(batch.tally[i], one.tally)


def test_a_sparse_batch_has_the_batch_before_x():
    points = cloud((0, 0, 0), (1, 1, 1))[:, None].expand(2, 3, 3).contiguous()
    voxels = voxelize_pointcloud(points, *UNIT, sparse=True)
    assert voxels.coordinates.tolist() == [[0, 0, 0, 0], [1, 1, 1, 1]]


def test_a_sparse_result_has_no_grid():
    with pytest.raises(RoboCacheError, match="sparse"):
        _ = voxelize_pointcloud(torch.zeros(1, 3), *UNIT, sparse=True).grid


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
