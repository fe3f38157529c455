"""Faults of a robot: counted by name, logged once, and survived."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy")
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Path as Path_
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


class FusionRig:
    """An active node that subscribes to joints, and its diagnostics."""

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
def fusion(rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any]) -> FusionRig:
    return FusionRig(rig, wait, joint_spec)


def test_good_messages_are_counted_as_received_decoded_and_accepted(fusion: FusionRig) -> None:
    for _ in range(5):
        fusion.joints.publish(joint_state())

    fusion.until_counted("accepted", 5)

    assert (fusion.counts()["received"], fusion.counts()["decoded"]) == ("5", "5")


def test_garbage_is_counted_and_ticks_go_on(fusion: FusionRig) -> None:
    for data in GARBAGE:
        fusion.joints.publish(data)

    fusion.until_counted("dropped", len(GARBAGE))

    fusion.assert_alive()


def test_every_truncated_message_is_counted(fusion: FusionRig) -> None:
    complete = serialize_message(joint_state())
    for length in range(0, len(complete) - 20, 3):
        fusion.joints.publish(complete[:length])

    fusion.until_counted("dropped", len(range(0, len(complete) - 20, 3)))

    fusion.assert_alive()


def test_bad_messages_are_logged_once_a_cause(fusion: FusionRig, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(20):
        fusion.joints.publish(b"\0\1\0\0")

    fusion.until_counted("dropped", 20)

    assert capfd.readouterr().err.count("a message is dropped") == 1


def test_joints_that_the_spec_does_not_name_are_counted(fusion: FusionRig) -> None:
    fusion.joints.publish(joint_state(names=("b", "gripper", "a")))

    fusion.until_counted("unmatched", 1)

    assert fusion.counts()["accepted"] == "1"


def test_missing_joint_drops_the_message_by_that_cause(fusion: FusionRig) -> None:
    fusion.joints.publish(joint_state(names=("a",)))

    fusion.until_counted("dropped:joint_missing", 1)


def test_stamp_an_hour_off_is_refused_with_advice(fusion: FusionRig) -> None:
    fusion.joints.publish(joint_state(time.time_ns() - 3_600 * 10**9))
    fusion.joints.publish(joint_state(time.time_ns() + 3_600 * 10**9))

    fusion.until_counted("skewed", 2)

    fusion.assert_alive()


def test_age_is_that_of_the_header_that_stamps_the_stream(rig: Any, wait: Callable[..., Any]) -> None:
    """A path has a header of its own, and one in each of its poses."""
    stream = {"topic": "/path", "type": "nav_msgs/msg/Path", "field": "poses[0].pose.position"}
    rig.fusion({"robocache": 1, "delay_ms": 20, "streams": {"goal": stream}}).autostart()
    diagnostics = rig.listen(DiagnosticArray, "/diagnostics")
    paths = rig.publisher(Path_, "/path")
    wait(paths.get_subscription_count, "the node's subscription")
    path = Path_(poses=[PoseStamped()])
    path.header.stamp = Time(sec=1)

    def age() -> str:
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        path.poses[0].header.stamp = Time(sec=seconds, nanosec=nanoseconds)
        paths.publish(path)
        return str(rig.status(diagnostics, "goal")[1].get("age_ms_max", ""))

    assert float(wait(age, "an age")) < 600_000


def test_duplicate_stamp_is_counted(fusion: FusionRig) -> None:
    message = joint_state()
    fusion.joints.publish(message)
    fusion.joints.publish(message)

    fusion.until_counted("duplicate", 1)


def test_late_message_is_counted(fusion: FusionRig) -> None:
    fusion.wait(lambda: len(fusion.fused) > 3, "ticks")

    fusion.joints.publish(joint_state(time.time_ns() - 60_000_000))  # delay_ms is 20

    fusion.until_counted("late", 1)


def test_silent_topic_is_stale(fusion: FusionRig) -> None:
    fusion.wait(lambda: len(fusion.fused) > 3, "ticks")

    status = fusion.wait(lambda: fusion.rig.status(fusion.diagnostics, "joints")[0], "diagnostics")

    assert status.level == DiagnosticStatus.STALE
    assert "/joints" in status.message


def test_stream_that_stops_becomes_stale(fusion: FusionRig) -> None:
    fusion.joints.publish(joint_state())
    fusion.until_counted("accepted", 1)

    def stale() -> bool:
        status = fusion.rig.status(fusion.diagnostics, "joints")[0]
        return status.level == DiagnosticStatus.STALE and "stale" in status.message

    fusion.wait(stale, "the stream to be stale")
    assert int(fusion.counts()["stale_ticks"]) > 0


def test_topic_of_another_type_is_an_error_in_the_diagnostics(
    rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any]
) -> None:
    stranger = rig.stranger()
    other = stranger.create_publisher(String, "/joints", 1)
    node = rig.fusion(joint_spec)
    node.autostart()
    diagnostics = rig.listen(DiagnosticArray, "/diagnostics")

    def mismatch() -> Any:
        status = rig.status(diagnostics, "joints")[0]
        return status and status.level == DiagnosticStatus.ERROR and status

    assert "std_msgs/msg/String" in wait(mismatch, "the mismatch").message
    stranger.destroy_publisher(other)
    wait(lambda: not mismatch(), "the error to go")


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


def test_publisher_that_dies_and_returns_is_heard_again(fusion: FusionRig) -> None:
    fusion.joints.publish(joint_state())
    fusion.until_counted("accepted", 1)
    fusion.rig.node.destroy_publisher(fusion.joints)

    fusion.joints = fusion.rig.publisher(JointState, "/joints")
    fusion.wait(fusion.joints.get_subscription_count, "the node's subscription")

    fusion.assert_alive()


def test_ticks_status_reports_jitter_and_count(fusion: FusionRig) -> None:
    fusion.until_counted("emitted", 10, "ticks")

    fusion.wait(lambda: fusion.counts("ticks").get("jitter_ms_p99"), "jitter")

    assert float(fusion.counts("ticks")["jitter_ms_max"]) >= float(fusion.counts("ticks")["jitter_ms_p50"]) >= 0


@pytest.mark.parametrize("ring_slots", [0, 8])
def test_node_without_file_descriptors_goes_on_and_recovers(
    rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any], ring_slots: int
) -> None:
    process = rig.process(joint_spec, ring_slots=ring_slots, diagnostics_period_s=0.5)
    pid = process.popen.pid
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    wait(lambda: len(fused), "a tick")
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd")) + 1

    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, hard))
    before = len(fused)
    wait(lambda: len(fused) > before + 100, "two seconds of ticks without file descriptors")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

    diagnostics = rig.listen(DiagnosticArray, "/diagnostics")
    wait(lambda: int(rig.status(diagnostics, "ticks")[1].get("emitted", "0")) > 100, "diagnostics")
    assert process.stop() == 0, process.log.read_text()
    assert "Traceback" not in process.log.read_text()


@pytest.mark.parametrize("folder", ["file", "dangling link", "not private"])
def test_node_with_an_unusable_runtime_folder_publishes_messages(
    rig: Any,
    wait: Callable[..., Any],
    joint_spec: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    target = runtime / "robocache"
    if folder == "file":
        target.write_bytes(b"")
    elif folder == "dangling link":
        target.symlink_to(tmp_path / "nowhere")
    else:
        target.mkdir(mode=0o777)
        target.chmod(0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))

    process = rig.process(joint_spec)

    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    wait(lambda: len(fused) > 10, "ticks")
    assert process.log.read_text().count("frames are published as messages alone") == 1
    assert process.stop() == 0, process.log.read_text()
