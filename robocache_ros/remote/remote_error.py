"""The error of a file at a URL."""

from __future__ import annotations

from robocache_ros.errors import RoboCacheError


class RemoteError(RoboCacheError):
    """A URL that cannot be used; the message names it."""


class NotReadError(Exception):
    """A part of a remote file was not downloaded. Readers of damaged files must not take it for damage: `Bag` ends it.

    Attributes:
        error: the reason.
    """

    def __init__(self, error: RemoteError) -> None:
        super().__init__(str(error))
        self.error = error
