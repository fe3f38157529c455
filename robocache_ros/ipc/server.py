"""The writer's side of the socket: lets readers of the same user in, hands them the descriptors, sees them go."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import mmap
import os
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from robocache_ros.errors import RoboCacheError
from robocache_ros.ipc import memory

log = logging.getLogger(__name__)

MAX_READERS = 16
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def peer_uid_pid(connection: socket.socket) -> tuple[int, int]:
    """Who made the other end of a unix socket, by the kernel's word."""
    pid, uid, _ = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return uid, pid


@dataclass(frozen=True)
class Hello:
    """The first packet that a reader gets."""

    generation: int = 0
    refused: str = ""  # why, where it is not let in

    def to_json(self) -> bytes:
        """What `from_json` reads back."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Hello:
        """Read it; ValueError where it is none."""
        try:
            return cls(**json.loads(data))
        except TypeError as error:
            raise ValueError(f"no greeting: {error}") from None


class Peer:
    """A connected reader, and the page on which it marks the slots it holds."""

    def __init__(self, connection: socket.socket, pid: int, slots: int) -> None:
        self.socket = connection
        self.pid = pid
        self.greeted = False
        self.holds_fd = memory.create("robocache-holds", max(slots * 8, mmap.PAGESIZE))
        memory.seal(self.holds_fd, memory.SEAL_SIZE)
        self._map = memory.map_fd(self.holds_fd, slots * 8, writable=True)
        self.holds = memoryview(self._map).cast("q")

    def close(self) -> None:
        """Forget it: its holds count no more."""
        self.socket.close()
        with contextlib.suppress(OSError):
            os.close(self.holds_fd)


class Server:
    """Accepts readers on a thread of its own, so that the writer's tick never waits for one.

    Args:
        path: of the socket; made with mode 0600, in a folder of the user alone.
        slots: entries of a reader's page of holds.
        greeting: descriptors that every reader gets, before its page of holds.
        generation: told to every reader; another one after a restart.
    """

    def __init__(self, path: Path, slots: int, greeting: tuple[int, ...], generation: int) -> None:
        self.path = path
        self.peers: tuple[Peer, ...] = ()  # replaced, never changed: the writer's thread reads it without a lock
        self.refused = 0
        self._slots = slots
        self._greeting = greeting
        self._hello = Hello(generation).to_json()
        self._lock_fd = self._claim()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self._listener.bind(os.fspath(path))
            path.chmod(0o600)
            self._listener.listen(MAX_READERS)
        except OSError as error:
            self._listener.close()
            os.close(self._lock_fd)
            raise RoboCacheError(f"{path}: no socket can be made here ({error.strerror})") from None
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="robocache-ipc", daemon=True)
        self._thread.start()

    def announce(self, packet: bytes) -> None:
        """Send a packet to every reader; one that does not read misses it, and finds the slot in the table."""
        for peer in self.peers:
            if not peer.greeted:
                continue
            with contextlib.suppress(OSError):
                peer.socket.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """Send every reader away and take the socket down."""
        self._wake.close()
        self._thread.join()
        self.path.unlink(missing_ok=True)
        os.close(self._lock_fd)

    def _claim(self) -> int:
        """Make sure that no living node serves this path, then clear away what a dead one left."""
        lock = self.path.with_suffix(".lock")
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise RoboCacheError(f"{self.path}: is served by another node; give this one another name") from None
        self.path.unlink(missing_ok=True)
        return fd

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    return self._shut()
                try:
                    key.data()
                except Exception:  # one reader's trouble must not cost the others theirs
                    log.exception("a consumer's connection failed")

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        uid, pid = peer_uid_pid(connection)
        refusal = None
        if uid != os.geteuid():
            refusal = f"user {uid} is not the node's user {os.geteuid()}"
        elif len(self.peers) >= MAX_READERS:
            refusal = f"{MAX_READERS} consumers are connected already"
        if refusal:
            self.refused += 1
            log.warning("a consumer (process %d) is refused: %s", pid, refusal)
            with connection, contextlib.suppress(OSError):
                connection.send(Hello(refused=refusal).to_json(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            return
        connection.setblocking(False)
        peer = Peer(connection, pid, self._slots)
        self.peers = (*self.peers, peer)  # before the greeting: from then on its holds count
        try:
            socket.send_fds(connection, [self._hello], [*self._greeting, peer.holds_fd])
            peer.greeted = True
            connection.send(b"\0", socket.MSG_NOSIGNAL)  # it may have slept through a frame since the greeting
        except OSError:
            self._forget(peer)
            return
        self._selector.register(connection, selectors.EVENT_READ, self._listen_to(peer))
        log.info("a consumer (process %d) reads frames from shared memory", pid)

    def _listen_to(self, peer: Peer) -> Callable[[], None]:
        def receive() -> None:
            """A reader says nothing: what comes is its end."""
            try:
                gone = not peer.socket.recv(64)
            except BlockingIOError:
                gone = False
            except OSError:
                gone = True
            if gone:
                self._selector.unregister(peer.socket)
                self._forget(peer)
                log.info("a consumer (process %d) is gone", peer.pid)

        return receive

    def _forget(self, peer: Peer) -> None:
        self.peers = tuple(p for p in self.peers if p is not peer)
        peer.close()

    def _shut(self) -> None:
        peers, self.peers = self.peers, ()
        for peer in peers:
            peer.close()
        self._selector.close()
        self._listener.close()
        self._woken.close()
