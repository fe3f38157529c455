"""TopicChecks: what publishers offer, and messages that the transport loses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")
from rclpy.qos import QoSProfile, ReliabilityPolicy

from robocache_ros.nodes.middleware.transport import Limit
from robocache_ros.nodes.monitoring.topic_checks import SILENT_S, TopicChecks
from robocache_ros.nodes.subscriptions.topics import StreamState, Topic
from robocache_ros.spec import load_spec

IMAGE = "sensor_msgs/msg/Image"
SPEC = load_spec({"robocache": 1, "streams": {"front": {"topic": "/camera", "type": IMAGE}}})


class Checked:
    """Checks of one camera topic with given publishers, and the lines that they log."""

    def __init__(self, *types: str, limit: Limit | None = None) -> None:
        self.lines: list[str] = []
        self.now_s = 0.0
        (stream,) = SPEC.streams
        self.topic = Topic(SimpleNamespace(topic_name="/camera"), (stream,), stream.qos)  # type: ignore[arg-type]
        self.state = StreamState()
        self.publishers = [
            SimpleNamespace(
                topic_type=name,
                endpoint_gid=[number],
                qos_profile=QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE),
            )
            for number, name in enumerate(types)
        ]
        logger = SimpleNamespace(error=self.lines.append, warning=self.lines.append)
        node: Any = SimpleNamespace(
            get_logger=lambda: logger, get_publishers_info_by_topic=lambda name: self.publishers
        )
        subscriptions: Any = SimpleNamespace(topics=[self.topic], states={"front": self.state})
        self.checks = TopicChecks(node, subscriptions, limit, lambda: self.now_s)

    def check_at(self, *times_s: float) -> None:
        for self.now_s in times_s:
            self.checks.check()


def limit(nbytes: int, *, at_receiver: bool = False) -> Limit:
    return Limit(nbytes, "the segment", "use the profile", at_receiver)


def test_published_topic_without_a_message_is_warned_of_once() -> None:
    checked = Checked(IMAGE, limit=limit(500_000))

    checked.check_at(0.0, SILENT_S - 0.1)
    before = list(checked.lines)
    checked.check_at(SILENT_S, SILENT_S + 1, SILENT_S + 100)

    assert before == []
    assert len(checked.lines) == 1
    assert checked.lines[0].startswith("front: nothing arrives from 1 publisher(s) of /camera")


def test_topic_whose_messages_arrive_is_not_warned_of() -> None:
    checked = Checked(IMAGE, limit=limit(500_000))
    checked.topic.largest_bytes = 57_600

    checked.check_at(0.0, 10 * SILENT_S)

    assert checked.lines == []


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
