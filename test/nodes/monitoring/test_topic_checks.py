"""What publishers offer, messages that the transport loses, and streams that stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray

from robocache_ros.nodes.diagnostics import SILENT_S, TopicChecks
from robocache_ros.nodes.subscriptions import StreamState, Topic
from robocache_ros.nodes.transport import Limit
from robocache_ros.spec import load_spec

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
        self.topic = Topic(SimpleNamespace(), (stream,), qos, "/camera", auto=True)  # type: ignore[arg-type]
        self.state = StreamState()
        self.publishers = [
            SimpleNamespace(
                topic_type=name,
                endpoint_gid=[number],
                qos_profile=QoSProfile(depth=1, reliability=ReliabilityPolicy[offers]),
            )
            for number, name in enumerate(types)
        ]
        logger = SimpleNamespace(error=self.lines.append, warning=self.lines.append, info=self.infos.append)
        node: Any = SimpleNamespace(
            get_logger=lambda: logger, get_publishers_info_by_topic=lambda name: self.publishers
        )
        subscriptions: Any = SimpleNamespace(topics=[self.topic], states={"front": self.state})
        self.checks = TopicChecks(node, subscriptions, limit, lambda: self.now_s)

    def check_at(self, *times_s: float) -> None:
        for self.now_s in times_s:
            self.checks.check(active=True)


def limit(nbytes: int, *, at_receiver: bool = False) -> Limit:
    return Limit(nbytes, "the segment", "use the profile", at_receiver)


def test_published_topic_without_a_message_is_warned_of_once() -> None:
    checked = Checked(IMAGE, limit=limit(500_000))

    checked.check_at(0.0, SILENT_S - 0.1)
    before = list(checked.lines)
    checked.check_at(SILENT_S, SILENT_S + 1, SILENT_S + 100)

    assert before == []
    assert len(checked.lines) == 1
    assert checked.lines[0] == (
        "front: nothing arrives from 1 publisher(s) of /camera; best effort loses every message larger than the "
        "segment (0.48 MiB); use the profile"
    )


def test_topic_whose_messages_arrive_is_not_warned_of() -> None:
    checked = Checked(IMAGE, limit=limit(500_000))
    checked.topic.largest_bytes = 57_600

    checked.check_at(0.0, 10 * SILENT_S)

    assert checked.lines == []


def test_images_of_reliable_publishers_are_requested_as_reliable() -> None:
    checked = Checked(IMAGE, IMAGE, offers="RELIABLE")

    checked.check_at(0.0)

    assert checked.topic.wanted is not None
    assert checked.topic.wanted.reliability == "reliable"
    assert checked.infos == ["front: subscribing to /camera as reliable, which all of its publishers offer"]


def test_subscription_of_images_that_arrive_is_kept() -> None:
    checked = Checked(IMAGE, offers="RELIABLE")
    checked.topic.largest_bytes = 57_600

    checked.check_at(0.0)

    assert checked.topic.wanted is None


def test_publisher_of_best_effort_makes_an_automatic_subscription_best_effort() -> None:
    checked = Checked(IMAGE)
    checked.topic.qos = replace(checked.topic.qos, reliability="reliable")

    checked.check_at(0.0)

    assert checked.topic.wanted is not None
    assert checked.topic.wanted.reliability == "best_effort"


@pytest.mark.parametrize(
    ("declared", "advice"),
    [
        ("reliable", "set the stream's qos.reliability to auto"),
        ("auto", "set the node's parameter reliable to false, which is for replays"),
    ],
    ids=["by the spec", "by the parameter"],
)
def test_incompatible_reliability_is_reported_with_the_setting_that_causes_it(declared: str, advice: str) -> None:
    checked = Checked(IMAGE)
    (stream,) = checked.topic.streams
    checked.topic.streams = (replace(stream, qos=replace(stream.qos, reliability=declared)),)
    checked.topic.qos, checked.topic.auto = replace(checked.topic.qos, reliability="reliable"), False

    checked.check_at(0.0)

    assert checked.lines == [f"front: a publisher of /camera offers less reliability than the node requests; {advice}"]


def test_topic_without_a_publisher_is_not_warned_of() -> None:
    checked = Checked(limit=limit(500_000))

    checked.check_at(0.0, 10 * SILENT_S)

    assert checked.lines == []


@pytest.mark.parametrize(("at_receiver", "count"), [(True, 1), (False, 0)])
def test_received_size_above_the_limit_is_warned_of_where_the_receiver_limits(at_receiver: bool, count: int) -> None:
    checked = Checked(IMAGE, limit=limit(500_000, at_receiver=at_receiver))
    checked.topic.largest_bytes = 921_600

    checked.check_at(0.0, 1.0)

    assert len(checked.lines) == count
    assert all("0.88 MiB" in line for line in checked.lines)


def test_type_of_a_publisher_cannot_forge_a_log_line() -> None:
    checked = Checked("x/msg/A\n[FATAL] [0] [fusion_node]: forged" + "y" * 5000)

    checked.check_at(0.0, 1.0)

    (line,) = checked.lines
    assert "type mismatch" in line
    assert "\n" not in line
    assert len(line) < 250
    assert "\n" not in checked.state.problems["type"]


def test_stream_that_stops_keeps_its_value_and_is_reported_as_stale(
    rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any]
) -> None:
    joint_spec["streams"]["joints"]["on_invalid"] = "hold"
    rig.fusion(joint_spec).autostart()
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    diagnostics = rig.listen(DiagnosticArray, "/diagnostics")
    publisher = rig.publisher(JointState, "/joints")
    wait(publisher.get_subscription_count, "the node's subscription")
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    message = JointState(name=["a", "b"], position=[0.5, 0.25])
    message.header.stamp = Time(sec=seconds, nanosec=nanoseconds)
    publisher.publish(message)

    def stale_ms() -> float:
        status, _ = rig.status(diagnostics, "joints")
        # A row is joints, command, then `valid` of both and their ages.
        stale = status is not None and status.level == DiagnosticStatus.STALE
        return fused.newest.data[-2] if stale and len(fused) else 0.0

    wait(lambda: stale_ms() > 200, "a tick whose joints are older than max_age_ms")
    assert list(fused.newest.data[-7:-5]) == [0.5, 0.25]
    assert fused.newest.data[-4] == 2
