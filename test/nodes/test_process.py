"""What processes of nodes share: log records that a thread passes to a ROS logger, and the end of an executor."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor

from robocache_ros.nodes.process import WAITING, RosHandler, attach, detach, until_shutdown
from test.nodes.rig import until


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
def logger():
    return SlowLogger()


@pytest.fixture
def handler(logger):
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


def test_records_keep_their_order_and_level(handler, logger):
    logger.may_go_on.set()
    levels = ("debug", "info", "warning", "error")
    for level in levels:
        emit(handler, f"of {level}", level=getattr(logging, level.upper()))
    handler.close()
    assert logger.lines == [(level, f"of {level}") for level in levels]


def test_dropped_lines_of_each_burst_are_reported_in_one_line_when_there_is_room(handler, logger):
    for burst in (1, 2):
        logger.entered.clear()
        logger.may_go_on.clear()
        fill(handler, logger, dropped=7)
        assert handler.dropped == 7 * burst
        logger.may_go_on.set()
        until(lambda n=burst: len(logger.lines) == n * (1 + WAITING + 1), "every line")
    reports = [(level, text) for level, text in logger.lines if "dropped" in text]
    line = "log: 7 lines were dropped; they came faster than they can be published on /rosout"
    assert reports == [("warning", line)] * 2


def test_lines_dropped_before_the_end_are_reported_at_the_end(handler, logger):
    fill(handler, logger, dropped=1)
    logger.may_go_on.set()
    handler.close()
    assert sum("log: 1 line was dropped" in text for _, text in logger.lines) == 1


def test_a_line_is_logged_once_by_the_node_that_names_its_module_or_else_by_the_first(logger):
    logger.may_go_on.set()
    other = SlowLogger()
    other.may_go_on.set()
    first = attach(logger)
    second = attach(other, ["robocache_ros.nodes.pedals"])
    try:
        for name in ("engine", "nodes.pedals"):
            logging.getLogger(f"robocache_ros.{name}").warning("of %s", name)
    finally:
        detach(first)
        logging.getLogger("robocache_ros.engine").warning("the first has ended")
        detach(second)
    assert logger.lines == [("warning", "of engine")]
    assert other.lines == [("warning", "of nodes.pedals"), ("warning", "the first has ended")]


@pytest.fixture
def context():
    context = rclpy.Context()
    rclpy.init(context=context)
    yield context
    rclpy.try_shutdown(context=context)


def test_executor_that_is_interrupted_by_a_shutdown_ends(context):
    executor = SingleThreadedExecutor(context=context)
    node = rclpy.create_node("interrupted", context=context)
    executor.add_node(node)

    def shut_down_within_a_step() -> None:
        rclpy.shutdown(context=context)
        raise RuntimeError("the given context is not valid")

    node.create_timer(0.001, shut_down_within_a_step)
    with until_shutdown(context):
        executor.spin()
    assert not context.ok()


def test_error_without_a_shutdown_is_raised(context):
    with pytest.raises(RuntimeError, match="a defect"), until_shutdown(context):
        raise RuntimeError("a defect")
