"""`robocache doctor --live` with a fusion node."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

pytest.importorskip("rclpy")
from sensor_msgs.msg import JointState

from robocache_ros.cli import doctor as command
from test.nodes.rig import publishing, stamped
from test.policy.doctor.lerobot_files import save

JOINTS = [0.25, -0.5]
CONFIG = {
    "input_features": {"observation.state": {"type": "STATE", "shape": [2]}},
    "output_features": {"action": {"type": "ACTION", "shape": [1]}},
}
STATISTICS = {
    "observation.state.mean": JOINTS,
    "observation.state.std": [0.1, 0.1],
    "action.mean": [0.0],
    "action.std": [1.0],
}


@pytest.fixture
def spec(joint_spec):
    joint_spec["streams"]["command"]["role"] = "action"
    return joint_spec


@pytest.fixture
def joints(rig):
    """Publishes positions from a thread."""
    publisher = rig.publisher(JointState, "/joints")

    def publish(position: list[float]) -> Any:
        message = JointState(name=["a", "b"], position=position)
        return publishing(lambda: publisher.publish(stamped(message)), 0.005)

    return publish


def test_degrees_of_a_live_robot_are_found(rig, spec, joints, tmp_path, robocache):
    checkpoint = save(tmp_path / "act", CONFIG, STATISTICS)
    rig.fusion(spec).autostart()

    with joints([57.3 * joint for joint in JOINTS]):
        done = robocache("doctor", checkpoint, "--spec", rig.write(spec), "--live", "--seconds", 2)

    assert done.code == 1
    wrong = [line for line in done.out.splitlines() if line.startswith("error: joints: values")]
    assert "joints is degrees, and radians in training: convert it in the driver" in wrong[0], done.out


def test_a_node_with_another_spec_is_found(rig, spec, joints, tmp_path, robocache):
    checkpoint = save(tmp_path / "act", CONFIG, STATISTICS)
    other = deepcopy(spec)
    other["streams"]["joints"]["names"] = ["b", "a"]
    rig.fusion(other).autostart()

    with joints(JOINTS):
        done = robocache("doctor", checkpoint, "--spec", rig.write(spec), "--live", "--seconds", 1)

    assert done.code == 1
    assert "error: spec: the node has another one: joints; start the node with this spec\n" in done.out


def test_a_node_that_does_not_run_is_an_error(spec, rig, tmp_path, monkeypatch, robocache):
    monkeypatch.setattr(command, "WAIT_S", 0.2)

    checkpoint = save(tmp_path / "act", CONFIG, STATISTICS)
    done = robocache("doctor", checkpoint, "--spec", rig.write(spec), "--live")

    assert done.code == 2
    assert "robocache: fusion_node/layout: no message within 0.2 s" in done.err.splitlines()[-1]
