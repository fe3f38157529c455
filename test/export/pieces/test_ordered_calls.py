"""Calls in a thread of their own: in order, bounded, and with their errors."""

from __future__ import annotations

import threading
import time

import pytest

from robocache_ros.exporter.piece_writer import WAITING, OrderedCalls


def test_calls_run_in_their_order() -> None:
    calls, seen = OrderedCalls("test"), list[int]()
    for number in range(50):
        calls.add(seen.append, number)
    calls.wait()
    calls.close()
    assert seen == list(range(50))


def test_an_error_is_raised_in_the_caller() -> None:
    def fail() -> None:
        raise OSError("disk full")

    calls = OrderedCalls("test")
    calls.add(fail)
    with pytest.raises(OSError, match="disk full"):
        calls.wait()
    calls.close()


def test_calls_that_wait_are_discarded_when_closed() -> None:
    calls, go, seen = OrderedCalls("test"), threading.Event(), list[int]()
    calls.add(lambda: (go.wait(), None)[1])
    for number in range(WAITING):
        calls.add(seen.append, number)
    closing = threading.Thread(target=calls.close)
    closing.start()
    while not calls._pool._shutdown:
        time.sleep(0)
    with calls._pool._shutdown_lock:
        go.set()  # held while the calls are discarded
    closing.join()
    assert not seen
