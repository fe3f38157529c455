"""A node that is spun by a thread."""

from __future__ import annotations

import threading

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from robocache_ros.nodes.middleware.shutdown import until_shutdown


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
        self._thread = threading.Thread(target=self._spin, name=f"robocache-{name}", daemon=True)

    def start(self) -> None:
        """Start spinning."""
        self._thread.start()

    def close(self) -> None:
        """Stop spinning and destroy the node."""
        self._executor.shutdown(timeout_sec=0.0)
        rclpy.try_shutdown(context=self._context)
        if self._thread is not threading.current_thread():
            self._thread.join()
        self.node.destroy_node()

    def _spin(self) -> None:
        with until_shutdown(self._context):
            self._executor.spin()
