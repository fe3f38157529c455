from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("rclpy")
from robocache_ros.bench.load import Load
from robocache_ros.bench.publisher import template
from robocache_ros.decode import make_decoder
from robocache_ros.nodes import middleware
from robocache_ros.spec import load_spec

pytestmark = pytest.mark.ros

LOAD = Load(cameras=1, width=8, height=6, points=10)
SENSORS = {sensor.name: sensor for sensor in LOAD.sensors}
STAMP_NS = 1_760_000_000_123_456_789


@pytest.mark.parametrize("name", SENSORS)
def test_stamp_and_number_are_written_into_the_bytes(name: str) -> None:
    from rclpy.serialization import deserialize_message

    message = template(SENSORS[name], LOAD)
    message.stamped(0)
    read: Any = deserialize_message(message.stamped(STAMP_NS), middleware.load_message_class(SENSORS[name].type))

    assert (read.header.stamp.sec, read.header.stamp.nanosec) == divmod(STAMP_NS, 10**9)
    assert int(read.header.frame_id) == 1
    assert message.sent == 2


@pytest.mark.parametrize("stream", load_spec(LOAD.spec(delay_ms=3.0)).streams, ids=lambda s: s.name)
def test_every_stream_of_the_load_can_be_decoded(stream: Any) -> None:
    sensor = next(s for s in LOAD.sensors if s.topic == stream.topic)

    assert make_decoder(stream).decode_cdr(template(sensor, LOAD).stamped(STAMP_NS)).stamp_ns == STAMP_NS
