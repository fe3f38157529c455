"""Streams whose last value is held: `on_invalid: hold`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("rclpy")
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray


def test_stream_that_stops_keeps_its_value_and_is_reported_as_stale(
    rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any]
) -> None:
    joint_spec["streams"]["joints"]["on_invalid"] = "hold"
    rig.fusion(joint_spec).autostart()
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    diagnostics = rig.listen(DiagnosticArray, "/diagnostics")
    publisher = rig.publisher(JointState, "/joints")
    wait(publisher.get_subscription_count, "the node's subscription")
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    message = JointState(name=["a", "b"], position=[0.5, 0.25])
    message.header.stamp = Time(sec=seconds, nanosec=nanoseconds)
    publisher.publish(message)

    def stale_ms() -> float:
        status, _ = rig.status(diagnostics, "joints")
        # A row is joints, command, then `valid` of both and their ages.
        stale = status is not None and status.level == DiagnosticStatus.STALE
        return fused.newest.data[-2] if stale and len(fused) else 0.0

    wait(lambda: stale_ms() > 200, "a tick whose joints are older than max_age_ms")
    assert list(fused.newest.data[-7:-5]) == [0.5, 0.25]
    assert fused.newest.data[-4] == 2
