"""WallClockSource and LargeMessages: a tick sees the messages that were received when it was made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")
from sensor_msgs.msg import Image

from robocache_ros.engine import FusionEngine
from robocache_ros.nodes import middleware, subscriptions, tick_loop
from robocache_ros.nodes.subscriptions import ARRIVALS_BATCH, LargeMessages, ReceivedMessage
from robocache_ros.nodes.tick_loop import WallClockSource
from robocache_ros.spec import load_spec
from test.nodes.rig import stamped, until

MS = 1_000_000
SPEC: dict[str, Any] = {
    "robocache": 1,
    "delay_ms": 30,
    "lead_ms": 5,
    "streams": {
        "front": {
            "topic": "/front",
            "type": "sensor_msgs/msg/Image",
            "image": {"size": [2, 2]},
            "max_age_ms": 10_000,
            "qos": {"reliability": "reliable", "depth": 5},
        }
    },
}


class ReceivedMessages:
    """Stands for the thread that receives large messages: the test decides what it has received."""

    def __init__(self, node: Any, *_: Any) -> None:
        self.arrived = middleware.signal(node)
        self.received: deque[Any] = deque()

    def read(self, limit: int) -> list[Any]:
        return [self.received.popleft() for _ in range(min(limit, len(self.received)))]

    def destroy(self) -> None:
        self.arrived.destroy()


@pytest.fixture
def wall_clock(rig, monkeypatch):
    """A wall clock source, the arrivals it pushed, and the large messages that it will find received."""
    large: list[ReceivedMessages] = []

    def receive(*arguments: Any) -> ReceivedMessages:
        large.append(ReceivedMessages(*arguments))
        return large[0]

    monkeypatch.setattr(tick_loop, "LargeMessages", receive)
    monkeypatch.setattr(tick_loop, "PUSH_NS", 3600_000 * MS)  # a step has time for all messages
    engine = FusionEngine(load_spec(SPEC))
    pushed: list[int] = []
    topics: Any = SimpleNamespace(
        topics=[],
        provide_buffers=lambda: None,
        push=lambda topic, message, arrival_ns: pushed.append(arrival_ns),
    )
    source = WallClockSource(rig.node, topics, engine, lambda error: None)
    yield SimpleNamespace(source=source, engine=engine, pushed=pushed, received=large[0].received)
    source.destroy()


def test_message_received_after_a_tick_was_made_arrives_after_it(wall_clock):
    while not list(wall_clock.source.step()):
        wall_clock.source.wait()
    made_ns = wall_clock.engine.newest_cut_ns
    wall_clock.received.append((None, ReceivedMessage(b"", 0, made_ns - 4 * MS)))
    wall_clock.received.append((None, ReceivedMessage(b"", 0, made_ns + 1 * MS)))

    list(wall_clock.source.step())

    assert wall_clock.pushed == [made_ns + 1, made_ns + 1 * MS]


def test_flood_does_not_keep_a_tick_waiting(wall_clock, monkeypatch):
    for name in ("PUSH_NS", "FLOOD_NS"):
        monkeypatch.setattr(tick_loop, name, -1)  # a step has time for one message
    while not list(wall_clock.source.step()):
        wall_clock.source.wait()
    made_ns = wall_clock.engine.newest_cut_ns
    wall_clock.received.extend((None, ReceivedMessage(b"", 0, made_ns - number * MS)) for number in range(3))

    pushed = []
    for _ in range(3):
        list(wall_clock.source.step())
        wall_clock.source.wait()  # returns at once while messages wait
        pushed.append(len(wall_clock.pushed))

    assert pushed == [1, 2, 3]
    assert min(wall_clock.pushed) > made_ns


def test_flood_with_pauses_is_one_flood(wall_clock, monkeypatch):
    def flooded() -> int:
        wall_clock.received.extend((None, ReceivedMessage(b"", 0, 1)) for _ in range(2 * ARRIVALS_BATCH))
        before = len(wall_clock.pushed)
        list(wall_clock.source.step())
        pushed = len(wall_clock.pushed) - before
        while len(wall_clock.pushed) - before < 2 * ARRIVALS_BATCH:
            list(wall_clock.source.step())
        list(wall_clock.source.step())  # a pause: everything is read
        return pushed

    monkeypatch.setattr(tick_loop, "FLOOD_NS", -1)  # in a flood a step has time for one message
    assert flooded() == 2 * ARRIVALS_BATCH
    monkeypatch.setattr(tick_loop, "PUSH_NS", -1)
    assert flooded() == 1
    monkeypatch.setattr(tick_loop, "PUSH_NS", 3600_000 * MS)

    assert flooded() == 1

    monkeypatch.setattr(subscriptions, "FLOOD_WINDOW_NS", 0)
    for _ in range(2):  # a window that begins in the flood, and a calm one
        list(wall_clock.source.step())
    assert flooded() == 2 * ARRIVALS_BATCH


def test_signal_ends_a_wait_for_messages(rig):
    signal = middleware.signal(rig.node)
    waiter = middleware.Waiter(rig.node, 0, signal)
    signal.trigger()

    waiter.wait(3600_000 * MS, [])  # it would outlast the test's time limit

    waiter.destroy()
    signal.destroy()


def test_images_of_any_size_are_received_next_to_the_ticks(rig):
    node = rig.fusion(SPEC, ring_slots=0)
    node.autostart()
    images = rig.publisher(Image, "/front")
    aligned = rig.listen(Image, "/fusion_node/front/aligned")
    until(images.get_subscription_count, "the node's subscription")
    until(aligned.subscription.get_publisher_count, "the node's images")
    sizes = [(2, 2), (2, 2), (1000, 700), (2, 2)]  # the first, one of its size, one larger than its buffer
    for number, (width, height) in enumerate(sizes, 1):
        image = Image(
            width=width, height=height, step=3 * width, encoding="rgb8", data=bytes([number]) * 3 * width * height
        )
        images.publish(stamped(image))

        until(lambda number=number: len(aligned) and set(bytes(aligned.newest.data)) == {number}, f"image {number}")

    assert node.parts.ingest.counters["front"]["received"] == len(sizes)
    topic = node.parts.subscriptions.topics[0]
    assert topic.buffer_bytes > 1000 * 700 * 3
    until(lambda: [len(buffer) for buffer in topic.buffers] == [topic.buffer_bytes] * 2, "buffers for the largest")


class EndlessTopic:
    """A large topic that always has a message."""

    large = True

    def __init__(self, rig: Any) -> None:
        self.subscription = rig.node.create_subscription(
            Image, "/front", lambda _: None, 5, raw=True, callback_group=middleware.ManualCallbackGroup()
        )
        self.received = self.read = self.most = 0

    def take(self, subscriber: Any, limit: int) -> Iterator[ReceivedMessage]:
        for _ in range(limit):
            self.received += 1
            self.most = max(self.most, self.received - self.read)
            yield ReceivedMessage(b"", 0, self.received)


def test_messages_that_are_not_read_stay_in_the_middleware(rig, monkeypatch):
    monkeypatch.setattr(subscriptions, "MAX_LARGE_UNREAD", 3)
    monkeypatch.setattr(subscriptions, "LARGE_BATCH", 3)
    source = EndlessTopic(rig)
    large = LargeMessages(rig.node, SimpleNamespace(topics=[source], resubscribe=id), lambda error: None)
    read: list[int] = []
    while len(read) < 30:
        source.read = len(read) + 1  # the message that is read next is no longer kept
        read += [message.received_ns for _, message in until(lambda: large.read(1), "a message")]
    large.destroy()

    assert read == list(range(1, 31))
    assert source.most <= 3 + 3 - 1  # below 3, a batch of 3 is received


def test_error_while_receiving_is_reported_to_the_node(rig):
    source = EndlessTopic(rig)
    source.take = lambda subscriber, limit: iter([1 // 0])
    failures: list[Exception] = []
    large = LargeMessages(rig.node, SimpleNamespace(topics=[source], resubscribe=id), failures.append)
    until(lambda: failures, "the failure")
    large.destroy()

    assert isinstance(failures[0], ZeroDivisionError)
