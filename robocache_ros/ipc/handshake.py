"""The handshake of a reader and a node: the node's first packet, its file descriptors, and the peer's credentials."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from robocache_ros.errors import printable
from robocache_ros.ipc.shared_memory import IpcUnavailableError

CONNECT_S = 1.0  # how long a node may take to answer, which it does in a separate thread
PACKET_BYTES = 4096  # maximum size of the first packet
MAX_FDS = 8  # description, place of the ring, slot table, (ring,) lease page
MIN_FDS = 4
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def peer_uid_pid(connection: socket.socket) -> tuple[int, int]:
    """User and process at the other end of a Unix socket, as reported by the kernel."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return uid, pid


@dataclass(frozen=True)
class Hello:
    """The first packet that a reader gets."""

    generation: int = 0
    refused: str = ""  # why the reader is refused; empty if it is admitted

    def to_json(self) -> bytes:
        """The JSON that `from_json` reads."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Hello:
        """Parse a packet; ValueError if it is of another kind."""
        try:
            hello = cls(**json.loads(data))
        except (TypeError, RecursionError) as error:
            raise ValueError(f"not a greeting: {error}") from None
        if not isinstance(hello.generation, int) or not isinstance(hello.refused, str):
            raise ValueError("not a greeting")
        return hello


def connect(path: str) -> tuple[socket.socket, list[int], int]:
    """Connect to a node of this user.

    Returns:
        The socket, the descriptors received (description, place of the ring, slot table, ring in host memory, lease
        page), and the node's generation.

    Raises:
        IpcUnavailableError: no node of this user answers in time, or it refuses.
    """
    fds: list[int] = []
    connection: socket.socket | None = None
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(CONNECT_S)
        connection.connect(path)
        uid, _ = peer_uid_pid(connection)
        if uid != os.geteuid():
            raise IpcUnavailableError(
                f"{path}: served by user {uid}, not by this process's user {os.geteuid()}; run both as one user"
            )
        data, fds, _, _ = socket.recv_fds(connection, PACKET_BYTES, MAX_FDS)
        hello = Hello.from_json(data)
        if hello.refused or len(fds) < MIN_FDS:
            raise IpcUnavailableError(f"{path}: {printable(hello.refused) or 'the node sent no descriptors'}")
        connection.setblocking(False)
    except (OSError, ValueError) as error:
        if connection:
            connection.close()
        close_all(fds)
        if isinstance(error, IpcUnavailableError):
            raise
        raise IpcUnavailableError(
            f"{path}: no node answers there ({printable(error)}); start the node, or check its name"
        ) from None
    return connection, list(fds), hello.generation


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
