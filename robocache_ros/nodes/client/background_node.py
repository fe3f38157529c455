"""A node of its own in a thread, and the diagnostics that it can watch."""

from __future__ import annotations

import threading
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.task import Future

from robocache_ros.nodes import middleware
from robocache_ros.nodes.process import until_shutdown


class BackgroundNode:
    """A node with its own context, spun by a thread: the caller needs neither `rclpy.init()` nor an executor.

    Args:
        name: of the node.
        namespace: of the node.
    """

    def __init__(self, name: str, namespace: str | None = None) -> None:
        self._context = rclpy.Context()
        rclpy.init(context=self._context, signal_handler_options=None)
        self.node: Node = rclpy.create_node(name, context=self._context, namespace=namespace)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._closed: Future[Any] = Future()
        self._thread = threading.Thread(target=self._spin, name=f"robocache-{name}", daemon=True)

    def start(self) -> None:
        """Start spinning."""
        self._thread.start()

    def close(self) -> None:
        """Stop spinning and destroy the node."""
        # First the end of the loop: an executor that is shut down as a callback ends raises InvalidHandle.
        self._closed.set_result(None)
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._executor.shutdown(timeout_sec=0.0)
        rclpy.try_shutdown(context=self._context)
        self.node.destroy_node()

    def _spin(self) -> None:
        with until_shutdown(self._context):
            self._executor.spin_until_future_complete(self._closed)


class DiagnosticsWatch:
    """Keeps the newest values that one node reports.

    Args:
        node: name of the node that reports.

    Attributes:
        values: name of a part, such as a stream -> key -> newest value.
    """

    def __init__(self, node: str) -> None:
        self.values: dict[str, dict[str, str]] = {}
        self._prefix = f"{node}: "
        self._background = BackgroundNode("diagnostics_watch")
        self._background.node.create_subscription(
            DiagnosticArray, "/diagnostics", self._on_diagnostics, middleware.reliable(10)
        )
        self._background.start()

    def __enter__(self) -> DiagnosticsWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self._background.close()

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name.startswith(self._prefix):
                part = status.name[len(self._prefix) :]
                reported = {pair.key: pair.value for pair in status.values if pair.value}
                self.values[part] = self.values.get(part, {}) | reported
