"""Faults of topics and their publishers: stated in the diagnostics, and survived."""

from __future__ import annotations

import logging
import os
import queue
import resource
import time
from typing import Any

import pytest

pytest.importorskip("rclpy")
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.qos import ReliabilityPolicy
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray, String

from test.nodes.faults.fusion_rig import FusionRig, joint_state
from test.nodes.rig import repeating, until


def test_silent_topic_is_stale_and_a_stream_that_stops_keeps_its_value(rig, joint_spec):
    joint_spec["streams"]["joints"]["on_invalid"] = "hold"
    fusion = FusionRig(rig, joint_spec)
    until(lambda: len(fusion.fused) > 3, "ticks")
    status = until(lambda: rig.status("joints"), "diagnostics")
    assert status.level == DiagnosticStatus.STALE
    assert "/joints" in status.message

    accepted = repeating(
        lambda: fusion.joints.publish(joint_state(time.time_ns())),
        lambda: fusion.counts().get("accepted", "0") != "0",
    )
    until(accepted, "a message that is not late")

    def stale_ms() -> float:
        status = rig.status("joints")
        # A row is joints, command, then `valid` of both and their ages.
        stale = status.level == DiagnosticStatus.STALE and "stale" in status.message
        return float(fusion.fused.newest.data[-2]) if stale else 0.0

    until(lambda: stale_ms() > 200, "a tick whose joints are older than max_age_ms")
    assert list(fusion.fused.newest.data[-7:-5]) == [0.5, 0.5]
    assert fusion.fused.newest.data[-4] == 2
    assert int(fusion.counts()["stale_ticks"]) > 0


def test_topic_of_another_type_is_an_error_in_the_diagnostics(rig, joint_spec):
    stranger = rig.stranger()
    other = stranger.create_publisher(String, "/joints", 1)
    node = rig.fusion(joint_spec)
    node.autostart()

    def mismatch() -> Any:
        status = rig.status("joints")
        return status and status.level == DiagnosticStatus.ERROR and status

    assert "std_msgs/msg/String" in until(mismatch, "the mismatch").message
    stranger.destroy_publisher(other)
    until(lambda: not mismatch(), "the error to go")


def test_publisher_with_incompatible_qos_is_an_error_in_the_diagnostics(rig, joint_spec):
    rig.fusion(joint_spec).autostart()
    rig.publisher(JointState, "/joints", reliability=ReliabilityPolicy.BEST_EFFORT)

    until(lambda: rig.counts("joints").get("incompatible_qos") == "1", "the event")

    status = rig.status("joints")
    assert status.level == DiagnosticStatus.ERROR
    assert "reliability" in status.message


def test_publisher_that_dies_and_returns_is_heard_again(fusion):
    fusion.joints.publish(joint_state())
    fusion.until_counted("accepted", 1)
    fusion.rig.node.destroy_publisher(fusion.joints)

    fusion.joints = fusion.rig.publisher(JointState, "/joints")
    until(fusion.joints.get_subscription_count, "the node's subscription")

    fusion.assert_alive()


def test_ticks_status_reports_jitter_count_and_the_log_lines_that_were_dropped(fusion, monkeypatch):
    fusion.until_counted("emitted", 10, "ticks")
    until(lambda: fusion.counts("ticks").get("jitter_ms_p99"), "jitter")
    assert float(fusion.counts("ticks")["jitter_ms_max"]) >= float(fusion.counts("ticks")["jitter_ms_p50"]) >= 0
    assert fusion.counts("ticks")["log_lines_dropped"] == "0"

    def full(*_: object) -> None:
        raise queue.Full

    monkeypatch.setattr(queue.Queue, "put_nowait", full)
    logging.getLogger("robocache_ros").warning("too much")
    monkeypatch.undo()

    fusion.until_counted("log_lines_dropped", 1, "ticks")


def test_node_without_file_descriptors_goes_on_and_recovers(rig, joint_spec):
    process = rig.process(joint_spec, diagnostics_period_s=0.5)
    pid = process.popen.pid
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    until(lambda: len(fused), "a tick")
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd")) + 1

    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, hard))
    before = len(fused)
    until(lambda: len(fused) > before + 50, "a second of ticks without file descriptors")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

    until(lambda: int(rig.counts("ticks").get("emitted", "0")) > 50, "diagnostics")
    assert process.stop() == 0, process.log.read_text()
    assert "Traceback" not in process.log.read_text()
