"""Compares the subscribed topics with their publishers: type, quality of service, and lost messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rclpy.node import Node

from robocache_ros.errors import printable
from robocache_ros.nodes.middleware import qos
from robocache_ros.nodes.middleware.transport import Limit
from robocache_ros.nodes.subscriptions.topics import Topic, TopicSubscriptions

SILENT_S = 5.0  # a topic with a publisher but without a message for this long is reported


class TopicChecks:
    """Checks the publishers of each topic; each problem is logged once and stored in `StreamState.problems`.

    Args:
        node: the node whose view of the ROS graph is used.
        subscriptions: the topics.
        limit: the limit of the transport, None if it is not known.
        now_s: returns the time of a monotonic clock.
    """

    def __init__(
        self,
        node: Node,
        subscriptions: TopicSubscriptions,
        limit: Limit | None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._subscriptions = subscriptions
        self._limit = limit
        self._now_s = now_s
        self._short: dict[int, set[bytes]] = {}  # by topic: publishers that offer less than is requested
        self._published_since_s: dict[int, float] = {}  # by topic: since when there is a publisher and no message
        self._warned: set[int] = set()  # topics whose messages are too large for the transport

    def check(self) -> None:
        """Compare every topic with its publishers."""
        for number, topic in enumerate(self._subscriptions.topics):
            publishers = self._node.get_publishers_info_by_topic(topic.subscription.topic_name)
            self._check_qos(number, topic, publishers)
            self._check_type(topic, publishers)
            if self._limit and topic.large and number not in self._warned:
                self._check_size(number, topic, publishers, self._limit)

    def _check_type(self, topic: Topic, publishers: Sequence[Any]) -> None:
        others = sorted({entry.topic_type for entry in publishers} - {topic.streams[0].type})
        for stream in topic.streams:
            problems = self._subscriptions.states[stream.name].problems
            if not others:
                problems.pop("type", None)
                continue
            types = printable(", ".join(others))
            text = f"{printable(stream.topic, 60)} is published as {types}, the spec declares {stream.type}; change one"
            if problems.get("type") != text:
                self._node.get_logger().error(f"{stream.name}: type mismatch: {text}")
            problems["type"] = text

    def _check_qos(self, number: int, topic: Topic, publishers: Sequence[Any]) -> None:
        policies = {bytes(p.endpoint_gid): qos.unmet(topic.qos, p.qos_profile) for p in publishers}
        short = {gid: policy for gid, policy in policies.items() if policy}
        new = short.keys() - self._short.get(number, set())
        self._short[number] = set(short)
        for stream in topic.streams:
            state = self._subscriptions.states[stream.name]
            state.events["incompatible_qos"] += len(new)
            if not short:
                state.problems.pop("qos", None)
                continue
            name = printable(stream.topic, 60)
            policy = next(iter(short.values()))
            text = (
                f"a publisher of {name} offers less {policy} than the node requests; change one of the two QoS profiles"
            )
            if "qos" not in state.problems:
                self._node.get_logger().error(f"{stream.name}: {text}")
            state.problems["qos"] = text

    def _check_size(self, number: int, topic: Topic, publishers: Sequence[Any], limit: Limit) -> None:
        stream = topic.streams[0]
        if topic.qos.reliability != "best_effort":
            return
        if topic.largest_bytes:
            text = limit.exceeded(stream, topic.largest_bytes) if limit.at_receiver else ""
        elif not publishers:
            self._published_since_s.pop(number, None)
            return
        else:
            since_s = self._published_since_s.setdefault(number, self._now_s())
            text = limit.silent(stream, len(publishers)) if self._now_s() - since_s >= SILENT_S else ""
        if text:
            self._warned.add(number)
            self._node.get_logger().warning(text)
