"""From the topics into the engine: one subscription a topic, taken as serialized bytes."""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rclpy.node import Node
from rclpy.subscription import Subscription

from robocache_ros.decode import definitions_of
from robocache_ros.engine import Ingest
from robocache_ros.engine.rooms import room_for
from robocache_ros.errors import RoboCacheError
from robocache_ros.nodes import compat, qos
from robocache_ros.nodes.taking import Taken, Taker
from robocache_ros.spec import FusionSpec, StreamSpec

FIRST_BYTES = 4096  # room for a large message until the first one has shown its size
ROOMS = 2  # of a large feed: one for the message that is taken, one for the next
_STAMP = {0: struct.Struct(">iI"), 1: struct.Struct("<iI")}  # by the encapsulation's byte order
_LENGTH = {0: struct.Struct(">I"), 1: struct.Struct("<I")}


@dataclass
class Delay:
    """Sum, count and maximum of a delay since it was last read."""

    total_ns: int = 0
    count: int = 0
    max_ns: int = 0

    def add(self, delay_ns: int) -> None:
        """Count one."""
        self.total_ns += delay_ns
        self.count += 1
        self.max_ns = max(self.max_ns, delay_ns)

    def read(self) -> tuple[float, float] | None:
        """Mean and maximum in ms since the last call, None without one."""
        total, count, most = self.total_ns, self.count, self.max_ns
        self.total_ns = self.count = self.max_ns = 0
        return (total / count / 1e6, most / 1e6) if count else None


@dataclass
class StreamState:
    """What is known of a stream besides the engine's counters."""

    newest_arrival_ns: int | None = None
    age: Delay = field(default_factory=Delay)  # header stamp to arrival
    transport: Delay = field(default_factory=Delay)  # published to received, by the middleware's clocks
    frame_id: str = ""
    crashed: int = 0  # messages on which the decoder itself failed
    problems: dict[str, str] = field(default_factory=dict)  # what keeps the topic from matching, by kind
    events: Counter[str] = field(default_factory=Counter)


@dataclass
class Feed:
    """A subscription and the streams that its messages go to."""

    subscription: Subscription[Any]
    streams: tuple[StreamSpec, ...]
    depth: int
    short: set[bytes] = field(default_factory=set)  # publishers that offer less than is asked for
    nbytes: int = FIRST_BYTES  # that a large message needs
    rooms: deque[NDArray[np.uint8]] = field(default_factory=deque)  # that the next ones go into

    @property
    def large(self) -> bool:
        """Whether messages are images or clouds, and go where the engine wants them."""
        return self.streams[0].kind != "vector"

    def take_all(self, taker: Taker) -> Iterator[Taken]:
        """What has come in, at most a queue's depth, so that no topic starves the others."""
        for _ in range(self.depth):
            message = self._take_large(taker) if self.large else taker.take(self.subscription)
            if message is None:
                return
            yield message

    def _take_large(self, taker: Taker) -> Taken | None:
        while self.rooms and len(self.rooms[0]) < self.nbytes:  # only here is one taken out: two threads share them
            self.rooms.popleft()
        room = self.rooms.popleft() if self.rooms else np.empty(self.nbytes, np.uint8)
        message = taker.take_into(self.subscription, room)
        if message is None:
            self.rooms.appendleft(room)
        else:
            self.nbytes = max(self.nbytes, room_for(len(message.data)))
        return message


class Intake:
    """The subscriptions of a spec.

    Args:
        node: whose subscriptions they are.
        spec: the streams; those of one topic share a subscription.
        ingest: where the messages go.
    """

    def __init__(self, node: Node, spec: FusionSpec, ingest: Ingest) -> None:
        self.states = {feed.name: StreamState() for feed in spec.feeds}
        self._node = node
        self._ingest = ingest
        self._group = compat.OwnThread()
        self._taker = Taker()
        shared: dict[tuple[Any, ...], list[StreamSpec]] = {}
        for stream in spec.feeds:
            shared.setdefault((stream.topic, stream.type, stream.qos), []).append(stream)
        # Images and clouds last: joints do not wait for them.
        ordered = sorted(shared.values(), key=lambda streams: streams[0].kind != "vector")
        self.feeds = [self._subscribe(tuple(streams)) for streams in ordered]

    def take(self, *, large: bool = True) -> list[tuple[Feed, Taken]]:
        """What has come in since; without the large messages where a thread of their own takes them."""
        self.provide()
        return [(feed, taken) for feed in self.feeds if large or not feed.large for taken in feed.take_all(self._taker)]

    def provide(self) -> None:
        """Get memory from the engine for the next large messages: in the thread that pushes them."""
        for feed in self.feeds:
            if feed.large and feed.nbytes > FIRST_BYTES:
                while len(feed.rooms) < ROOMS:
                    feed.rooms.append(self._ingest.engine.room(feed.streams[0].name, feed.nbytes))

    def push(self, feed: Feed, message: Taken, arrival_ns: int) -> None:
        """Hand a message to each of its streams; nothing in it can raise."""
        data, source_ns, received_ns = message
        for stream in feed.streams:
            state = self.states[stream.name]
            state.newest_arrival_ns = arrival_ns
            if source_ns and received_ns:
                state.transport.add(received_ns - source_ns)
            if stream.stamp == "header":
                _read_header(data, arrival_ns, state, stream.kind != "vector")
            try:
                self._ingest.serialized(stream.name, data, arrival_ns)
            except Exception as error:
                # Ingest counts bad messages itself; what gets here is a fault of ours, and the robot goes on.
                if not state.crashed:
                    self._node.get_logger().error(f"{stream.name}: a message could not be taken in: {error!r}")
                state.crashed += 1

    def discard(self) -> None:
        """Throw away what waits in the middleware."""
        while self.take():
            pass

    def check_graph(self) -> None:
        """Note in `problems` where a topic is published with another type, or offered less than the spec asks for."""
        for feed in self.feeds:
            info = self._node.get_publishers_info_by_topic(feed.subscription.topic_name)
            self._check_qos(feed, info)
            others = sorted({entry.topic_type for entry in info} - {feed.streams[0].type})
            for stream in feed.streams:
                problems = self.states[stream.name].problems
                if not others:
                    problems.pop("type", None)
                    continue
                text = f"{stream.topic} is published as {', '.join(others)}, the spec says {stream.type}"
                if problems.get("type") != text:
                    self._node.get_logger().error(f"{stream.name}: type mismatch: {text}")
                problems["type"] = text

    def destroy(self) -> None:
        """Give the subscriptions back."""
        for feed in self.feeds:
            self._node.destroy_subscription(feed.subscription)
        self.feeds = []

    def _check_qos(self, feed: Feed, publishers: Sequence[Any]) -> None:
        first = feed.streams[0]
        policies = {bytes(p.endpoint_gid): qos.unmet(first.qos, p.qos_profile) for p in publishers}
        short = {gid: policy for gid, policy in policies.items() if policy}
        new = short.keys() - feed.short
        feed.short = set(short)
        for stream in feed.streams:
            state = self.states[stream.name]
            state.events["incompatible_qos"] += len(new)
            if not short:
                state.problems.pop("qos", None)
                continue
            text = f"{stream.topic} is offered with another {next(iter(short.values()))} than the spec's qos asks for"
            if "qos" not in state.problems:
                self._node.get_logger().error(f"{stream.name}: {text}; nothing is received from that publisher")
            state.problems["qos"] = text

    def _subscribe(self, streams: tuple[StreamSpec, ...]) -> Feed:
        first = streams[0]
        subscription = self._node.create_subscription(
            message_class(first),
            first.topic,
            _never_called,
            qos.profile(first.qos),
            callback_group=self._group,
            event_callbacks=compat.no_events(),
            raw=True,
        )
        return Feed(subscription, streams, first.qos.depth)


def message_class(stream: StreamSpec) -> type[Any]:
    """The message class of a stream; RoboCacheError where its package is not installed."""
    found = compat.load_message_class(stream.type)
    if found is None:
        package = stream.type.partition("/")[0]
        raise RoboCacheError(
            f"streams.{stream.name}.type: {stream.type} is not installed; "
            f"install the package {package} or source the workspace it is in"
        )
    return found


def definitions(spec: FusionSpec) -> dict[str, str]:
    """The definitions of the spec's message types, from the installed classes."""
    texts: dict[str, str] = {}
    for stream in spec.feeds:
        texts.update(definitions_of(message_class(stream)))
    return texts


def _never_called(data: bytes) -> None:
    """Stands where rclpy wants a callback; the messages are taken by `Intake.take`."""


def _read_header(data: bytes | memoryview, arrival_ns: int, state: StreamState, with_frame: bool) -> None:
    """Read stamp and frame of the Header that a message begins with; one cut short is left to the decoder to count."""
    if len(data) < 16:
        return
    order = data[1] & 1
    seconds, nanoseconds = _STAMP[order].unpack_from(data, 4)
    state.age.add(arrival_ns - seconds * 1_000_000_000 - nanoseconds)
    if with_frame:
        (length,) = _LENGTH[order].unpack_from(data, 12)
        if 0 < length <= min(256, len(data) - 16):
            state.frame_id = str(data[16 : 16 + length - 1], errors="replace")
