"""Laser scans: points for a voxel grid, or their ranges as numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from robocache_ros.decode import DecodeError, make_decoder
from robocache_ros.decode.payloads import CloudPayload
from robocache_ros.engine.backends.media import voxel_tensor
from robocache_ros.errors import RoboCacheError

SCAN = "sensor_msgs/msg/LaserScan"
GRID = {"origin_m": [-2, -2, -1], "size_m": 1.0, "shape": [4, 4, 2]}
VALUES: dict[str, Any] = {
    "angle_min": -math.pi / 2,
    "angle_increment": math.pi / 2,
    "range_min": 0.5,
    "range_max": 10.0,
    "ranges": np.array([1.25, 1.5, 1.75], np.float32),
}


def points(payload: CloudPayload) -> np.ndarray:
    return payload.data.view(np.float32).reshape(payload.width, -1)


def decoded(stream_of: Any, cdr: Any, **values: Any) -> CloudPayload:
    value = make_decoder(stream_of(SCAN, voxels=GRID)).decode_cdr(cdr(SCAN, {**VALUES, **values})).value
    assert isinstance(value, CloudPayload)
    return value


def test_the_points_of_a_scan_lie_at_its_angles(stream_of: Any, cdr: Any) -> None:
    found = points(decoded(stream_of, cdr))
    # The angles are float32 on the wire; 1e-6 of 2 m is their rounding.
    np.testing.assert_allclose(found, [[0, -1.25, 0], [1.5, 0, 0], [0, 1.75, 0]], atol=2e-6)


@pytest.mark.parametrize("far", [0.1, 11.0, math.inf, math.nan, -1.0])
def test_a_range_outside_of_the_limits_is_no_point(stream_of: Any, cdr: Any, far: float) -> None:
    found = points(decoded(stream_of, cdr, ranges=np.array([1, far, 1], np.float32)))
    assert np.isnan(found[1, :2]).all()
    assert np.isfinite(found[[0, 2]]).all()


def test_intensities_are_a_field_of_the_points(stream_of: Any, cdr: Any) -> None:
    payload = decoded(stream_of, cdr, intensities=np.array([7, 8, 9], np.float32))
    assert [field.name for field in payload.fields] == ["x", "y", "z", "intensity"]
    assert points(payload)[:, 3].tolist() == [7, 8, 9]


def test_a_scan_fills_the_voxels_of_its_points(stream_of: Any, cdr: Any) -> None:
    stream = stream_of(SCAN, voxels=GRID)
    grid = np.asarray(voxel_tensor(decoded(stream_of, cdr), stream))
    assert int(grid.sum()) == 3


def test_without_a_grid_a_scan_is_its_ranges(stream_of: Any, cdr: Any) -> None:
    sample = make_decoder(stream_of(SCAN, field="ranges", dim=3, align="hold")).decode_cdr(cdr(SCAN, VALUES))
    assert isinstance(sample.value, np.ndarray)
    assert sample.value.tolist() == [1.25, 1.5, 1.75]


def test_a_scan_without_field_or_grid_is_refused(stream_of: Any) -> None:
    with pytest.raises(RoboCacheError, match="field: missing"):
        stream_of(SCAN)


def test_a_scan_whose_angles_are_not_finite_is_dropped(stream_of: Any, cdr: Any) -> None:
    with pytest.raises(DecodeError, match="angle_min, angle_increment"):
        decoded(stream_of, cdr, angle_increment=math.nan)
