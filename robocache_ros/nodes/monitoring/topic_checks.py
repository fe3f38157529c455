"""Compares the subscribed topics with their publishers: type, quality of service, and lost messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
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

    def check(self, *, active: bool) -> None:
        """Compare every topic with its publishers; messages arrive only while the node is active."""
        for number, topic in enumerate(self._subscriptions.topics):
            publishers = self._node.get_publishers_info_by_topic(topic.name)
            if topic.auto and publishers:
                self._choose_reliability(topic, publishers)
            self._check_qos(number, topic, publishers)
            self._check_type(topic, publishers)
            self._check_arrival(number, topic, len(publishers), active)

    def _choose_reliability(self, topic: Topic, publishers: Sequence[Any]) -> None:
        """Request what all publishers offer. A topic whose messages arrive keeps its subscription."""
        lossy = qos.any_best_effort(publisher.qos_profile for publisher in publishers)
        arrives = topic.largest_bytes and not self._exceeded(topic)
        lost = topic.large and not arrives and not lossy and topic.qos.reliability == "best_effort"
        if not lost and not (lossy and topic.qos.reliability == "reliable"):
            return
        topic.wanted = replace(topic.qos, reliability="best_effort" if lossy else "reliable")
        self._node.get_logger().info(
            f"{topic.streams[0].name}: subscribing to {printable(topic.name, 60)} as {topic.wanted.reliability}, "
            f"which all of its publishers offer"
        )

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
            forced = policy == "reliability" and not topic.auto and stream.qos.reliability != "reliable"
            advice = (
                "set the node's parameter reliable to false, which is for replays"
                if forced
                else f"set the stream's qos.{policy} to {'auto' if policy == 'reliability' else 'volatile'}"
            )
            text = f"a publisher of {name} offers less {policy} than the node requests; {advice}"
            if "qos" not in state.problems:
                self._node.get_logger().error(f"{stream.name}: {text}")
            state.problems["qos"] = text

    def _check_arrival(self, number: int, topic: Topic, publishers: int, active: bool) -> None:
        """Warn of a published topic from which nothing arrives, and of messages that the receiver's transport loses."""
        states = [self._subscriptions.states[stream.name] for stream in topic.streams]
        arrived = bool(topic.largest_bytes) or any(state.newest_arrival_ns is not None for state in states)
        if arrived or not active or not publishers:
            self._published_since_s.pop(number, None)
        since_s = self._published_since_s.setdefault(number, self._now_s())
        silent = publishers and active and not arrived and self._now_s() - since_s >= SILENT_S
        exceeded = self._exceeded(topic)
        for stream, state in zip(topic.streams, states, strict=True):
            state.publishers = publishers
            if not silent or state.problems.keys() & {"type", "qos"}:
                state.loss = exceeded
            elif not state.loss:
                lossy = self._limit if topic.large and topic.qos.reliability == "best_effort" else None
                advice = lossy.losses if lossy else "check that they publish (ros2 topic hz)"
                state.loss = f"nothing arrives from {publishers} publisher(s) of {printable(topic.name, 60)}; {advice}"
                self._node.get_logger().warning(f"{stream.name}: {state.loss}")
        if exceeded and self._limit and self._limit.at_receiver and number not in self._warned:
            self._warned.add(number)
            self._node.get_logger().warning(f"{topic.streams[0].name}: {exceeded}")

    def _exceeded(self, topic: Topic) -> str:
        """Why best effort loses messages of the size that the topic has; empty if it carries them."""
        if self._limit is None or not topic.large or topic.qos.reliability != "best_effort":
            return ""
        nbytes = topic.largest_bytes
        return f"messages have {nbytes / 2**20:.2f} MiB; {self._limit.losses}" if nbytes > self._limit.nbytes else ""
