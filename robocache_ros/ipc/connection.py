"""A connection that reconnects when nodes start, stop and restart."""

from __future__ import annotations

import os
import time

from robocache_ros.ipc.ring_reader import Reader
from robocache_ros.ipc.shared_memory import IpcUnavailableError

RETRY_S = 0.5


class Connection:
    """The reader of a node's ring; None while there is no ring, and frames arrive as messages.

    Never raises if there is no node. After a node restarts, its ring is found and mapped again: `reader.layout` and
    `reader.generation` may then have changed.

    Args:
        path: path of the node's socket, from `socket_path`.
        retry_s: minimum time between two attempts to connect.

    Attributes:
        reader: the reader of the last `connect`.
        why: the reason why there is no reader, for the log.
    """

    def __init__(self, path: str | os.PathLike[str], *, retry_s: float = RETRY_S) -> None:
        self.path = os.fspath(path)
        self.reader: Reader | None = None
        self.why = "not connected yet"
        self._retry_s = retry_s
        self._next_try = 0.0

    def connect(self) -> Reader | None:
        """The reader of the open connection; connects again when the next attempt is due; None without a node."""
        if self.reader and self.reader.alive:
            return self.reader
        now = time.monotonic()
        if self.reader:
            self.reader, self.why = None, "the node has closed its ring"
            self._next_try = now  # a node that restarts is soon available again
        if now >= self._next_try:
            self._next_try = now + self._retry_s
            try:
                self.reader, self.why = Reader(self.path), ""
            except IpcUnavailableError as error:
                self.why = str(error)
        return self.reader

    def drop(self, why: str) -> None:
        """Disconnect from a node whose ring cannot be used, until the next attempt is due."""
        if self.reader:
            self.reader.close()
        self.reader, self.why = None, why
        self._next_try = time.monotonic() + self._retry_s

    def close(self) -> None:
        """Disconnect permanently."""
        if self.reader:
            self.reader.close()
        self._next_try = float("inf")
