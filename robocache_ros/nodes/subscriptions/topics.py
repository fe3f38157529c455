"""Passes the topics' messages to the engine: one subscription per topic, messages as serialized bytes."""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rclpy.node import Node
from rclpy.subscription import Subscription

from robocache_ros.buffer_pool import buffer_for
from robocache_ros.decode import definitions_of
from robocache_ros.engine import Ingest
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.nodes.middleware import compat
from robocache_ros.nodes.middleware.qos import any_best_effort, for_replay, profile
from robocache_ros.nodes.subscriptions.raw_subscriber import RawSubscriber, ReceivedMessage
from robocache_ros.spec import FusionSpec, QosSpec, StreamSpec

FIRST_BYTES = 4096  # size of the buffer for the first large message, which determines the size of the next buffers
BUFFERS = 2  # buffers of a large topic: one for the message that is being received, one for the next
HEADER_BYTES = 16  # encapsulation, stamp and length of frame_id
_LENGTH = {0: struct.Struct(">I"), 1: struct.Struct("<I")}  # by the byte order in the encapsulation


@dataclass
class Delay:
    """Sum, count and maximum of a delay since it was last read."""

    total_ns: int = 0
    count: int = 0
    max_ns: int = 0

    def add(self, delay_ns: int) -> None:
        """Add one delay."""
        self.total_ns += delay_ns
        self.count += 1
        self.max_ns = max(self.max_ns, delay_ns)

    def read(self) -> tuple[float, float] | None:
        """Mean and maximum in ms since the last call; None if there was no delay."""
        total, count, most = self.total_ns, self.count, self.max_ns
        self.total_ns = self.count = self.max_ns = 0
        return (total / count / 1e6, most / 1e6) if count else None


@dataclass
class StreamState:
    """State of a stream's messages, in addition to the engine's counters."""

    newest_arrival_ns: int | None = None
    publishers: int = 0  # of its topic, at the last check
    loss: str = ""  # why messages may be lost on the way
    age: Delay = field(default_factory=Delay)  # header stamp to arrival
    transport: Delay = field(default_factory=Delay)  # publication to reception, by the middleware's timestamps
    frame_id: str = ""
    crashed: int = 0  # messages that raised an exception other than DecodeError
    problems: dict[str, str] = field(default_factory=dict)  # problems with the topic's publishers, by cause (type, qos)
    events: Counter[str] = field(default_factory=Counter)


@dataclass
class Topic:
    """A subscribed topic and the streams that receive its messages."""

    subscription: Subscription[Any]
    streams: tuple[StreamSpec, ...]
    qos: QosSpec
    name: str  # the topic, after remapping
    auto: bool = False  # whether the reliability follows from what the publishers offer
    wanted: QosSpec | None = None  # QoS that the thread that receives the topic shall subscribe with next
    largest_bytes: int = 0  # size of the largest message so far, of a large topic
    buffers: deque[NDArray[np.uint8]] = field(default_factory=deque)  # for the next large messages

    @property
    def large(self) -> bool:
        """Whether messages are images or clouds, which are received into the engine's buffers."""
        return self.streams[0].kind != "vector"

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffers for the next large messages."""
        return buffer_for(self.largest_bytes) if self.largest_bytes else FIRST_BYTES

    def take(self, subscriber: RawSubscriber, limit: int) -> Iterator[ReceivedMessage]:
        """The waiting messages, oldest first, at most `limit`."""
        for _ in range(limit):
            message = self._take_large(subscriber) if self.large else subscriber.take(self.subscription)
            if message is None:
                return
            yield message

    def _take_large(self, subscriber: RawSubscriber) -> ReceivedMessage | None:
        nbytes = self.buffer_bytes
        while self.buffers and len(self.buffers[0]) < nbytes:  # only this thread removes buffers; another one adds them
            self.buffers.popleft()
        buffer = self.buffers.popleft() if self.buffers else np.empty(nbytes, np.uint8)
        message = subscriber.take_into(self.subscription, buffer)
        if message is None:
            self.buffers.appendleft(buffer)
        else:
            self.largest_bytes = max(self.largest_bytes, len(message.data))
        return message


class TopicSubscriptions:
    """The subscriptions of a spec.

    Args:
        node: owns the subscriptions.
        spec: the streams; those of one topic share a subscription.
        ingest: receives the messages.
        reliable: subscribe to all topics as reliable with deep queues, regardless of the spec's qos.
    """

    def __init__(self, node: Node, spec: FusionSpec, ingest: Ingest, *, reliable: bool = False) -> None:
        self.states = {stream.name: StreamState() for stream in spec.feeds}
        self._node = node
        self._ingest = ingest
        self._group = compat.ManualCallbackGroup()
        self._raw_subscriber = RawSubscriber()
        shared: dict[tuple[Any, ...], list[StreamSpec]] = {}
        for stream in spec.feeds:
            shared.setdefault((stream.topic, stream.type, stream.qos), []).append(stream)
        # Images and clouds are last, so that joints do not wait for them.
        ordered = sorted(shared.values(), key=lambda streams: streams[0].kind != "vector")
        self.topics = [self._subscribe(tuple(streams), reliable) for streams in ordered]

    def take(self) -> list[tuple[Topic, ReceivedMessage]]:
        """The waiting messages, at most the queue depth of each topic."""
        self.provide_buffers()
        return [entry for topic in self.topics for entry in self.take_from(topic, topic.qos.depth)]

    def take_from(self, topic: Topic, limit: int) -> list[tuple[Topic, ReceivedMessage]]:
        """The waiting messages of a topic, oldest first, at most `limit`."""
        self.resubscribe(topic)
        return [(topic, message) for message in topic.take(self._raw_subscriber, limit)]

    def provide_buffers(self) -> None:
        """Get buffers from the engine for the next large messages; called in the thread that pushes them."""
        for topic in self.topics:
            if topic.large and topic.largest_bytes:
                while len(topic.buffers) < BUFFERS:
                    topic.buffers.append(self._ingest.engine.buffer(topic.streams[0].name, topic.buffer_bytes))

    def push(self, topic: Topic, message: ReceivedMessage, arrival_ns: int) -> None:
        """Hand a message to each of its streams; never raises."""
        data, source_ns, received_ns = message
        for stream in topic.streams:
            state = self.states[stream.name]
            state.newest_arrival_ns = arrival_ns
            if source_ns and received_ns:
                state.transport.add(received_ns - source_ns)
            if topic.large:
                state.frame_id = _frame_id(data) or state.frame_id
            try:
                self._ingest.serialized(stream.name, data, arrival_ns)
            except Exception as error:
                # Ingest counts bad messages itself. Any other exception is a bug in this package; the node continues.
                if not state.crashed:
                    text = printable(repr(error), 120)
                    self._node.get_logger().error(f"{stream.name}: a message could not be decoded: {text}")
                state.crashed += 1
                continue
            stamp_ns = self._ingest.stamps_ns.pop(stream.name, None)
            if stamp_ns and stream.stamp != "receive":
                clock = self._ingest.engine.device_clocks.get(stream.name)
                state.age.add(arrival_ns - (clock.newest_ns if clock else stamp_ns))

    def discard(self) -> None:
        """Drop the messages that wait in the middleware."""
        self.take()  # limited to the queue depths, so that a flood does not keep it busy

    def destroy(self) -> None:
        """Destroy the subscriptions."""
        for topic in self.topics:
            self._node.destroy_subscription(topic.subscription)
        self.topics = []

    def resubscribe(self, topic: Topic) -> None:
        """Subscribe to a topic with the QoS that `TopicChecks` wants; called by the thread that receives it."""
        wanted, topic.wanted = topic.wanted, None
        if wanted:
            self._node.destroy_subscription(topic.subscription)
            topic.subscription, topic.qos = self._subscription(topic.streams[0], wanted), wanted

    def _subscribe(self, streams: tuple[StreamSpec, ...], reliable: bool) -> Topic:
        first = streams[0]
        large = first.kind != "vector"
        asked = for_replay(first.qos, large=large) if reliable else first.qos
        name = self._node.resolve_topic_name(first.topic)
        auto = asked.reliability == "auto"
        if auto:
            offered = [publisher.qos_profile for publisher in self._node.get_publishers_info_by_topic(name)]
            all_reliable = large and offered and not any_best_effort(offered)
            asked = replace(asked, reliability="reliable" if all_reliable else "best_effort")
        return Topic(self._subscription(first, asked), streams, asked, name, auto)

    def _subscription(self, stream: StreamSpec, asked: QosSpec) -> Subscription[Any]:
        return self._node.create_subscription(
            message_class(stream),
            stream.topic,
            _never_called,
            profile(asked),
            callback_group=self._group,
            event_callbacks=compat.no_events(),
            raw=True,
        )


def message_class(stream: StreamSpec) -> type[Any]:
    """The message class of a stream; RoboCacheError if its package is not installed."""
    found = compat.load_message_class(stream.type)
    if found is None:
        package = stream.type.partition("/")[0]
        raise RoboCacheError(
            f"streams.{stream.name}.type: {stream.type} is not installed; "
            f"install the package {package} or source the workspace it is in"
        )
    return found


def definitions(spec: FusionSpec) -> dict[str, str]:
    """The definitions of the spec's message types, from the installed classes; transforms need no definition."""
    texts: dict[str, str] = {}
    for stream in (feed for feed in spec.feeds if not feed.is_transform):
        texts.update(definitions_of(message_class(stream)))
    return texts


def _never_called(data: bytes) -> None:
    """The callback that rclpy requires; `TopicSubscriptions.take` receives the messages instead."""


def _frame_id(data: bytes | memoryview) -> str:
    """The frame of an image or a cloud, whose first field is the header; empty if it is missing or truncated."""
    if len(data) < HEADER_BYTES:
        return ""
    (length,) = _LENGTH[data[1] & 1].unpack_from(data, HEADER_BYTES - 4)
    if not 0 < length <= min(256, len(data) - HEADER_BYTES):
        return ""
    return str(data[HEADER_BYTES : HEADER_BYTES + length - 1], errors="replace")
