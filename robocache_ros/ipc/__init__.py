"""Passes frames to processes of the same user and machine without a copy, in a ring of slots that both sides map."""

from robocache_ros.ipc.ring import Connection, OverwrittenError, Reader, SlotLease, Writer
from robocache_ros.ipc.shared_memory import IpcUnavailableError, socket_path
from robocache_ros.ipc.slots import Field, RingLayout

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
