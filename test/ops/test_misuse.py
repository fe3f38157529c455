"""Arguments of a wrong kind, such as arrays where tensors belong: refused by name, with what is accepted."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robocache_ros import RoboCacheError
from robocache_ros.ops import (
    Stream,
    blend,
    convert_image,
    fuse,
    normalize_image,
    resample_trajectories,
    voxelize_cloud_bytes,
    voxelize_depth,
    voxelize_pointcloud,
)

TIMES = torch.arange(10)
GRID = {"grid_min": (-1, -1, -1), "voxel_size": 0.1, "grid_size": (20, 20, 20)}
FIELDS = [SimpleNamespace(name=name, offset=4 * n, datatype=7, count=1) for n, name in enumerate("xyzi")]
CALLS = {
    resample_trajectories: {
        "source": torch.randn(2, 10, 4), "source_times": TIMES, "target_times": TIMES,
        "lengths": torch.tensor([10, 10]), "out": torch.empty(2, 10, 4), "method": "linear", "max_gap": 5, "max_age": 5,
    },
    fuse: {
        "streams": [Stream(torch.randn(2, 10, 4), TIMES)], "target_times": TIMES, "dtype": torch.float32,
        "out": torch.empty(2, 10, 4),
    },
    blend: {
        "source": torch.randn(9, 4), "lower": torch.tensor([1]), "upper": torch.tensor([2]),
        "weight": torch.tensor([0.5]), "method": "linear",
    },
    voxelize_pointcloud: {
        **GRID, "points": torch.rand(2, 10, 4), "mode": "mean", "lengths": torch.tensor([10, 10]), "fraction_bits": 20,
        "out": torch.empty(2, 1, 20, 20, 20),
    },
    voxelize_cloud_bytes: {
        **GRID, "data": torch.zeros(160, dtype=torch.uint8), "width": 10, "height": 1, "point_step": 16,
        "row_step": 160, "fields": FIELDS, "transform": torch.eye(4), "features": ["i"], "mode": "mean",
    },
    voxelize_depth: {
        **GRID, "data": torch.zeros(32, dtype=torch.uint8), "encoding": "16UC1", "width": 4, "height": 4, "step": 8,
        "camera": (3, 3, 2, 2), "color": torch.zeros(48, dtype=torch.uint8), "color_encoding": "rgb8",
        "color_step": 12, "features": ["r"], "mode": "max",
    },
    convert_image: {
        "data": torch.zeros(48, dtype=torch.uint8), "encoding": "rgb8", "width": 4, "height": 4, "step": 12,
        "size": (2, 2), "crop": (0, 0, 4, 4), "resize": "area", "normalize": "imagenet", "dtype": torch.float32,
        "out": torch.empty(3, 2, 2),
    },
    normalize_image: {
        "image": torch.zeros(3, 4, 4, dtype=torch.uint8), "normalize": "imagenet", "dtype": torch.float32,
    },
}  # fmt: skip
ARGUMENTS = [pytest.param(call, name, id=f"{call.__name__}-{name}") for call in CALLS for name in CALLS[call]]
NEVER = [
    *(object(), -1.5, "x", [object()], [1j, 1j], torch.zeros(2, 3, dtype=torch.complex64)),
    *(torch.zeros(2, 3).to_sparse(), torch.zeros(2, 3, device="meta")),
]


@pytest.mark.parametrize(("call", "name"), ARGUMENTS)
def test_what_it_cannot_be_is_refused_by_name(call, name):
    call(**CALLS[call])
    for value in NEVER:
        with pytest.raises(RoboCacheError, match=rf"^{name}\b|^{name[:-1]}\b") as caught:
            call(**{**CALLS[call], name: value})
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize("value", [np.zeros((2, 10, 4), np.float32), [[[0.0]]], None], ids=["array", "list", "None"])
def test_an_array_in_place_of_a_tensor_is_an_error_that_names_the_conversion(value):
    message = "source: expected a tensor, got .*; convert an array or a list with torch.as_tensor"
    with pytest.raises(RoboCacheError, match=message):
        resample_trajectories(value, TIMES, TIMES)
    with pytest.raises(RoboCacheError, match=r"streams\[1\].data: expected a tensor, got"):
        fuse([Stream(torch.zeros(2, 10, 4), TIMES), (value, TIMES)], TIMES)
    with pytest.raises(RoboCacheError, match=r"target_times: expected a tensor"):
        fuse([Stream(torch.zeros(2, 10, 4), TIMES)], value)


@pytest.mark.parametrize("limit", [5, 5.0, np.float32(5), np.int16(5), torch.tensor(5), torch.tensor(5.0)])
def test_a_limit_is_a_number_of_any_kind(limit):
    stream = Stream(torch.randn(2, 10, 4), TIMES * 6)
    got, expected = (fuse([stream._replace(max_gap=gap)], TIMES) for gap in (limit, 5))
    assert torch.equal(got.valid, expected.valid)


def test_points_may_want_a_gradient():
    voxels = voxelize_pointcloud(torch.rand(50, 4, requires_grad=True), mode="mean", **GRID)
    assert not voxels.grid.requires_grad
