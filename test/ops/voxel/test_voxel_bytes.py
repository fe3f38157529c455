"""Voxels from a PointCloud2's bytes: its layouts, its transform, and that no read leaves the bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros import RoboCacheError
from robocache_ros.decode import PointField
from robocache_ros.ops import voxelize_cloud_bytes, voxelize_pointcloud

XYZ = tuple(PointField(name, 4 * i, 7, 1) for i, name in enumerate("xyz"))
GRID = {"grid_min": (0, 0, 0), "voxel_size": 1.0, "grid_size": (4, 4, 4)}
DATATYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8"]


def layout(points, height=1, padding=0):
    """Points (N, 3) as tightly packed float32, in `height` rows."""
    rows = np.asarray(points, np.float32).reshape(height, -1).view(np.uint8)
    data = np.pad(rows, ((0, 0), (0, padding)), constant_values=255)
    width = len(points) // height
    shape = {"width": width, "height": height, "point_step": 12, "row_step": data.shape[1], "fields": XYZ}
    return torch.from_numpy(data.reshape(-1)), shape


def test_bytes_give_the_grid_of_the_points_in_them():
    points = np.random.default_rng(0).uniform(-1, 5, (60, 3)).astype(np.float32)
    wanted = voxelize_pointcloud(torch.from_numpy(points), *GRID.values(), "count")
    for height, padding in ((1, 0), (6, 0), (6, 5)):
        data, shape = layout(points, height, padding)
        got = voxelize_cloud_bytes(data, **shape, **GRID, mode="count")
        assert torch.equal(got.grid, wanted.grid)
        assert torch.equal(got.tally, wanted.tally)


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("kind", DATATYPES)
def test_every_datatype_is_read_at_any_offset_in_both_byte_orders(kind, big_endian):
    size = np.dtype(kind).itemsize
    data = np.zeros(3 * size + 3, np.uint8)
    np.ndarray((3,), (">" if big_endian else "<") + kind, data, 1)[:] = [3, 0, 2]
    fields = [PointField(name, 1 + i * size, DATATYPES.index(kind) + 1, 1) for i, name in enumerate("xyz")]
    shape = {"width": 1, "height": 1, "point_step": len(data), "row_step": len(data), "fields": fields}
    voxels = voxelize_cloud_bytes(torch.from_numpy(data), **shape, **GRID, big_endian=big_endian)
    assert torch.nonzero(voxels.grid).tolist() == [[3, 0, 2]]


def test_points_are_transformed_to_the_grid_s_frame_first():
    data, shape = layout([(1.5, 0.5, 2.5)])
    quarter_turn = torch.tensor([[0.0, -1, 0, 2], [1, 0, 0, 0], [0, 0, 1, -2], [0, 0, 0, 1]])
    for transform in (quarter_turn, quarter_turn[:3]):
        voxels = voxelize_cloud_bytes(data, **shape, **GRID, transform=transform)
        assert torch.nonzero(voxels.grid).tolist() == [[1, 1, 0]]


def test_features_are_fields_by_name_and_x_y_z_the_transformed_ones():
    points = np.array([(0.5, 0.5, 0.5, 7), (0.75, 0.5, 0.5, 9)], np.float32)
    fields = [*XYZ, PointField("intensity", 12, 7, 1)]
    shape = {"width": 2, "height": 1, "point_step": 16, "row_step": 32, "fields": fields}
    shift = torch.tensor([[1.0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]])
    data = torch.from_numpy(points.view(np.uint8).reshape(-1))
    voxels = voxelize_cloud_bytes(data, **shape, **GRID, transform=shift, mode="mean", features=("intensity", "x"))
    assert voxels.grid[:, 1, 0, 0].tolist() == [8, 1.625]


def test_a_double_beyond_float32_is_not_finite():
    data = torch.from_numpy(np.array([1e300, 0, 0]).view(np.uint8))
    fields = [PointField(name, 8 * i, 8, 1) for i, name in enumerate("xyz")]
    voxels = voxelize_cloud_bytes(data, width=1, height=1, point_step=24, row_step=24, fields=fields, **GRID)
    assert voxels.nonfinite == 1


def test_the_last_row_needs_no_padding_and_an_empty_cloud_no_bytes():
    data, shape = layout(np.zeros((4, 3)), height=2, padding=9)
    assert voxelize_cloud_bytes(data[:-9], **shape, **GRID, mode="count").grid[0, 0, 0] == 4
    empty = {**shape, "width": 0}
    assert not voxelize_cloud_bytes(data[:0], **empty, **GRID).grid.any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"width": 5}, ["data", "48", "60", "truncated"]),
        ({"height": 2}, ["data", "truncated"]),
        ({"height": 2, "row_step": 40}, ["row_step", "40"]),
        ({"point_step": 11}, ["fields.z", "8..12", "11"]),
        ({"point_step": 0}, ["point_step 0"]),
        ({"width": -1}, ["width -1"]),
        ({"fields": XYZ[:2]}, ["coordinates", "'z'", "x, y"]),
        ({"fields": [*XYZ[:2], PointField("z", 8, 9, 1)]}, ["'z'"]),
        ({"fields": [*XYZ[:2], PointField("z", 0, 7, 3)]}, ["'z'"]),
        ({"fields": [*XYZ[:2], PointField("z", -4, 7, 1)]}, ["fields.z", "-4"]),
        ({"fields": [*XYZ, PointField("t", 8, 8, 1)]}, ["fields.t", "8..16"]),
        ({"mode": "mean"}, ["mean", "features"]),
        ({"mode": "mean", "features": ("ring",)}, ["features", "'ring'"]),
        ({"mode": "mean", "features": ("x",) * 17}, ["features", "17", "16"]),
        ({"transform": torch.eye(3)}, ["transform", "(3, 3)"]),
        ({"transform": torch.eye(4, dtype=torch.float64)}, ["transform", "float64"]),
        ({"transform": torch.full((3, 4), float("nan"))}, ["transform", "finite"]),
        ({"transform": torch.ones(4, 4)}, ["transform", "0, 0, 0, 1"]),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(change, words):
    data, shape = layout(np.zeros((4, 3)))
    with pytest.raises(RoboCacheError) as caught:
        voxelize_cloud_bytes(data, **{**shape, **GRID, **change})
    assert all(word in str(caught.value) for word in words), str(caught.value)


@settings(max_examples=200)
@given(st.data())
def test_any_layout_is_read_inside_its_bytes_or_refused(data):
    """NumPy checks that each view is inside its buffer: what passes our checks must pass NumPy's."""
    numbers = st.integers(-2, 40)
    nbytes = data.draw(st.integers(0, 200))
    kinds = st.integers(0, 9)
    fields = [PointField(name, data.draw(numbers), data.draw(kinds), data.draw(st.integers(0, 2))) for name in "xyz"]
    shape = {name: data.draw(numbers) for name in ("width", "height", "point_step", "row_step")}
    raw = torch.from_numpy(np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8))
    try:
        voxels = voxelize_cloud_bytes(raw, **shape, fields=fields, **GRID, mode="count")
    except RoboCacheError:
        return
    placed = int(voxels.grid.sum()) + int(voxels.nonfinite) + int(voxels.outside)
    assert placed == shape["width"] * shape["height"]
