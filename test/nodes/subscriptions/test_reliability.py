"""Subscriptions whose reliability follows from what the publishers offer."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")
from rclpy.qos import ReliabilityPolicy
from sensor_msgs.msg import Image, JointState

from robocache_ros.nodes.subscriptions import LargeMessages, TopicSubscriptions
from robocache_ros.spec import load_spec
from test.nodes.rig import until

SPEC = load_spec(
    {
        "robocache": 1,
        "streams": {
            "front": {"topic": "/front", "type": "sensor_msgs/msg/Image"},
            "rear": {"topic": "/rear", "type": "sensor_msgs/msg/Image"},
            "joints": {"topic": "/joints", "type": "sensor_msgs/msg/JointState", "names": ["a"]},
        },
    }
)
BEST_EFFORT = ReliabilityPolicy.BEST_EFFORT


def requested(node: Any, topic: str) -> list[str]:
    """The reliability of each subscription of a topic, as publishers see it."""
    return [info.qos_profile.reliability.name for info in node.get_subscriptions_info_by_topic(topic)]


def test_images_are_requested_as_their_known_publishers_offer_them(rig):
    rig.publisher(Image, "/front")
    rig.publisher(Image, "/rear", reliability=BEST_EFFORT)
    rig.publisher(JointState, "/joints")
    until(lambda: all(rig.node.get_publishers_info_by_topic(t) for t in ("/front", "/rear", "/joints")), "publishers")

    subscriptions = TopicSubscriptions(rig.node, SPEC, SimpleNamespace())

    assert {topic.name: topic.qos.reliability for topic in subscriptions.topics} == {
        "/front": "reliable",
        "/rear": "best_effort",
        "/joints": "best_effort",  # small messages are not lost, and it receives publishers of both kinds
    }
    subscriptions.destroy()


def test_topic_is_received_after_its_subscription_was_replaced(rig):
    subscriptions = TopicSubscriptions(rig.node, SPEC, SimpleNamespace())
    large = LargeMessages(rig.node, subscriptions, lambda error: pytest.fail(repr(error)))
    front = next(topic for topic in subscriptions.topics if topic.name == "/front")
    assert front.qos.reliability == "best_effort"

    front.wanted = replace(front.qos, reliability="reliable")
    until(lambda: requested(rig.node, "/front") == ["RELIABLE"], "the subscription")
    publisher = rig.publisher(Image, "/front")
    until(publisher.get_subscription_count, "the match")
    publisher.publish(Image(height=1, width=1, encoding="mono8", step=1, data=b"\x07"))

    (received,) = until(lambda: large.read(1), "the image")
    assert received[0] is front
    large.destroy()
    subscriptions.destroy()
