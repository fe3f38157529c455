"""Voxels of a LeRobot dataset as coordinates and values, and as clouds of a fixed size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export
from robocache_ros.formats.lerobot.arrays import read_arrays
from robocache_ros.ops import fixed_size_cloud
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions

GRID = {"origin_m": [-0.64, -0.64, 0.4], "size_m": 0.02, "shape": [64, 64, 64]}
CLOUD = {"topic": "/camera/front/points", "type": "sensor_msgs/msg/PointCloud2", "max_age_ms": 200}


@pytest.mark.parametrize(
    ("keys", "dtype", "features"),
    [({}, np.uint8, 1), ({"reduce": "mean", "features": ["x", "y", "z", "intensity"]}, np.float32, 4)],
    ids=["occupancy", "mean"],
)
def test_sparse_voxels_are_the_dense_ones(keys, dtype, features, bags: list[Path], tmp_path: Path) -> None:
    spec = load_spec({"robocache": 1, "actions": "none", "streams": {"voxels": {**CLOUD, "voxels": {**GRID, **keys}}}})
    dense, sparse = (
        export(bags[:1], spec, tmp_path / voxels, DatasetOptions(voxels=voxels)).out for voxels in ("dense", "sparse")
    )
    (ranges, grids), (sparse_ranges, sparse_grids) = (read_arrays(out, "voxels") for out in (dense, sparse))
    assert np.array_equal(ranges, sparse_ranges)
    assert (grids.dtype, grids.shape) == (sparse_grids.dtype, sparse_grids.shape)
    assert grids.tobytes() == sparse_grids.tobytes()
    (file,) = (sparse / "arrays" / "voxels").glob("*/*.parquet")
    row = {name: values[0] for name, values in parquet.read_table(file).to_pydict().items()}
    assert np.array(row["coords"]).tolist() == np.argwhere(grids[0].reshape(-1, 64, 64, 64).any(axis=0)).tolist()
    assert np.array(row["values"], dtype).shape == (len(row["coords"]), features)
    assert json.loads((sparse / "meta" / "robocache.json").read_text())["arrays"]["voxels"]["layout"] == "sparse"


def test_an_episode_without_arrays_reads_as_none(bags: list[Path], tmp_path: Path) -> None:
    spec = load_spec({"robocache": 1, "actions": "none", "streams": {"voxels": {**CLOUD, "voxels": GRID}}})
    out = export(bags[:1], spec, tmp_path / "out", DatasetOptions(voxels="sparse")).out
    ranges, grids = read_arrays(out, "voxels", episode=7)
    assert (ranges.shape, grids.shape) == ((0, 2), (0, 64, 64, 64))


def test_a_stored_cloud_is_that_of_the_frame_on_the_robot(bags: list[Path], tmp_path: Path) -> None:
    mean = {**GRID, "reduce": "mean", "features": ["x", "y", "z", "intensity"]}
    spec = load_spec({"robocache": 1, "actions": "none", "streams": {"cloud": {**CLOUD, "voxels": mean}}})
    out = export(bags[:1], spec, tmp_path / "out", DatasetOptions(points=512, voxels="sparse")).out
    ranges, clouds = read_arrays(out, "cloud")
    with Bag(bags[0]) as bag:
        grids = [grid for part in BagRun(bag, spec).frames() for grid in part.media["cloud"]]
    assert clouds.shape[1:] == (512, 4)
    for (start, stop), cloud in zip(ranges, clouds, strict=True):
        points, number = fixed_size_cloud(grids[start], 512)
        assert points.numpy().tobytes() == cloud.tobytes()
        assert (cloud.any(axis=1).sum(), int(number)) == (512, 512)
        assert np.array_equal(grids[start], grids[stop - 1])


def test_points_need_voxels_with_coordinates(bags: list[Path], tmp_path: Path) -> None:
    spec = load_spec({"robocache": 1, "actions": "none", "streams": {"voxels": {**CLOUD, "voxels": GRID}}})
    with pytest.raises(RoboCacheError, match="points: no stream has voxels with the features x, y, z; add them"):
        export(bags[:1], spec, tmp_path / "out", DatasetOptions(points=512))
    with pytest.raises(RoboCacheError, match="points: -1 is not an integer from 0 to"):
        DatasetOptions(points=-1)
