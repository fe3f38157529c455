"""`~/plot`: the numbers of a tick with their names, for viewers that plot joints."""

from __future__ import annotations

import math
import time

import pytest

pytest.importorskip("rclpy")
import numpy as np
from sensor_msgs.msg import JointState

from robocache_ros.nodes import frame_messages
from robocache_ros.nodes.frame_messages import plot_message, stamp_ns
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout
from test.nodes.faults.fusion_rig import FusionRig, joint_state
from test.nodes.rig import JOINT_SPEC, repeating, until

NAMES = ["joints.a", "joints.b", "command.0", "valid:joints", "valid:command", "age_ms:joints", "age_ms:command"]


def test_a_subscriber_gets_names_and_values_of_each_tick(rig):
    fusion = FusionRig(rig, JOINT_SPEC)
    plots = rig.listen(JointState, "/fusion_node/plot")

    def found() -> list[JointState]:
        return [plot for plot in plots.messages if plot.position[NAMES.index("valid:joints")]]

    until(repeating(lambda: fusion.joints.publish(joint_state(time.time_ns())), found, 0.02), "a tick with joints")
    plot = found()[0]
    assert list(plot.name) == NAMES
    values = dict(zip(plot.name, plot.position, strict=True))
    assert (values["joints.a"], values["joints.b"]) == (0.5, 0.5)
    assert math.isnan(values["command.0"])
    assert math.isnan(values["age_ms:command"])
    assert values["valid:command"] == 0
    assert stamp_ns(plot.header) % 20_000_000 == 0
    assert not plot.velocity


def test_nothing_is_published_without_a_subscriber(rig, monkeypatch):
    made: list[int] = []
    monkeypatch.setattr(frame_messages, "plot_message", lambda *args: made.append(1) or plot_message(*args))
    fusion = FusionRig(rig, JOINT_SPEC)
    until(lambda: len(fusion.fused) > 5, "ticks")

    assert not made


def test_of_a_window_the_newest_sample_is_plotted():
    imu = {"topic": "/imu", "type": "sensor_msgs/msg/Imu", "field": "angular_velocity", "align": "window", "samples": 2}
    layout = Layout(load_spec({"robocache": 1, "actions": "none", "streams": {"imu": imu}}))
    row = np.array([1, 2, 3, 4, 5, 6, 1, 7.5, 9, 7.5], np.float32)

    plot = plot_message(0, row, layout)

    expected = {"imu.x": 4, "imu.y": 5, "imu.z": 6, "valid:imu": 1, "age_ms:imu": 7.5}
    assert dict(zip(plot.name, plot.position, strict=True)) == expected
