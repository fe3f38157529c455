"""The error of a file at a URL."""

from __future__ import annotations

from robocache_ros.errors import RoboCacheError


class RemoteError(RoboCacheError):
    """A URL that cannot be used; the message names it."""
