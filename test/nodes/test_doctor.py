"""`robocache doctor --live` with a fusion node."""

from __future__ import annotations

import re
from copy import deepcopy

import pytest
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
def checkpoint(tmp_path):
    return save(tmp_path / "act", CONFIG, STATISTICS)


@pytest.mark.parametrize(
    ("names", "factor", "expected"),
    [
        (["a", "b"], 57.3, "joints: values.* joints is degrees, and radians in training: convert it in the driver"),
        (["b", "a"], 1.0, "spec: the node has another one: joints; start the node with this spec$"),
    ],
    ids=["degrees of a live robot", "a node with another spec"],
)
def test_what_differs_from_training_is_found(rig, spec, checkpoint, robocache, names, factor, expected):
    other = deepcopy(spec)
    other["streams"]["joints"]["names"] = names
    rig.fusion(other).autostart()
    publisher = rig.publisher(JointState, "/joints")
    message = JointState(name=["a", "b"], position=[factor * joint for joint in JOINTS])
    with publishing(lambda: publisher.publish(stamped(message)), 0.005):
        done = robocache("doctor", checkpoint, "--spec", rig.write(spec), "--live", "--seconds", 2)
    assert done.code == 1
    assert re.search(f"(?m)^error: {expected}", done.out), done.out


def test_a_node_that_does_not_run_is_an_error(spec, rig, checkpoint, monkeypatch, robocache):
    monkeypatch.setattr(command, "WAIT_S", 0.2)
    done = robocache("doctor", checkpoint, "--spec", rig.write(spec), "--live")
    assert done.code == 2
    assert "robocache: fusion_node/layout: no message within 0.2 s" in done.err.splitlines()[-1]
