"""The load of the live benchmark: its sensors, their messages, and the figures of what is measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from robocache_ros.bench.load import Load
from robocache_ros.bench.processes import Columns, percentiles, slope_per_minute
from robocache_ros.decode import make_decoder
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout


def test_load_is_that_of_a_robot_with_forty_columns():
    spec = load_spec(Load().spec(delay_ms=3.0))

    assert Layout(spec).width == 40
    assert [s.kind for s in spec.media] == ["image", "image", "cloud"]


def test_sensor_without_a_rate_is_left_out_and_a_queue_holds_what_comes_in_a_fifth_of_a_second():
    load = Load(cameras=0, cloud_hz=0, imu_hz=0, joints_hz=500)

    assert [sensor.name for sensor in load.sensors] == ["joints", "pose"]
    assert load_spec(load.spec(delay_ms=3.0)).stream("joints_position").qos.depth == 100


def test_rows_beyond_the_capacity_are_counted():
    columns = Columns(("a", "b"), 2)
    for row in range(3):
        columns.add(row, -row)

    assert columns.lost == 1
    assert columns.to_dict()["b"].tolist() == [0, -1]


def test_percentiles_say_median_tail_and_worst_and_growth_is_that_of_a_minute():
    assert percentiles([]) is None
    assert percentiles(np.arange(101)) == {"p50": 50.0, "p99": 99.0, "max": 100.0, "count": 101.0}
    assert slope_per_minute([10.0, 20.0, 30.0], [1.0, 2.0, 3.0]) == pytest.approx(6.0)


LOAD = Load(cameras=1, width=8, height=6, points=10)
STAMP_NS = 1_760_000_000_123_456_789


@pytest.mark.ros
@pytest.mark.parametrize("sensor", LOAD.sensors, ids=lambda sensor: sensor.name)
def test_a_message_has_its_stamp_and_number_and_every_stream_of_it_can_be_decoded(sensor):
    pytest.importorskip("rclpy")
    from rclpy.serialization import deserialize_message

    from robocache_ros.bench.publisher import template
    from robocache_ros.nodes import middleware

    message = template(sensor, LOAD)
    message.stamped(0)
    data = message.stamped(STAMP_NS)

    read: Any = deserialize_message(data, middleware.load_message_class(sensor.type))
    assert (read.header.stamp.sec, read.header.stamp.nanosec) == divmod(STAMP_NS, 10**9)
    assert (int(read.header.frame_id), message.sent) == (1, 2)
    streams = [stream for stream in load_spec(LOAD.spec(delay_ms=3.0)).streams if stream.topic == sensor.topic]
    assert [make_decoder(stream).decode_cdr(data).stamp_ns for stream in streams] == [STAMP_NS] * len(streams)
    assert streams
