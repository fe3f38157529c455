"""The package's log records, passed to a ROS logger by a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from robocache_ros.nodes.process import WAITING, RosHandler


class SlowLogger:
    """A ROS logger that waits before its first line until it may go on."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.entered, self.may_go_on = threading.Event(), threading.Event()

    def __getattr__(self, level: str) -> Callable[[str], None]:
        def log(text: str) -> None:
            self.entered.set()
            assert self.may_go_on.wait(120)
            self.lines.append((level, text))

        return log


@pytest.fixture
def logger() -> SlowLogger:
    return SlowLogger()


@pytest.fixture
def handler(logger: SlowLogger) -> Iterator[RosHandler]:
    handler = RosHandler(logger)
    yield handler
    logger.may_go_on.set()
    handler.close()


def emit(handler: RosHandler, *texts: str, level: int = logging.INFO) -> None:
    for text in texts:
        handler.handle(logging.LogRecord("robocache_ros", level, __file__, 1, text, None, None))


def fill(handler: RosHandler, logger: SlowLogger, dropped: int) -> None:
    """One line is being logged, the queue is full, and some more lines come."""
    emit(handler, "the first")
    assert logger.entered.wait(120)
    emit(handler, *(f"line {i}" for i in range(WAITING + dropped)))


def test_records_keep_their_order_and_level(handler: RosHandler, logger: SlowLogger) -> None:
    logger.may_go_on.set()
    emit(handler, "a", level=logging.DEBUG)
    emit(handler, "b", level=logging.INFO)
    emit(handler, "c", level=logging.WARNING)
    emit(handler, "d", level=logging.ERROR)

    handler.close()

    assert logger.lines == [("debug", "a"), ("info", "b"), ("warning", "c"), ("error", "d")]


def test_lines_beyond_the_queue_are_counted(handler: RosHandler, logger: SlowLogger) -> None:
    fill(handler, logger, dropped=7)

    assert handler.dropped == 7


def test_dropped_lines_are_reported_in_one_line_when_there_is_room(
    handler: RosHandler, logger: SlowLogger, wait: Callable[..., Any]
) -> None:
    fill(handler, logger, dropped=7)

    logger.may_go_on.set()

    wait(lambda: len(logger.lines) == 1 + WAITING + 1, "every line")
    reports = [(level, text) for level, text in logger.lines if "dropped" in text]
    assert reports == [("warning", "log: 7 lines were dropped; they came faster than they can be published on /rosout")]


def test_lines_dropped_before_the_end_are_reported_at_the_end(handler: RosHandler, logger: SlowLogger) -> None:
    fill(handler, logger, dropped=1)
    logger.may_go_on.set()

    handler.close()

    assert sum("log: 1 line was dropped" in text for _, text in logger.lines) == 1


def test_every_burst_is_reported_once(handler: RosHandler, logger: SlowLogger, wait: Callable[..., Any]) -> None:
    for burst in (1, 2):
        logger.entered.clear()
        logger.may_go_on.clear()
        fill(handler, logger, dropped=3)
        logger.may_go_on.set()
        wait(lambda n=burst: len(logger.lines) == n * (1 + WAITING + 1), "every line")

    assert handler.dropped == 6
    assert sum("log: 3 lines were dropped" in text for _, text in logger.lines) == 2
