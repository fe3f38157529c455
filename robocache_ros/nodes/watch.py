"""The newest word of /diagnostics about each part of a node."""

from __future__ import annotations

from types import TracebackType

from diagnostic_msgs.msg import DiagnosticArray

from robocache_ros.nodes import qos
from robocache_ros.nodes.own import OwnNode


class DiagnosticsWatch:
    """Keeps the last value said of everything by one node, by the status' part such as a stream's name.

    Args:
        node: name of the node that reports.
    """

    def __init__(self, node: str) -> None:
        self.values: dict[str, dict[str, str]] = {}
        self._prefix = f"{node}: "
        self._own = OwnNode("diagnostics_watch")
        self._own.node.create_subscription(DiagnosticArray, "/diagnostics", self._take, qos.reliable(10))
        self._own.start()

    def __enter__(self) -> DiagnosticsWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._own.close()

    def _take(self, message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name.startswith(self._prefix):
                part = status.name[len(self._prefix) :]
                said = {pair.key: pair.value for pair in status.values if pair.value}
                self.values[part] = self.values.get(part, {}) | said
