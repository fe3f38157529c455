from __future__ import annotations

import pytest

pytest.importorskip("rclpy")
import rclpy
from rclpy.executors import SingleThreadedExecutor

from robocache_ros.nodes.process import until_shutdown


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
