"""The last velocities of a robot whose policy, runner or fusion node is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from test.nodes.rig import ACTION, Inbox, Rig, repeating, stamped, until

pytest.importorskip("std_srvs", reason="needs std_srvs (the ros extra, or a sourced ROS 2)")
from geometry_msgs.msg import TwistStamped
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

from robocache_ros.nodes.frame_messages import stamp_ns

CODE = """
import os
from pathlib import Path
import numpy as np

Path(__file__).with_suffix(".pid").write_text(str(os.getpid()))

def ones(frame):
    return np.ones((50, WIDTH))
"""
ARRAY, JOINTS, TWIST = "std_msgs/msg/Float64MultiArray", "sensor_msgs/msg/JointState", "geometry_msgs/msg/TwistStamped"
JOG = "control_msgs/msg/JointJog"
SPEC: dict[str, Any] = {
    "robocache": 1,
    "delay_ms": 10,
    "streams": {
        "joints": {"topic": "/joints", "type": JOINTS, "names": ["a"], "on_invalid": "hold"},
        "wheels": {"topic": "/wheels", "type": ARRAY, "dim": 2, "unit": "rad/s", **ACTION},
        "fingers": {"topic": "/fingers", "type": JOINTS, "names": ["l", "r"], "field": "velocity", "role": "action"},
        "base": {"topic": "/base", "type": TWIST, "field": ["twist.linear", "twist.angular"], **ACTION},
    },
    "run": {
        "coast_ticks": 100,  # on a busy machine
        "outputs": {"wheels": {"accept_no_timeout": True}, "fingers": {"accept_no_timeout": True}},
    },
}
if find_spec("control_msgs"):  # a package of ROS that is not on PyPI: of a sourced ROS, or of a workspace
    SPEC["streams"]["jog"] = {"topic": "/jog", "type": JOG, "field": "velocities", "dim": 2, **ACTION}
    SPEC["run"]["outputs"]["jog"] = {"names": ["l", "r"]}


class Robot:
    """The velocities of a robot."""

    def __init__(self, rig: Rig) -> None:
        self._joints = rig.publisher(JointState, "/joints")
        self._inboxes: dict[str, tuple[Inbox, Callable[[Any], list[float]]]] = {
            "wheels": (rig.listen(Float64MultiArray, "/wheels"), lambda message: list(message.data)),
            "fingers": (rig.listen(JointState, "/fingers"), lambda message: list(message.velocity)),
            "base": (rig.listen(TwistStamped, "/base"), lambda message: [message.twist.linear.x]),
        }
        if "jog" in SPEC["streams"]:
            from control_msgs.msg import JointJog

            self._inboxes["jog"] = (rig.listen(JointJog, "/jog"), lambda message: list(message.velocities))

    def move(self) -> None:
        self._joints.publish(stamped(JointState(name=["a"], position=[0.0])))

    def velocity(self, name: str) -> set[float]:
        """The velocities of the last command of an output."""
        inbox, read = self._inboxes[name]
        return set(read(inbox.newest)) if len(inbox) else set()

    def stamps_ns(self, name: str) -> list[int]:
        """The stamps of the commands of an output."""
        return [stamp_ns(message.header) for message in self._inboxes[name][0].messages]

    def wait_for(self, value: float, what: str) -> None:
        at_rest = lambda: all(self.velocity(name) == {value} for name in self._inboxes)  # noqa: E731
        until(repeating(self.move, at_rest, 0.01), what)


@pytest.mark.parametrize(
    "killed", ["fusion", pytest.param("policy", marks=pytest.mark.slow), pytest.param("runner", marks=pytest.mark.slow)]
)
def test_the_last_velocity_is_zero_on_every_output_whatever_is_killed(rig, tmp_path, killed):
    width = 12 if "jog" in SPEC["streams"] else 10
    (tmp_path / "mine.py").write_text(CODE.replace("WIDTH", str(width)))
    fusion = rig.process(SPEC)
    policy = f"{tmp_path / 'mine.py'}:ones"
    runner = rig.program("run", policy, "--spec", rig.write(SPEC), "--fusion", "fusion_node")
    robot = Robot(rig)
    robot.wait_for(1.0, "commands of the policy")
    pids = {"fusion": fusion.popen.pid, "runner": runner.popen.pid, "policy": int((tmp_path / "mine.pid").read_text())}
    os.kill(pids[killed], signal.SIGKILL)
    robot.wait_for(0.0, "zero velocity")
    assert runner.wait() == -signal.SIGKILL if killed == "runner" else runner.runs()
    for name in {"base", "fingers", "jog"} & {*SPEC["streams"]}:
        assert np.diff(robot.stamps_ns(name)).min() >= 0  # a receiver ignores a command that is old
