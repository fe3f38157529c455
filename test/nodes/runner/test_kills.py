"""The last velocities of a robot whose policy, runner or fusion node is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from test.nodes.rig import ROOT, Inbox, Rig, repeating, until

pytest.importorskip("std_srvs", reason="needs std_srvs (the ros extra, or a sourced ROS 2)")

CODE = """
import os
from pathlib import Path
import numpy as np

Path(__file__).with_suffix(".pid").write_text(str(os.getpid()))

def ones(frame):
    return np.ones((50, 10))
"""
ARRAY, JOINTS, TWIST = "std_msgs/msg/Float64MultiArray", "sensor_msgs/msg/JointState", "geometry_msgs/msg/TwistStamped"
# The wheels and the fingers keep the last command for ever, and the base stops if no command comes.
SPEC: dict[str, Any] = {
    "robocache": 1,
    "delay_ms": 10,
    "streams": {
        "joints": {"topic": "/joints", "type": JOINTS, "names": ["a"], "on_invalid": "hold"},
        "wheels": {"topic": "/wheels", "type": ARRAY, "dim": 2, "align": "hold", "role": "action", "unit": "rad/s"},
        "fingers": {"topic": "/fingers", "type": JOINTS, "names": ["l", "r"], "field": "velocity", "role": "action"},
        "base": {
            "topic": "/base",
            "type": TWIST,
            "field": ["twist.linear", "twist.angular"],
            "align": "hold",
            "role": "action",
        },
    },
    "run": {
        "coast_ticks": 100,  # on a busy machine
        "outputs": {"wheels": {"accept_no_timeout": True}, "fingers": {"accept_no_timeout": True}},
    },
}
TIMEOUT_S = 0.5  # of the receiver of the base's commands


class Robot:
    """The velocities of a robot."""

    def __init__(self, rig: Rig) -> None:
        from geometry_msgs.msg import TwistStamped
        from sensor_msgs.msg import JointState
        from std_msgs.msg import Float64MultiArray

        self._joints, self._message = rig.publisher(JointState, "/joints"), JointState
        self._inboxes: dict[str, tuple[Inbox, Callable[[Any], list[float]]]] = {
            "wheels": (rig.listen(Float64MultiArray, "/wheels"), lambda message: list(message.data)),
            "fingers": (rig.listen(JointState, "/fingers"), lambda message: list(message.velocity)),
            "base": (rig.listen(TwistStamped, "/base"), lambda message: [message.twist.linear.x]),
        }
        self._seen: dict[str, tuple[int, float]] = {}

    def move(self) -> None:
        message = self._message(name=["a"], position=[0.0])
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(time.time_ns(), 10**9)
        self._joints.publish(message)

    def velocity(self, name: str) -> set[float]:
        """The velocities of an output now: the last command, of the base for `TIMEOUT_S`."""
        inbox, read = self._inboxes[name]
        count, now_s = len(inbox), time.monotonic()
        if self._seen.get(name, (0, 0.0))[0] != count:
            self._seen[name] = (count, now_s)
        if count == 0 or (name == "base" and now_s - self._seen[name][1] > TIMEOUT_S):
            return {0.0}
        return set(read(inbox.newest))

    def wait_for(self, value: float, what: str) -> None:
        at_rest = lambda: all(self.velocity(name) == {value} for name in self._inboxes)  # noqa: E731
        until(repeating(self.move, at_rest, 0.01), what)


@pytest.mark.parametrize(
    "killed", ["fusion", pytest.param("policy", marks=pytest.mark.slow), pytest.param("runner", marks=pytest.mark.slow)]
)
def test_the_last_velocity_is_zero_on_every_output_whatever_is_killed(rig: Rig, tmp_path: Path, killed: str) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    fusion = rig.process(SPEC)
    words = ["run", f"{tmp_path / 'mine.py'}:ones", "--spec", str(rig.write(SPEC)), "--fusion", "fusion_node"]
    with (tmp_path / "run.log").open("w") as out:
        runner = subprocess.Popen([sys.executable, "-m", "robocache_ros", *words], cwd=ROOT, stdout=out, stderr=out)
    robot = Robot(rig)
    try:
        robot.wait_for(1.0, "commands of the policy")
        pids = {"fusion": fusion.popen.pid, "runner": runner.pid, "policy": int((tmp_path / "mine.pid").read_text())}
        os.kill(pids[killed], signal.SIGKILL)
        robot.wait_for(0.0, "zero velocity")
        assert (runner.poll() is None) == (killed != "runner")
    finally:
        runner.kill()
        runner.wait()
