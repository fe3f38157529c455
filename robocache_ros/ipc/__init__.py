"""Frames handed to other processes of the same user and machine without a copy: a ring of slots that both sides map."""

from robocache_ros.ipc.layout import Field, RingLayout
from robocache_ros.ipc.link import Link
from robocache_ros.ipc.memory import IpcUnavailableError
from robocache_ros.ipc.paths import socket_path
from robocache_ros.ipc.reader import HeldFrame, OvertakenError, Reader
from robocache_ros.ipc.writer import Writer

__all__ = [
    "Field",
    "HeldFrame",
    "IpcUnavailableError",
    "Link",
    "OvertakenError",
    "Reader",
    "RingLayout",
    "Writer",
    "socket_path",
]
