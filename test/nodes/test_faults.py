"""What goes wrong on a robot: counted under its name, told once, and survived."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("rclpy")
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.qos import ReliabilityPolicy
from rclpy.serialization import serialize_message
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray, String

GARBAGE = [b"", b"\0", b"\0\1\0\0", b"\0\1\0\0" + b"\xff" * 60, bytes(range(256)) * 8]


def joint_state(time_ns: int | None = None, names: tuple[str, ...] = ("a", "b")) -> JointState:
    message = JointState(name=list(names), position=[0.5] * len(names))
    seconds, nanoseconds = divmod(time.time_ns() if time_ns is None else time_ns, 10**9)
    message.header.stamp = Time(sec=seconds, nanosec=nanoseconds)
    return message


class Bench:
    """An active node that takes joints, and its diagnostics."""

    def __init__(self, rig: Any, wait: Callable[..., Any], spec: dict[str, Any], **parameters: Any) -> None:
        self.rig, self.wait = rig, wait
        self.node = rig.fusion(spec, **parameters)
        self.node.autostart()
        self.fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
        self.diagnostics = rig.listen(DiagnosticArray, "/diagnostics")
        self.joints = rig.publisher(JointState, "/joints")
        wait(self.joints.get_subscription_count, "the node's subscription")

    def counts(self, part: str = "joints") -> dict[str, str]:
        return self.rig.status(self.diagnostics, part)[1]

    def until_counted(self, key: str, count: int, part: str = "joints") -> None:
        self.wait(lambda: int(self.counts(part).get(key, "0")) >= count, f"{key} to be {count}")

    def assert_alive(self) -> None:
        before = len(self.fused)
        self.wait(lambda: len(self.fused) > before + 3, "further ticks")
        accepted = int(self.counts().get("accepted", "0"))
        self.joints.publish(joint_state())
        self.until_counted("accepted", accepted + 1)


@pytest.fixture
def bench(rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any]) -> Bench:
    return Bench(rig, wait, joint_spec)


def test_good_messages_are_counted_as_received_decoded_and_accepted(bench: Bench) -> None:
    for _ in range(5):
        bench.joints.publish(joint_state())

    bench.until_counted("accepted", 5)

    assert (bench.counts()["received"], bench.counts()["decoded"]) == ("5", "5")


def test_garbage_is_counted_and_the_node_lives(bench: Bench) -> None:
    for data in GARBAGE:
        bench.joints.publish(data)

    bench.until_counted("dropped", len(GARBAGE))

    bench.assert_alive()


def test_every_cut_of_a_message_is_counted(bench: Bench) -> None:
    whole = serialize_message(joint_state())
    for length in range(0, len(whole) - 20, 3):
        bench.joints.publish(whole[:length])

    bench.until_counted("dropped", len(range(0, len(whole) - 20, 3)))

    bench.assert_alive()


def test_bad_messages_are_logged_once_a_cause(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(20):
        bench.joints.publish(b"\0\1\0\0")

    bench.until_counted("dropped", 20)

    assert capfd.readouterr().err.count("a message is dropped") == 1


def test_joints_that_were_not_asked_for_are_counted(bench: Bench) -> None:
    bench.joints.publish(joint_state(names=("b", "gripper", "a")))

    bench.until_counted("unmatched", 1)

    assert bench.counts()["accepted"] == "1"


def test_missing_joint_drops_the_message_by_that_cause(bench: Bench) -> None:
    bench.joints.publish(joint_state(names=("a",)))

    bench.until_counted("dropped:joint_missing", 1)


def test_stamp_an_hour_off_is_refused_with_advice(bench: Bench) -> None:
    bench.joints.publish(joint_state(time.time_ns() - 3_600 * 10**9))
    bench.joints.publish(joint_state(time.time_ns() + 3_600 * 10**9))

    bench.until_counted("skewed", 2)

    bench.assert_alive()


def test_duplicate_stamp_is_counted(bench: Bench) -> None:
    message = joint_state()
    bench.joints.publish(message)
    bench.joints.publish(message)

    bench.until_counted("duplicate", 1)


def test_late_message_is_counted(bench: Bench) -> None:
    bench.wait(lambda: len(bench.fused) > 3, "ticks")

    bench.joints.publish(joint_state(time.time_ns() - 60_000_000))  # delay_ms is 20

    bench.until_counted("late", 1)


def test_silent_topic_is_stale(bench: Bench) -> None:
    bench.wait(lambda: len(bench.fused) > 3, "ticks")

    status = bench.wait(lambda: bench.rig.status(bench.diagnostics, "joints")[0], "diagnostics")

    assert status.level == DiagnosticStatus.STALE
    assert "/joints" in status.message


def test_stream_that_stops_becomes_stale(bench: Bench) -> None:
    bench.joints.publish(joint_state())
    bench.until_counted("accepted", 1)

    def stale() -> bool:
        status = bench.rig.status(bench.diagnostics, "joints")[0]
        return status.level == DiagnosticStatus.STALE and "stale" in status.message

    bench.wait(stale, "the stream to be stale")
    assert int(bench.counts()["stale_ticks"]) > 0


def test_topic_of_another_type_is_an_error_in_the_diagnostics(
    rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any]
) -> None:
    stranger = rig.stranger()
    other = stranger.create_publisher(String, "/joints", 1)
    node = rig.fusion(joint_spec)
    node.autostart()
    diagnostics = rig.listen(DiagnosticArray, "/diagnostics")

    def told() -> Any:
        status = rig.status(diagnostics, "joints")[0]
        return status and status.level == DiagnosticStatus.ERROR and status

    assert "std_msgs/msg/String" in wait(told, "the mismatch to be told").message
    stranger.destroy_publisher(other)
    wait(lambda: not told(), "the error to go")


def test_publisher_with_incompatible_qos_is_an_error_in_the_diagnostics(
    rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any]
) -> None:
    rig.fusion(joint_spec).autostart()
    diagnostics = rig.listen(DiagnosticArray, "/diagnostics")
    rig.publisher(JointState, "/joints", reliability=ReliabilityPolicy.BEST_EFFORT)

    wait(lambda: rig.status(diagnostics, "joints")[1].get("incompatible_qos") == "1", "the event")

    status = rig.status(diagnostics, "joints")[0]
    assert status.level == DiagnosticStatus.ERROR
    assert "reliability" in status.message


def test_publisher_that_dies_and_returns_is_heard_again(bench: Bench) -> None:
    bench.joints.publish(joint_state())
    bench.until_counted("accepted", 1)
    bench.rig.node.destroy_publisher(bench.joints)

    bench.joints = bench.rig.publisher(JointState, "/joints")
    bench.wait(bench.joints.get_subscription_count, "the node's subscription")

    bench.assert_alive()


def test_beat_reports_its_jitter_and_ticks(bench: Bench) -> None:
    bench.until_counted("emitted", 10, "beat")

    bench.wait(lambda: bench.counts("beat").get("jitter_ms_p99"), "jitter")

    assert float(bench.counts("beat")["jitter_ms_max"]) >= float(bench.counts("beat")["jitter_ms_p50"]) >= 0
