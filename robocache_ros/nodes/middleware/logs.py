"""Passes the package's Python log records to the node's logger: to the console, the log file and /rosout."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any

from robocache_ros.errors import printable

LONGEST = 500  # characters of a line, which may contain text from messages
WAITING = 1000  # lines that are not logged yet; others are dropped and counted


class RosHandler(logging.Handler):
    """Passes Python's log records to a ROS logger, with control characters escaped.

    A separate thread logs them: a ROS logger looks up the line of code that logs and publishes on /rosout, which
    takes 10 to 100 ms, and the thread that computes the ticks logs too.

    Attributes:
        dropped: lines that arrived while `WAITING` others were not logged yet; a warning states their number.
    """

    def __init__(self, logger: Any) -> None:
        super().__init__()
        self.dropped = 0
        self._reported = 0  # the number of these that warnings have stated
        self._logger = logger
        self._lines: queue.Queue[tuple[int, str] | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._run, name="robocache-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one record, to be logged at its level."""
        try:
            self._lines.put_nowait((record.levelno, printable(record.getMessage(), LONGEST)))
        except queue.Full:
            self.dropped += 1  # `handle` holds the handler's lock

    def close(self) -> None:
        """Return when all records are logged."""
        if self._thread.is_alive():
            self._lines.put(None)
            self._thread.join()
        super().close()

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            self._log(*line)
            if self._lines.qsize() <= WAITING // 2:
                self._report_dropped()
        self._report_dropped()

    def _report_dropped(self) -> None:
        count = self.dropped - self._reported
        if count:
            self._reported += count
            lines = "1 line was" if count == 1 else f"{count} lines were"
            text = f"log: {lines} dropped; they came faster than they can be published on /rosout"
            self._log(logging.WARNING, text)

    def _log(self, level: int, text: str) -> None:
        # One call for each level: rclpy refuses a call site that logs at two levels.
        if level >= logging.ERROR:
            self._logger.error(text)
        elif level >= logging.WARNING:
            self._logger.warning(text)
        elif level >= logging.INFO:
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
    """Stop routing to a handler, and return when all earlier records have been written."""
    package = logging.getLogger("robocache_ros")
    package.removeHandler(handler)
    package.propagate = not package.handlers
    handler.close()
