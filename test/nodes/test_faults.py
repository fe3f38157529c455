"""Faults of messages, topics and publishers: counted by name, logged once, stated in the diagnostics, and survived."""

from __future__ import annotations

import logging
import math
import os
import queue
import resource
import time
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Path as Path_
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.serialization import serialize_message
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray, String

from robocache_ros.nodes.diagnostics import MIN_TICKS, REPEAT_S, SILENT_S, StreamWarnings, TopicChecks
from robocache_ros.nodes.subscriptions import StreamState, Topic
from robocache_ros.nodes.tick_loop import TickStats
from robocache_ros.nodes.transport import Limit
from robocache_ros.spec import load_spec
from test.nodes.rig import repeating, stamped, until

AHEAD_NS = 4 * 10**9  # of the clock, below max_skew_ms: no message is late where a busy machine takes long to send it
GARBAGE = [b"", b"\0", b"\0\1\0\0", b"\0\1\0\0" + b"\xff" * 60, bytes(range(256)) * 8]


def joint_state(time_ns: int | None = None, names: tuple[str, ...] = ("a", "b")) -> JointState:
    message = JointState(name=list(names), position=[0.5] * len(names))
    return stamped(message, time.time_ns() + AHEAD_NS if time_ns is None else time_ns)


class FusionRig:
    """An active node that subscribes to joints, and what it counts."""

    def __init__(self, rig: Any, spec: dict[str, Any]) -> None:
        self.rig = rig
        rig.fusion(spec).autostart()
        self.fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
        self.joints = rig.publisher(JointState, "/joints")
        until(lambda: self.joints.get_subscription_count() and len(rig.diagnostics), "the node")

    def counts(self, part: str = "joints") -> dict[str, str]:
        return self.rig.counts(part)

    def count(self, key: str, part: str = "joints") -> int:
        return int(self.counts(part).get(key, "0"))

    def until_counted(self, key: str, count: int, part: str = "joints") -> None:
        until(lambda: self.count(key, part) >= count, f"{key} to be {count}")

    def assert_alive(self) -> None:
        before = len(self.fused)
        until(lambda: len(self.fused) > before + 3, "further ticks")
        accepted = self.count("accepted")
        self.joints.publish(joint_state())
        self.until_counted("accepted", accepted + 1)


@pytest.fixture
def fusion(rig, joint_spec):
    return FusionRig(rig, joint_spec)


def test_good_messages_are_counted_and_a_publisher_that_dies_and_returns_is_heard_again(fusion):
    for _ in range(5):
        fusion.joints.publish(joint_state())
    fusion.until_counted("accepted", 5)
    assert (fusion.counts()["received"], fusion.counts()["decoded"]) == ("5", "5")
    fusion.rig.node.destroy_publisher(fusion.joints)
    fusion.joints = fusion.rig.publisher(JointState, "/joints")
    until(fusion.joints.get_subscription_count, "the node's subscription")
    fusion.assert_alive()


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


def test_silent_topic_is_stale_and_a_stream_that_stops_keeps_its_value(rig, joint_spec):
    joint_spec["streams"]["joints"]["on_invalid"] = "hold"
    fusion = FusionRig(rig, joint_spec)
    until(lambda: len(fusion.fused) > 3, "ticks")
    status = until(lambda: rig.status("joints"), "diagnostics")
    assert status.level == DiagnosticStatus.STALE
    assert "/joints" in status.message

    send = repeating(lambda: fusion.joints.publish(joint_state(time.time_ns())), lambda: fusion.count("accepted"))
    until(send, "a message that is not late")

    def stale_ms() -> float:
        status = rig.status("joints")
        # A row is joints, command, then `valid` of both and their ages.
        stale = status.level == DiagnosticStatus.STALE and "stale" in status.message
        return float(fusion.fused.newest.data[-2]) if stale else 0.0

    until(lambda: stale_ms() > 200, "a tick whose joints are older than max_age_ms")
    assert list(fusion.fused.newest.data[-7:-5]) == [0.5, 0.5]
    assert fusion.fused.newest.data[-4] == 2
    assert int(fusion.counts()["stale_ticks"]) > 0


def test_a_topic_of_another_type_and_a_publisher_with_incompatible_qos_are_errors_in_the_diagnostics(rig, joint_spec):
    stranger = rig.stranger()
    other = stranger.create_publisher(String, "/joints", 1)
    rig.fusion(joint_spec).autostart()
    rig.publisher(Float32MultiArray, "/command", reliability=ReliabilityPolicy.BEST_EFFORT)

    def error(stream: str) -> Any:
        status = rig.status(stream)
        return status and status.level == DiagnosticStatus.ERROR and status

    assert "std_msgs/msg/String" in until(lambda: error("joints"), "the mismatch").message
    until(lambda: rig.counts("command").get("incompatible_qos") == "1", "the event")
    assert "reliability" in error("command").message
    stranger.destroy_publisher(other)
    until(lambda: not error("joints"), "the error to go")


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


IMAGE = "sensor_msgs/msg/Image"
SPEC = load_spec({"robocache": 1, "streams": {"front": {"topic": "/camera", "type": IMAGE}}})


class Checked:
    """Checks of one camera topic with given publishers, and the lines that they log."""

    def __init__(self, *types: str, limit: Limit | None = None, offers: str = "BEST_EFFORT") -> None:
        self.lines: list[str] = []
        self.infos: list[str] = []
        self.now_s = 0.0
        (stream,) = SPEC.streams
        qos = replace(stream.qos, reliability="best_effort")
        self.topic = Topic(SimpleNamespace(), (stream,), qos, "/camera", auto=True)
        self.state = StreamState()
        offered = QoSProfile(depth=1, reliability=ReliabilityPolicy[offers])
        self.publishers = [
            SimpleNamespace(topic_type=name, endpoint_gid=[i], qos_profile=offered) for i, name in enumerate(types)
        ]
        logger = SimpleNamespace(error=self.lines.append, warning=self.lines.append, info=self.infos.append)
        publishers = {"get_publishers_info_by_topic": lambda name: self.publishers}
        node: Any = SimpleNamespace(get_logger=lambda: logger, **publishers)
        subscriptions: Any = SimpleNamespace(topics=[self.topic], states={"front": self.state})
        self.checks = TopicChecks(node, subscriptions, limit, lambda: self.now_s)

    def check_at(self, *times_s: float) -> None:
        for self.now_s in times_s:
            self.checks.check(active=True)


def limit(nbytes: int, *, at_receiver: bool = False) -> Limit:
    return Limit(nbytes, "the segment", "use the profile", at_receiver)


def test_published_topic_without_a_message_is_warned_of_once():
    checked = Checked(IMAGE, limit=limit(500_000))
    checked.check_at(0.0, SILENT_S - 0.1)
    assert checked.lines == []
    checked.check_at(SILENT_S, SILENT_S + 1, SILENT_S + 100)
    assert checked.lines == [
        "front: nothing arrives from 1 publisher(s) of /camera; best effort loses every message larger than the "
        "segment (0.48 MiB); use the profile"
    ]


@pytest.mark.parametrize(("types", "largest_bytes"), [((IMAGE,), 57_600), ((), 0)])
def test_topic_whose_messages_arrive_or_without_a_publisher_is_not_warned_of(types, largest_bytes):
    checked = Checked(*types, limit=limit(500_000))
    checked.topic.largest_bytes = largest_bytes
    checked.check_at(0.0, 10 * SILENT_S)
    assert checked.lines == []


@pytest.mark.parametrize(
    ("offers", "requests", "largest_bytes", "wanted"),
    [
        pytest.param("RELIABLE", "best_effort", 0, "reliable", id="all publishers are reliable"),
        pytest.param("RELIABLE", "best_effort", 57_600, None, id="messages arrive"),
        pytest.param("BEST_EFFORT", "reliable", 0, "best_effort", id="publishers are best effort"),
    ],
)
def test_images_are_requested_as_publishers_offer_them_unless_they_arrive(offers, requests, largest_bytes, wanted):
    checked = Checked(IMAGE, IMAGE, offers=offers)
    checked.topic.qos = replace(checked.topic.qos, reliability=requests)
    checked.topic.largest_bytes = largest_bytes
    checked.check_at(0.0)
    assert (checked.topic.wanted and checked.topic.wanted.reliability) == wanted
    if wanted == "reliable":
        assert checked.infos == ["front: subscribing to /camera as reliable, which all of its publishers offer"]


@pytest.mark.parametrize(
    ("declared", "advice"),
    [
        ("reliable", "set the stream's qos.reliability to auto"),
        ("auto", "set the node's parameter reliable to false, which is for replays"),
    ],
    ids=["by the spec", "by the parameter"],
)
def test_incompatible_reliability_is_reported_with_the_setting_that_causes_it(declared, advice):
    checked = Checked(IMAGE)
    (stream,) = checked.topic.streams
    checked.topic.streams = (replace(stream, qos=replace(stream.qos, reliability=declared)),)
    checked.topic.qos, checked.topic.auto = replace(checked.topic.qos, reliability="reliable"), False
    checked.check_at(0.0)
    assert checked.lines == [f"front: a publisher of /camera offers less reliability than the node requests; {advice}"]


@pytest.mark.parametrize(("at_receiver", "count"), [(True, 1), (False, 0)])
def test_received_size_above_the_limit_is_warned_of_where_the_receiver_limits(at_receiver, count):
    checked = Checked(IMAGE, limit=limit(500_000, at_receiver=at_receiver))
    checked.topic.largest_bytes = 921_600
    checked.check_at(0.0, 1.0)
    assert len(checked.lines) == count
    assert all("0.88 MiB" in line for line in checked.lines)


def test_type_of_a_publisher_cannot_forge_a_log_line():
    checked = Checked("x/msg/A\n[FATAL] [0] [fusion_node]: forged" + "y" * 5000)
    checked.check_at(0.0, 1.0)
    (line,) = checked.lines
    assert "type mismatch" in line
    assert "\n" not in line
    assert len(line) < 250
    assert "\n" not in checked.state.problems["type"]


JOINT: dict[str, Any] = {"type": "sensor_msgs/msg/JointState", "names": ["a"]}
ARMS = load_spec({"robocache": 1, "streams": {"arm": {"topic": "/a", **JOINT}, "base": {"topic": "/b", **JOINT}}})
REASONS = {"arm": "stale: no sample within 100 ms of the newest tick"}


class Watched:
    def __init__(self, received: Iterable[str] = ("arm",)) -> None:
        self.stats = TickStats(2)
        self.now_s = 0.0
        self.received = set(received)
        self.warnings = StreamWarnings(ARMS, self.stats, lambda: self.now_s)
        self.warnings.check({}, self.received)

    def after(self, ticks: int, *invalid: int) -> list[str]:
        self.stats.emitted += ticks
        self.stats.invalid += invalid
        return self.warnings.check(REASONS, self.received)


def test_mostly_invalid_stream_is_warned_of_with_its_reason_once_enough_ticks_are_counted():
    assert Watched().after(200, 192, 0) == [
        "arm: invalid at 96% of the last 200 ticks (stale: no sample within 100 ms of the newest tick)"
    ]
    assert Watched().after(200, 100, 20) == []  # valid at most ticks
    watched = Watched()
    assert [len(watched.after(ticks, ticks, 0)) for ticks in (MIN_TICKS - 1, 1)] == [0, 1]


def test_ticks_before_the_first_message_of_a_stream_are_its_start_up():
    watched = Watched(received=())
    silent = watched.after(200, 200, 0)
    watched.received = {"arm"}
    watched.now_s = REPEAT_S + 1
    began = watched.after(200, 150, 0)
    later = watched.after(200, 150, 0)
    assert [len(lines) for lines in (silent, began, later)] == [1, 0, 1]


def test_warning_is_repeated_after_a_while_only():
    watched = Watched()
    counts = []
    for watched.now_s in (0.0, REPEAT_S - 1, REPEAT_S + 1):
        counts.append(len(watched.after(200, 200, 0)))
    assert counts == [1, 0, 1]
