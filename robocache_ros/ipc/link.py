"""A connection that comes back: what a consumer keeps while nodes start, stop and start anew."""

from __future__ import annotations

import os
import time

from robocache_ros.ipc.memory import IpcUnavailableError
from robocache_ros.ipc.reader import HeldFrame, Reader

RETRY_S = 0.5


class Link:
    """Frames of a node from its ring while there is one; None while there is not, and the message is to be used.

    Never raises for want of a node. A node that restarts is found again, and its ring is mapped anew: `reader.layout`
    and `reader.generation` may then be others.

    Args:
        path: of the node's socket, from `socket_path`.
        retry_s: least time between two tries to connect.
    """

    def __init__(self, path: str | os.PathLike[str], *, retry_s: float = RETRY_S) -> None:
        self.path = os.fspath(path)
        self.reader: Reader | None = None
        self.why = "not connected yet"  # why there is no connection, for the log
        self._retry_s = retry_s
        self._next_try = 0.0

    def connect(self) -> Reader | None:
        """The living connection, made anew where it is time to try; None where there is none."""
        if self.reader and self.reader.alive:
            return self.reader
        now = time.monotonic()
        if self.reader:
            self.reader, self.why = None, "the node went away"
            self._next_try = now  # a node that restarts is back soon
        if now >= self._next_try:
            self._next_try = now + self._retry_s
            try:
                self.reader, self.why = Reader(self.path), ""
            except IpcUnavailableError as error:
                self.why = str(error)
        return self.reader

    def frame(self, tick_ns: int) -> HeldFrame | None:
        """Hold the frame of a tick; None where it cannot be had this way."""
        reader = self.connect()
        return self._or_again(reader, reader.frame(tick_ns)) if reader else None

    def latest(self, after_ns: int | None = None) -> HeldFrame | None:
        """Hold the newest frame; None where there is none past `after_ns`, or none can be had this way."""
        reader = self.connect()
        return self._or_again(reader, reader.latest(after_ns)) if reader else None

    def _or_again(self, reader: Reader, held: HeldFrame | None) -> HeldFrame | None:
        if held is None and not reader.alive:
            self.connect()  # a ring that was only made anew is there already, and fills with the next tick
        return held

    def close(self) -> None:
        """Leave."""
        if self.reader:
            self.reader.close()
        self._next_try = float("inf")
