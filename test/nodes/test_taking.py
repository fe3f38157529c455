"""Messages are taken byte for byte, whichever way and into whatever room."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")
from rclpy.qos import QoSProfile
from rclpy.serialization import serialize_message
from std_msgs.msg import UInt8MultiArray

from robocache_ros.nodes import compat, taking
from robocache_ros.nodes.taking import SMALL_BYTES, Taker

WAYS = pytest.mark.parametrize("direct", [True, False], ids=["direct", "rclpy"])


def message(nbytes: int, seed: int = 0) -> bytes:
    """A serialized message with random bytes."""
    data = np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8).tobytes()
    return bytes(serialize_message(UInt8MultiArray(data=data)))


class Line:
    """A topic, its publisher, and a subscription that no executor touches."""

    def __init__(self, rig: Any, wait: Callable[..., Any], topic: str = "/bytes") -> None:
        self.publisher = rig.publisher(UInt8MultiArray, topic)
        self.subscription = rig.node.create_subscription(
            UInt8MultiArray, topic, lambda _: None, QoSProfile(depth=100), raw=True, callback_group=compat.OwnThread(),
            event_callbacks=compat.no_events(),
        )  # fmt: skip
        self._wait = wait
        wait(self.publisher.get_subscription_count, "the subscription")

    def send(self, data: bytes) -> None:
        self.publisher.publish(data)

    def get(self, take: Callable[[Any], Any]) -> Any:
        """What `take` gives once there is something."""
        return self._wait(lambda: take(self.subscription), "a message")


@pytest.fixture
def line(rig: Any, wait: Callable[..., Any]) -> Line:
    return Line(rig, wait)


def test_rcl_is_found_where_these_tests_run() -> None:
    assert Taker().direct
    assert not Taker(direct=False).direct


@WAYS
@pytest.mark.parametrize("nbytes", [0, 100, SMALL_BYTES - 20, SMALL_BYTES, 300_000])
def test_message_comes_as_it_was_sent(line: Line, direct: bool, nbytes: int) -> None:
    line.send(message(nbytes))

    taken = line.get(Taker(direct=direct).take)

    assert bytes(taken.data) == message(nbytes)
    assert 0 < taken.source_ns <= taken.received_ns


@WAYS
def test_nothing_is_taken_where_nothing_is(line: Line, direct: bool) -> None:
    taker = Taker(direct=direct)

    assert taker.take(line.subscription) is None
    assert taker.take_into(line.subscription, np.zeros(10, np.uint8)) is None


@WAYS
def test_message_goes_into_the_room_it_is_given(line: Line, direct: bool) -> None:
    room = np.zeros(5000, np.uint8)
    sent = message(3000)
    line.send(sent)

    taken = line.get(lambda subscription: Taker(direct=direct).take_into(subscription, room))

    assert bytes(taken.data) == sent
    assert (room[: len(sent)].tobytes() == sent) == direct  # rclpy's take has memory of its own


@pytest.mark.parametrize("nbytes", [101, 5_000_000])
def test_message_that_is_larger_than_its_room_is_not_lost(line: Line, nbytes: int) -> None:
    room = np.zeros(100, np.uint8)
    taker = Taker()
    for seed in range(3):
        line.send(message(nbytes, seed))

        taken = line.get(lambda subscription: taker.take_into(subscription, room))

        assert bytes(taken.data) == message(nbytes, seed)
    assert not room.any()


def test_message_outlasts_those_after_it(line: Line) -> None:
    taker = Taker()
    taken = []
    for seed, nbytes in enumerate((50, 100_000, 50, 100_000)):
        line.send(message(nbytes, seed))
        taken.append(line.get(taker.take))

    assert [bytes(one.data) for one in taken] == [
        message(nbytes, seed) for seed, nbytes in enumerate((50, 100_000, 50, 100_000))
    ]


def test_what_was_taken_cannot_be_written_to(line: Line) -> None:
    line.send(message(10))

    taken = line.get(lambda subscription: Taker().take_into(subscription, np.zeros(1000, np.uint8)))

    assert taken.data.readonly


def test_threads_take_from_lines_of_their_own(rig: Any, wait: Callable[..., Any]) -> None:
    lines = [Line(rig, wait, f"/bytes{number}") for number in range(3)]
    wrong: list[int] = []

    def run(number: int) -> None:
        taker = Taker()
        for seed in range(10 * number, 10 * number + 10):
            lines[number].send(message(200_000, seed))
            taken = lines[number].get(lambda subscription: taker.take_into(subscription, np.zeros(300_000, np.uint8)))
            if bytes(taken.data) != message(200_000, seed):
                wrong.append(seed)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong


def test_memory_that_cannot_be_had_is_an_error_and_the_next_message_comes(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    taker = Taker()
    with monkeypatch.context() as patched:
        patched.setattr(taker._room, "_grow", lambda pointer, nbytes: 0)
        line.send(message(SMALL_BYTES))
        with pytest.raises(MemoryError, match="/bytes: no memory for a message"):
            line.get(taker.take)
    line.send(message(20))

    assert bytes(line.get(taker.take).data) == message(20)


def test_other_structures_of_rcutils_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(ctypes.Structure):
        _fields_ = (("version", ctypes.c_size_t), *taking._Array._fields_)

    monkeypatch.setattr(taking, "_Array", Other)
    taking._rcl_take.cache_clear()

    assert not Taker().direct

    monkeypatch.undo()
    taking._rcl_take.cache_clear()
    assert Taker().direct


def test_library_that_is_not_found_leaves_rclpys_way(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(taking.ctypes, "CDLL", nowhere)
    taking._rcl_take.cache_clear()
    taker = Taker()
    monkeypatch.undo()
    taking._rcl_take.cache_clear()
    line.send(message(20))

    assert not taker.direct
    assert bytes(line.get(taker.take).data) == message(20)
