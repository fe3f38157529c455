"""A live run of the fusion node, recorded and replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("rclpy")
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray

from robocache_ros.policy.replay import verify


def test_a_live_run_is_recomputed_to_the_bit(rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any]) -> None:
    path = rig.tmp_path / "run.mcap"
    node = rig.fusion(joint_spec, record_run=str(path))
    node.autostart()
    joints, command = rig.publisher(JointState, "/joints"), rig.publisher(Float32MultiArray, "/command")
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    sent = 0

    def publish() -> None:
        nonlocal sent
        sent += 1
        message = JointState(name=["a", "b"], position=[float(sent), -1.0])
        age_ns = (0, 300_000_000, 5_000_000)[sent % 3]  # some are late
        seconds, nanoseconds = divmod(rig.node.get_clock().now().nanoseconds - age_ns, 10**9)
        message.header.stamp.sec, message.header.stamp.nanosec = seconds, nanoseconds
        joints.publish(message)
        joints.publish(message)  # a duplicate
        command.publish(Float32MultiArray(data=[float(sent)]))

    timer = rig.node.create_timer(0.005, publish)
    wait(lambda: len(fused) > 50, "ticks")
    assert rig.change_state("deactivate")
    assert rig.change_state("activate")
    before = len(fused)
    wait(lambda: len(fused) > before + 20, "ticks after it")
    assert rig.change_state("deactivate")
    rig.node.destroy_timer(timer)
    assert rig.change_state("cleanup")

    found = verify(path)

    assert (found.first, found.notes) == (None, [])
    assert found.ticks >= len(fused) - 1
    assert found.messages > 100
