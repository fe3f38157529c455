"""Messages on the wall clock: what a tick sees is what had been taken when it was made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")
from sensor_msgs.msg import Image

from robocache_ros.engine import FusionEngine
from robocache_ros.nodes import compat
from robocache_ros.nodes.drivers import WallDriver
from robocache_ros.nodes.large import LargeMessages
from robocache_ros.nodes.taking import Taken
from robocache_ros.spec import load_spec

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


@pytest.fixture
def driven(rig: Any) -> Any:
    """A driver by the wall clock, what it pushed, and a place for messages that its thread took."""
    engine = FusionEngine(load_spec(SPEC))
    pushed: list[int] = []
    intake: Any = SimpleNamespace(
        feeds=[], take=lambda large: [], push=lambda feed, message, arrival_ns: pushed.append(arrival_ns)
    )
    driver = WallDriver(rig.node, intake, engine, lambda error: None)
    yield SimpleNamespace(driver=driver, engine=engine, pushed=pushed, taken=driver._large._taken)
    driver.destroy()


def test_message_that_was_not_taken_when_a_tick_was_made_arrives_after_it(driven: Any) -> None:
    while not list(driven.driver.step()):
        driven.driver.wait()
    made_ns = driven.engine.newest_cut_ns
    driven.taken.append((None, Taken(b"", 0, made_ns - 4 * MS)))
    driven.taken.append((None, Taken(b"", 0, made_ns + 1 * MS)))

    list(driven.driver.step())

    assert driven.pushed == [made_ns + 1, made_ns + 1 * MS]


def test_signal_ends_a_wait_for_messages(rig: Any) -> None:
    signal = compat.Signal(rig.node)
    waiter = compat.Waiter(rig.node, [], signal)
    signal.send()

    waiter.wait(3600_000 * MS)  # it would outlast the test's time limit

    waiter.destroy()
    signal.destroy()


def test_images_are_taken_beside_the_beat(rig: Any, wait: Callable[..., Any]) -> None:
    node = rig.fusion(SPEC, ring_slots=0)
    node.autostart()
    images = rig.publisher(Image, "/front")
    aligned = rig.listen(Image, "/fusion_node/front/aligned")
    wait(images.get_subscription_count, "the node's subscription")
    wait(aligned.subscription.get_publisher_count, "the node's images")
    sizes = [(2, 2), (2, 2), (1000, 700), (2, 2)]  # a first one, one of its size, one that outgrows its room
    for number, (width, height) in enumerate(sizes, 1):
        image = Image(
            width=width, height=height, step=3 * width, encoding="rgb8", data=bytes([number]) * 3 * width * height
        )
        image.header.stamp.sec, image.header.stamp.nanosec = divmod(time.time_ns(), 10**9)
        images.publish(image)

        wait(lambda number=number: len(aligned) and set(bytes(aligned.newest.data)) == {number}, f"image {number}")

    assert node._fusion.ingest.counters["front"]["received"] == len(sizes)
    feed = node._fusion.intake.feeds[0]
    assert feed.nbytes > 1000 * 700 * 3
    wait(lambda: [len(room) for room in feed.rooms] == [feed.nbytes] * 2, "rooms for the largest")


class Source:
    """A large feed that always has something."""

    large = True
    depth = 3

    def __init__(self, rig: Any) -> None:
        self.subscription = rig.node.create_subscription(
            Image, "/front", lambda _: None, 5, raw=True, callback_group=compat.OwnThread()
        )
        self.given = 0

    def take_all(self, taker: Any) -> Iterator[Taken]:
        for _ in range(self.depth):
            self.given += 1
            yield Taken(b"", 0, self.given)


def test_what_is_not_fetched_is_left_in_the_middleware(rig: Any, wait: Callable[..., Any]) -> None:
    source = Source(rig)
    large = LargeMessages(rig.node, SimpleNamespace(feeds=[source]), lambda error: None)  # type: ignore[arg-type]
    wait(lambda: len(large._taken) == 3, "as many as the queue holds")
    large._waiter.wait = lambda timeout_ns: None  # type: ignore[method-assign]

    assert [message.received_ns for _, message in large.read()] == [1, 2, 3]
    wait(lambda: len(large._taken) == 3, "the next ones")
    large.destroy()

    assert source.given == 6


def test_an_error_while_taking_is_the_nodes(rig: Any, wait: Callable[..., Any]) -> None:
    source = Source(rig)
    source.take_all = lambda taker: iter([1 // 0])  # type: ignore[method-assign]
    failures: list[Exception] = []
    large = LargeMessages(rig.node, SimpleNamespace(feeds=[source]), failures.append)  # type: ignore[arg-type]
    wait(lambda: failures, "the failure")
    large.destroy()

    assert isinstance(failures[0], ZeroDivisionError)
