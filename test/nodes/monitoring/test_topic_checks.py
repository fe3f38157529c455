"""What publishers offer, messages that the transport loses, and streams that stop."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")
from rclpy.qos import QoSProfile, ReliabilityPolicy

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
        self.topic = Topic(SimpleNamespace(), (stream,), qos, "/camera", auto=True)
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
def test_images_are_requested_as_their_publishers_offer_them_unless_they_arrive(
    offers, requests, largest_bytes, wanted
):
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
