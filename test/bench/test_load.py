from __future__ import annotations

import numpy as np
import pytest

from robocache_ros.bench.load import Load
from robocache_ros.bench.processes import Columns, percentiles, slope_per_minute
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout


def test_load_is_that_of_a_robot_with_forty_columns() -> None:
    spec = load_spec(Load().spec(delay_ms=3.0))

    assert Layout(spec).width == 40
    assert [s.kind for s in spec.media] == ["image", "image", "cloud"]


def test_sensor_without_a_rate_is_left_out() -> None:
    load = Load(cameras=0, cloud_hz=0, imu_hz=0)

    assert [sensor.name for sensor in load.sensors] == ["joints", "pose"]


def test_queue_holds_what_comes_in_a_fifth_of_a_second() -> None:
    spec = load_spec(Load(joints_hz=500).spec(delay_ms=3.0))

    assert spec.stream("joints_position").qos.depth == 100


def test_rows_beyond_the_capacity_are_counted() -> None:
    columns = Columns(("a", "b"), 2)
    for row in range(3):
        columns.add(row, -row)

    assert columns.lost == 1
    assert columns.to_dict()["b"].tolist() == [0, -1]


def test_percentiles_of_nothing_are_none() -> None:
    assert percentiles([]) is None


def test_percentiles_say_median_tail_and_worst() -> None:
    found = percentiles(np.arange(101))

    assert found == {"p50": 50.0, "p99": 99.0, "max": 100.0, "count": 101.0}


def test_growth_is_that_of_a_minute() -> None:
    assert slope_per_minute([10.0, 20.0, 30.0], [1.0, 2.0, 3.0]) == pytest.approx(6.0)
