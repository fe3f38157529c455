from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from robocache_ros.bags.shared_reading import BATCH_BYTES, read_ahead
from robocache_ros.bags.source import RawMessage


def messages(count: int, size: int = 10) -> Iterator[RawMessage]:
    return (RawMessage("/a", k, bytes(size)) for k in range(count))


def test_messages_come_in_order() -> None:
    assert [message.log_ns for message in read_ahead(messages(5000))] == list(range(5000))


def test_large_messages_come_in_order() -> None:
    assert [message.log_ns for message in read_ahead(messages(40, BATCH_BYTES // 3))] == list(range(40))


def test_an_error_comes_where_it_happened() -> None:
    def failing() -> Iterator[RawMessage]:
        yield from messages(3)
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        list(read_ahead(failing()))


def test_the_thread_ends_when_the_messages_are_left() -> None:
    before = set(threading.enumerate())
    ahead = read_ahead(messages(100_000, 1000))
    next(ahead)
    ahead.close()
    assert set(threading.enumerate()) <= before
