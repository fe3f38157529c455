"""The newest values in /diagnostics of each part of a node."""

from __future__ import annotations

from types import TracebackType

from diagnostic_msgs.msg import DiagnosticArray

from robocache_ros.nodes.client.background_node import BackgroundNode
from robocache_ros.nodes.middleware import qos


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
            DiagnosticArray, "/diagnostics", self._on_diagnostics, qos.reliable(10)
        )
        self._background.start()

    def __enter__(self) -> DiagnosticsWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._background.close()

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name.startswith(self._prefix):
                part = status.name[len(self._prefix) :]
                reported = {pair.key: pair.value for pair in status.values if pair.value}
                self.values[part] = self.values.get(part, {}) | reported
