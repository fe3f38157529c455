"""Bad messages: counted by name, logged once, and survived."""

from __future__ import annotations

import math
import time

import pytest

pytest.importorskip("rclpy")
from builtin_interfaces.msg import Time
from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Path as Path_
from rclpy.serialization import serialize_message

from test.nodes.faults.fusion_rig import joint_state
from test.nodes.rig import until

GARBAGE = [b"", b"\0", b"\0\1\0\0", b"\0\1\0\0" + b"\xff" * 60, bytes(range(256)) * 8]


def test_good_messages_are_counted_as_received_decoded_and_accepted(fusion):
    for _ in range(5):
        fusion.joints.publish(joint_state())

    fusion.until_counted("accepted", 5)

    assert (fusion.counts()["received"], fusion.counts()["decoded"]) == ("5", "5")


def test_garbage_and_truncated_messages_are_counted_logged_once_a_cause_and_ticks_go_on(fusion, capfd):
    for _ in range(20):
        fusion.joints.publish(b"\0\1\0\0")
    fusion.until_counted("dropped", 20)
    assert capfd.readouterr().err.count("a message is dropped") == 1

    complete = serialize_message(joint_state())
    bad = [*GARBAGE, *(complete[:length] for length in range(0, len(complete) - 20, 3))]
    for data in bad:
        fusion.joints.publish(data)
    fusion.until_counted("dropped", 20 + len(bad))
    fusion.assert_alive()


def test_joints_that_the_spec_does_not_name_are_counted_and_a_nan_in_one_that_it_names_drops_the_message(fusion):
    fusion.joints.publish(joint_state(names=("b", "gripper", "a")))
    fusion.until_counted("unmatched", 1)
    assert fusion.counts()["accepted"] == "1"

    bad, other = joint_state(), joint_state(names=("a", "b", "gripper"))
    bad.position[1] = other.position[2] = math.nan
    fusion.joints.publish(bad)
    fusion.joints.publish(other)
    fusion.until_counted("dropped:not_finite", 1)
    fusion.until_counted("accepted", 2)


def test_late_message_and_stamps_an_hour_off_are_counted(fusion):
    until(lambda: len(fusion.fused) > 3, "ticks")

    fusion.joints.publish(joint_state(time.time_ns() - 60_000_000))  # delay_ms is 20
    fusion.joints.publish(joint_state(time.time_ns() - 3_600 * 10**9))
    fusion.joints.publish(joint_state(time.time_ns() + 3_600 * 10**9))

    fusion.until_counted("late", 1)
    fusion.until_counted("skewed", 2)
    fusion.assert_alive()


def test_age_is_that_of_the_header_that_stamps_the_stream(rig):
    """A path has a header of its own, and one in each of its poses."""
    stream = {"topic": "/path", "type": "nav_msgs/msg/Path", "field": "poses[0].pose.position"}
    rig.fusion({"robocache": 1, "delay_ms": 20, "streams": {"goal": stream}}).autostart()
    paths = rig.publisher(Path_, "/path")
    until(paths.get_subscription_count, "the node's subscription")
    path = Path_(poses=[PoseStamped()])
    path.header.stamp = Time(sec=1)

    def age() -> str:
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        path.poses[0].header.stamp = Time(sec=seconds, nanosec=nanoseconds)
        paths.publish(path)
        return str(rig.counts("goal").get("age_ms_max", ""))

    assert float(until(age, "an age")) < 600_000
