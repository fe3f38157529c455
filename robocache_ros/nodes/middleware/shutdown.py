"""The end of a program when its ROS context is shut down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rclpy.context import Context
from rclpy.executors import ExternalShutdownException


@contextmanager
def until_shutdown(context: Context) -> Iterator[None]:
    """Run a block, such as a spinning executor, that ends when the context is shut down.

    rclpy documents only ExternalShutdownException. But a signal shuts the context down in another thread: an executor
    that is building its wait set, or a callback that publishes, then raises an RCLError.
    """
    try:
        yield
    except ExternalShutdownException:
        pass
    except Exception:
        if context.ok():
            raise
