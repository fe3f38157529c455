"""Voxels: cases worked by hand, the float64 reference, and what is refused."""

import numpy as np
import pytest
import torch

from robocache_ros import RoboCacheError
from robocache_ros.ops import voxelize_pointcloud
from robocache_ros.reductions import REDUCTIONS

UNIT = ((0, 0, 0), 1.0, (2, 2, 2))
NAN, INF = float("nan"), float("inf")


def cloud(*rows):
    return torch.tensor(rows, dtype=torch.float32)


def occupied(grid):
    return torch.nonzero(grid).tolist()


def test_a_point_is_in_the_voxel_that_its_coordinates_floor_to():
    points = cloud((0.5, 1.5, 0), (1.999, 0, 1))
    assert occupied(voxelize_pointcloud(points, *UNIT).grid) == [[0, 1, 0], [1, 0, 1]]


def test_a_face_belongs_to_the_voxel_above_it_and_the_end_of_the_grid_to_none():
    voxels = voxelize_pointcloud(cloud((1, 1, 1), (2, 0, 0), (0, 0, 2)), *UNIT)
    assert occupied(voxels.grid) == [[1, 1, 1]]
    assert voxels.outside == 2


def test_a_point_a_subnormal_below_the_grid_is_outside():
    voxels = voxelize_pointcloud(cloud((-1e-45, 0, 0), (-0.0, 0, 0)), *UNIT)
    assert (int(voxels.outside), int(voxels.grid.sum())) == (1, 1)


def test_the_index_is_a_division_rounded_to_float32_not_a_product_with_the_reciprocal():
    size = np.float32(0.7)
    edge = next(
        k for k in range(1, 1000) if np.floor((k * size) / size) != np.floor((k * size) * (np.float32(1) / size))
    )
    points = cloud((float(edge * size), 0, 0))
    voxels = voxelize_pointcloud(points, (0, 0, 0), float(size), (1000, 1, 1))
    assert occupied(voxels.grid) == [[int(np.floor((edge * size) / size)), 0, 0]]


def test_points_that_are_not_finite_and_points_outside_are_counted_not_placed():
    points = cloud((NAN, 0, 0), (0, INF, 0), (0, 0, -INF), (5, 0, 0), (-5, 0, 0), (3e38, 0, 0), (0, 0, 0), (NAN, 9, 9))
    voxels = voxelize_pointcloud(points, *UNIT, "count")
    assert (int(voxels.nonfinite), int(voxels.outside), int(voxels.grid.sum())) == (4, 3, 1)


@pytest.mark.parametrize("size", [2, 2.0, np.float32(2), (2, 2, 2), np.full(3, 2.0), torch.tensor([2.0, 2, 2])])
def test_a_voxel_s_size_is_a_number_or_three(size):
    points = torch.rand(20, 3) * 4
    wanted = voxelize_pointcloud(points, (0, 0, 0), (2.0, 2.0, 2.0), (2, 2, 2), "count").grid
    assert torch.equal(voxelize_pointcloud(points, (0, 0, 0), size, (2, 2, 2), "count").grid, wanted)


def test_count_counts_and_occupancy_does_not():
    points = cloud((0, 0, 0), (0.5, 0, 0), (1, 0, 0))
    assert voxelize_pointcloud(points, *UNIT, "count").grid[:, 0, 0].tolist() == [2, 1]
    assert voxelize_pointcloud(points, *UNIT, "occupancy").grid[:, 0, 0].tolist() == [1, 1]


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


@pytest.mark.parametrize("mode", [name for name in REDUCTIONS if REDUCTIONS[name].reads_features])
def test_a_feature_that_is_not_finite_refuses_its_point(mode):
    points = cloud((0, 0, 0, 1), (0, 0, 0, NAN), (0, 0, 0, INF))
    voxels = voxelize_pointcloud(points, *UNIT, mode, max_points=3 if REDUCTIONS[mode].needs_max_points else None)
    assert voxels.nonfinite == 2


def test_a_nan_in_a_feature_that_is_not_read_does_not_refuse_the_point():
    assert voxelize_pointcloud(cloud((0, 0, 0, NAN)), *UNIT, "count").grid.sum() == 1


@pytest.mark.parametrize("mode", REDUCTIONS)
@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (0, 5, 4)])
def test_no_points_give_an_empty_grid(mode, shape):
    extra = {"max_points": 2 if REDUCTIONS[mode].needs_max_points else None}
    voxels = voxelize_pointcloud(torch.zeros(shape), *UNIT, mode, **extra)
    assert not voxels.grid.any()
    assert voxels.grid.shape[: len(shape) - 2] == shape[:-2]
    assert len(voxelize_pointcloud(torch.zeros(shape), *UNIT, mode, sparse=True, **extra).coordinates) == 0


def test_rows_may_be_strided_and_start_anywhere():
    storage = torch.rand(40, 7) * 2
    view = storage[3::2, 2:6]
    dense = voxelize_pointcloud(view.contiguous(), *UNIT, "mean").grid
    assert torch.equal(voxelize_pointcloud(view, *UNIT, "mean").grid, dense)


@pytest.mark.parametrize("mode", REDUCTIONS)
def test_out_is_cleared_written_and_returned(mode):
    points = torch.rand(9, 4) * 3
    extra = {"max_points": 2 if REDUCTIONS[mode].needs_max_points else None}
    wanted = voxelize_pointcloud(points, *UNIT, mode, **extra).grid
    out = torch.full_like(wanted, 7)
    assert voxelize_pointcloud(points, *UNIT, mode, out=out, **extra).grid is out
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
    arguments = {
        "points": torch.zeros(4, 3),
        "grid_min": (0, 0, 0),
        "voxel_size": 1.0,
        "grid_size": (2, 2, 2),
        **change,
    }
    with pytest.raises(RoboCacheError) as caught:
        voxelize_pointcloud(**arguments)
    assert all(word in str(caught.value) for word in words), str(caught.value)
