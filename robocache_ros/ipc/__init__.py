"""Passes frames to processes of the same user and machine without a copy, in a ring of slots that both sides map."""

from robocache_ros.ipc.connection import Connection
from robocache_ros.ipc.paths import socket_path
from robocache_ros.ipc.ring_reader import OverwrittenError, Reader, SlotLease
from robocache_ros.ipc.ring_writer import Writer
from robocache_ros.ipc.shared_memory import IpcUnavailableError
from robocache_ros.ipc.slot_layout import Field, RingLayout

__all__ = [
    "Connection",
    "Field",
    "IpcUnavailableError",
    "OverwrittenError",
    "Reader",
    "RingLayout",
    "SlotLease",
    "Writer",
    "socket_path",
]
