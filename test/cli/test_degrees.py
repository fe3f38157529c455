"""A yaw in degrees, from the recording to the dataset."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from robocache_ros.bags.write import write_bag
from robocache_ros.datasets import open_dataset
from test.cli.conftest import Finished

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000


@pytest.mark.parametrize(("low", "rate_hz"), [(0, 50), (-180, 50), (0, 200)], ids=["0 to 360", "-180 to 180", "faster"])
def test_a_yaw_in_degrees_crosses_the_wrap_and_not_the_whole_range(
    robocache: Callable[..., Finished], tmp_path: Path, low: float, rate_hz: int
) -> None:
    """A turn of 60 deg a second, sampled at 20 Hz from 10 deg before the wrap."""
    truth = lambda seconds: (low + 350 + 60 * seconds - low) % 360 + low  # noqa: E731
    messages = [
        ("/yaw", START_NS + 50 * k * MS, b"\0\1\0\0" + struct.pack("<III4xd", 0, 0, 1, truth(0.05 * k)))
        for k in range(40)
    ]
    bag = write_bag(tmp_path / "turn", {"/yaw": "std_msgs/msg/Float64MultiArray"}, messages)
    yaw = {"topic": "/yaw", "type": "std_msgs/msg/Float64MultiArray", "dim": 1, "align": "angle", "unit": "deg"}
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump({"robocache": 1, "rate_hz": 50, "actions": "none", "streams": {"yaw": yaw}}))

    done = robocache("export", bag, "--spec", spec, "--out", tmp_path / "out", "--format", "mcap")

    assert done.code == 0
    sample = open_dataset("mcap", tmp_path / "out", target_hz=rate_hz)[0]
    ages_s = (sample["tick_ns"].numpy() - START_NS) / 1e9
    between = ages_s < 1.95  # later ticks hold the last sample
    apart = (sample["fused"].numpy()[:, 0] - truth(ages_s) + 180) % 360 - 180
    assert np.abs(apart[between]).max() < 1e-3  # the wrap, in float32
    assert low <= sample["fused"].min()
    assert sample["fused"].max() <= low + 360
