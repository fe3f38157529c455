"""Depth as 12-bit codes."""

import numpy as np
import pytest

from robocache_ros.formats.statistics import Histogram
from robocache_ros.formats.video import depth_codes, depth_stats, depths_of_codes


@pytest.mark.parametrize(
    ("metres", "code"),
    [
        (0.01, 0),  # the ends of the range
        (10.0, 4095),
        (1.0, 755),  # log(4.5 / 3.51) / log(13.5 / 3.51) of 4095
        (0.0, 0),  # outside of it, or missing
        (0.005, 0),
        (12.0, 4095),
        (np.nan, 0),
        (np.inf, 4095),
        (-np.inf, 0),
    ],
)
def test_depth_in_metres_and_millimetres(metres, code):
    assert depth_codes(np.array([[metres]], np.float32), "m").tolist() == [[code]]
    assert depth_codes(np.array([[metres * 1000]], np.float32), "mm").tolist() == [[code]]


@pytest.mark.parametrize(("unit", "per_metre"), [("mm", 1000), ("m", 1)])
def test_a_depth_comes_back_within_half_a_step(unit, per_metre):
    metres = np.arange(10, 10_001) / 1000
    error = np.abs(depths_of_codes(unit)[depth_codes(metres * per_metre, unit)] / per_metre - metres)
    assert (error <= 1.65e-4 * (metres + 3.5)).all()  # half of log(13.5 / 3.51) / 4095, and a rounding


def test_statistics_do_not_include_missing_depths():
    depths = np.array([[0, 1000, 2000, np.nan]])
    codes = Histogram([[0] * 4096])
    codes.add_values(depth_codes(depths, "mm"))
    stats = depth_stats(codes, "mm")
    assert stats["count"] == [1]
    assert np.ravel([stats[name] for name in ("min", "mean", "max")]) == pytest.approx([1000, 1500, 2000], abs=1)


def test_images_without_any_depth_have_the_statistics_of_the_first_code():
    codes = Histogram([[0] * 4096])
    codes.add_values(np.zeros((2, 2), np.uint16))
    assert np.ravel(depth_stats(codes, "m")["mean"]) == pytest.approx([0.01])
