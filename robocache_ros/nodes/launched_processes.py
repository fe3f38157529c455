"""What the launch files of this package do when one of their processes ends."""

from __future__ import annotations

import signal
from typing import Any

INTERRUPTED = (130, -signal.SIGINT, -signal.SIGTERM)  # of a process that ends before the launch handles Ctrl-C


def fail_launch(event: Any, context: Any) -> None:
    """Fail the launch if a process failed, so that `ros2 launch` ends with exit code 1; an `on_exit` of a node.

    Args:
        event: a launch.events.process.ProcessExited.
        context: the launch.LaunchContext.

    Raises:
        RuntimeError: the process failed, and the launch has not been ended.
    """
    if not context.is_shutdown and event.returncode and event.returncode not in INTERRUPTED:
        raise RuntimeError(f"{event.process_name} failed with exit code {event.returncode}; see its output above")
