"""RawSubscriber takes messages byte for byte, through rcl or rclpy, and into any buffer."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")
from rclpy.qos import QoSProfile
from rclpy.serialization import serialize_message
from std_msgs.msg import UInt8MultiArray

from robocache_ros.nodes import middleware, subscriptions
from robocache_ros.nodes.subscriptions import SMALL_BYTES, RawSubscriber
from test.nodes.rig import until

WAYS = pytest.mark.parametrize("direct", [True, False], ids=["direct", "rclpy"])


def message(nbytes: int, seed: int = 0) -> bytes:
    """A serialized message with random bytes."""
    data = np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8).tobytes()
    return bytes(serialize_message(UInt8MultiArray(data=data)))


class RawTopic:
    """A topic, its publisher, and a subscription that no executor touches."""

    def __init__(self, rig: Any, topic: str = "/bytes") -> None:
        self.publisher = rig.publisher(UInt8MultiArray, topic)
        self.subscription = middleware.raw_subscription(rig.node, UInt8MultiArray, topic, QoSProfile(depth=100))
        until(self.publisher.get_subscription_count, "the subscription")

    def send(self, data: bytes) -> None:
        self.publisher.publish(data)

    def get(self, take: Callable[[Any], Any]) -> Any:
        """The first message that `take` returns."""
        return until(lambda: take(self.subscription), "a message")


@pytest.fixture
def raw_topic(rig):
    return RawTopic(rig)


@WAYS
@pytest.mark.parametrize("nbytes", [0, SMALL_BYTES - 20, 300_000])
def test_received_bytes_are_the_sent_bytes(raw_topic, direct, nbytes):
    subscriber = RawSubscriber(direct=direct)
    assert subscriber.direct == direct  # rcl is found on this machine
    assert subscriber.take(raw_topic.subscription) is None
    assert subscriber.take_into(raw_topic.subscription, np.zeros(10, np.uint8)) is None
    raw_topic.send(message(nbytes))

    received = raw_topic.get(subscriber.take)

    assert bytes(received.data) == message(nbytes)
    assert 0 < received.source_ns <= received.received_ns


@WAYS
def test_message_is_written_to_the_given_buffer(raw_topic, direct):
    buffer = np.zeros(5000, np.uint8)
    sent = message(3000)
    raw_topic.send(sent)

    received = raw_topic.get(lambda subscription: RawSubscriber(direct=direct).take_into(subscription, buffer))

    assert bytes(received.data) == sent
    assert memoryview(received.data).readonly
    assert (buffer[: len(sent)].tobytes() == sent) == direct  # rclpy's take allocates its own memory


@pytest.mark.parametrize("nbytes", [101, 5_000_000])
def test_message_larger_than_the_buffer_is_not_lost(raw_topic, nbytes):
    buffer = np.zeros(100, np.uint8)
    subscriber = RawSubscriber()
    for seed in range(3):
        raw_topic.send(message(nbytes, seed))

        received = raw_topic.get(lambda subscription: subscriber.take_into(subscription, buffer))

        assert bytes(received.data) == message(nbytes, seed)
    assert not buffer.any()


def test_received_bytes_stay_after_further_messages(raw_topic):
    subscriber = RawSubscriber()
    sent = [message(nbytes, seed) for seed, nbytes in enumerate((50, 100_000, 50, 100_000))]
    received = []
    for data in sent:
        raw_topic.send(data)
        received.append(raw_topic.get(subscriber.take))

    assert [bytes(one.data) for one in received] == sent


def test_threads_take_from_topics_of_their_own(rig):
    topics = [RawTopic(rig, f"/bytes{number}") for number in range(3)]
    wrong: list[int] = []

    def run(number: int) -> None:
        subscriber = RawSubscriber()
        for seed in range(10 * number, 10 * number + 10):
            topics[number].send(message(200_000, seed))
            received = topics[number].get(
                lambda subscription: subscriber.take_into(subscription, np.zeros(300_000, np.uint8))
            )
            if bytes(received.data) != message(200_000, seed):
                wrong.append(seed)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong


def test_failed_allocation_raises_and_the_next_message_arrives(raw_topic, monkeypatch):
    def no_memory(*_: Any) -> None:
        raise MemoryError

    subscriber = RawSubscriber()
    with monkeypatch.context() as patched:
        raw_topic.send(message(SMALL_BYTES))
        patched.setattr(subscriptions.np, "empty", no_memory)
        with pytest.raises(MemoryError, match="/bytes: no memory for a message"):
            raw_topic.get(subscriber.take)
    raw_topic.send(message(20))

    assert bytes(raw_topic.get(subscriber.take).data) == message(20)


def nowhere(name: str) -> None:
    raise OSError(name)


# Such an rcutils succeeds, and what it writes is not where it is read.
OTHER = SimpleNamespace(rcutils_uint8_array_init=lambda *_: 0, rcutils_uint8_array_resize=lambda *_: 0)


def other_rcutils(name: str, load: Callable[[str], Any] = ctypes.CDLL) -> Any:
    return OTHER if name == "librcutils.so" else load(name)


@pytest.mark.parametrize("load", [nowhere, other_rcutils], ids=["a missing library", "other structures of rcutils"])
def test_a_library_that_cannot_be_used_falls_back_to_rclpy(raw_topic, monkeypatch, load):
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", load)
        subscriptions.find_rcl_take.cache_clear()
        subscriber = RawSubscriber()
    subscriptions.find_rcl_take.cache_clear()
    assert RawSubscriber().direct
    raw_topic.send(message(20))

    assert not subscriber.direct
    assert bytes(raw_topic.get(subscriber.take).data) == message(20)
