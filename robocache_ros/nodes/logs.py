"""The core's log lines through the node's logger: to the console, the log file and /rosout."""

from __future__ import annotations

import logging
from typing import Any


class RosHandler(logging.Handler):
    """Hands Python's log records to a ROS logger."""

    def __init__(self, logger: Any) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record, at the level it has."""
        # A call place a level: rclpy refuses one place that logs at two.
        text = record.getMessage()
        if record.levelno >= logging.ERROR:
            self._logger.error(text)
        elif record.levelno >= logging.WARNING:
            self._logger.warning(text)
        elif record.levelno >= logging.INFO:
            self._logger.info(text)
        else:
            self._logger.debug(text)


def attach(logger: Any) -> RosHandler:
    """Route the package's log to a ROS logger, until `detach`."""
    handler = RosHandler(logger)
    package = logging.getLogger("robocache_ros")
    package.addHandler(handler)
    package.setLevel(min(package.level or logging.INFO, logging.INFO))
    package.propagate = False
    return handler


def detach(handler: RosHandler) -> None:
    """Stop routing to it."""
    package = logging.getLogger("robocache_ros")
    package.removeHandler(handler)
    package.propagate = not package.handlers
