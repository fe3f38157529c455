"""The writer's side of the socket: admits readers of the same user, sends descriptors, detects disconnection."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import resource
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from robocache_ros.ipc import shared_memory
from robocache_ros.ipc.handshake import Hello, peer_uid_pid
from robocache_ros.ipc.shared_memory import IpcUnavailableError

log = logging.getLogger(__name__)

MAX_READERS = 16
RESERVED_FDS = 16  # descriptors that are not used for readers, but left to the rest of the node
PAUSE_S = 1.0  # pause in accepting connections after the process ran out of descriptors or memory


class Peer:
    """A connected reader, and the page on which it marks the slots that it has leased."""

    def __init__(self, connection: socket.socket, pid: int, slots: int) -> None:
        self.socket = connection
        self.pid = pid
        self.greeted = False
        self._page_fd = shared_memory.create("robocache-leases", max(slots * 8, mmap.PAGESIZE))
        try:
            shared_memory.seal(self._page_fd)
            self._page = shared_memory.map_fd(self._page_fd, slots * 8, writable=True)
        except BaseException:
            os.close(self._page_fd)
            raise
        self.leases = memoryview(self._page).cast("q")

    def greet(self, hello: bytes, fds: tuple[int, ...]) -> None:
        """Send the descriptors; OSError if the reader has disconnected."""
        socket.send_fds(self.socket, [hello], [*fds, self._page_fd])
        self._close_page_fd()
        self.greeted = True
        self.socket.send(b"\0", socket.MSG_NOSIGNAL)  # wakes it, in case a frame was announced since the greeting

    def close(self) -> None:
        """Close the connection; its leases end."""
        self.socket.close()
        self._close_page_fd()

    def _close_page_fd(self) -> None:
        """Close the descriptor of the page, which the mapping no longer needs: descriptors are limited."""
        if self._page_fd >= 0:
            os.close(self._page_fd)
            self._page_fd = -1


class Server:
    """Accepts readers in a separate thread, so that the writer's tick never waits for one.

    Args:
        path: path of the socket, which has mode 0600 and is in a folder that only the user can enter.
        slots: entries of a reader's lease page.
        greeting: descriptors that every reader gets, before its lease page.
        generation: sent to every reader; changes with a restart.

    Attributes:
        peers: the connected readers.
        refused: the number of readers that were refused.

    Raises:
        IpcUnavailableError: another node serves the path, or no socket can be created there.
    """

    def __init__(self, path: Path, slots: int, greeting: tuple[int, ...], generation: int) -> None:
        self.path = path
        self.peers: tuple[Peer, ...] = ()  # replaced, never changed: the writer's thread reads it without a lock
        self.refused = 0
        self._slots = slots
        self._greeting = greeting
        self._hello = Hello(generation).to_json()
        self._paused = self._warned = False
        try:
            with ExitStack() as made:
                self._lock_fd = self._claim()
                made.callback(os.close, self._lock_fd)
                self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                made.callback(self._listener.close)
                self._wake, self._woken = socket.socketpair()
                made.callback(self._wake.close)
                made.callback(self._woken.close)
                self._selector = selectors.DefaultSelector()
                made.callback(self._selector.close)
                self._listener.bind(os.fspath(path))
                path.chmod(0o600)
                self._listener.listen(MAX_READERS)
                self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
                self._selector.register(self._woken, selectors.EVENT_READ)
                self._thread = threading.Thread(target=self._serve, name="robocache-ipc", daemon=True)
                self._thread.start()
                made.pop_all()
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            why = getattr(error, "strerror", None) or error
            raise IpcUnavailableError(
                f"{path}: cannot create a socket here ({why}); set XDG_RUNTIME_DIR to another folder"
            ) from None

    def announce(self, packet: bytes) -> None:
        """Send a packet to every reader; a reader that misses it finds the slot in the table."""
        for peer in self.peers:
            if not peer.greeted:
                continue
            with contextlib.suppress(OSError):
                peer.socket.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """Disconnect every reader and remove the socket."""
        self._wake.close()
        self._thread.join()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        os.close(self._lock_fd)

    def _claim(self) -> int:
        """Check that no running node serves this path, then remove the socket of an ended one."""
        fd = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.path.unlink(missing_ok=True)
        except BlockingIOError:
            os.close(fd)
            raise IpcUnavailableError(f"{self.path}: is served by another node; give this one another name") from None
        except OSError:
            os.close(fd)
            raise
        return fd

    def _serve(self) -> None:
        while True:
            events = self._selector.select(PAUSE_S if self._paused else None)
            if self._paused and not events:
                self._resume()
            for key, _ in events:
                if key.fileobj is self._woken:
                    return self._shut()
                try:
                    key.data()
                except Exception:  # an error with one reader must not end the others' connections
                    log.exception("a consumer's connection failed")

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # it has already disconnected
            return
        except OSError as error:
            self._pause(str(error.strerror))
            return
        self._warned = False
        uid, pid = peer_uid_pid(connection)
        refusal = self._refusal(connection, uid)
        if refusal:
            self._refuse(connection, pid, refusal)
            return
        connection.setblocking(False)
        try:
            peer = Peer(connection, pid, self._slots)
        except IpcUnavailableError as error:
            self._refuse(connection, pid, str(error))
            return
        self.peers = (*self.peers, peer)  # before the greeting: from then on its leases count
        try:
            peer.greet(self._hello, self._greeting)
            self._selector.register(connection, selectors.EVENT_READ, self._receiver(peer))
        except OSError:
            self._forget(peer)
            return
        log.info("a consumer (process %d) reads frames from shared memory", pid)

    def _refusal(self, connection: socket.socket, uid: int) -> str:
        """Why a reader is not admitted; empty if it is."""
        if uid != os.geteuid():
            return f"user {uid} is not the node's user {os.geteuid()}"
        if len(self.peers) >= MAX_READERS:
            return f"{MAX_READERS} consumers are connected already"
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit != resource.RLIM_INFINITY and connection.fileno() + RESERVED_FDS > limit:
            return f"the node has opened {connection.fileno()} of its {limit} file descriptors; raise `ulimit -n`"
        return ""

    def _refuse(self, connection: socket.socket, pid: int, why: str) -> None:
        self.refused += 1
        log.warning("a consumer (process %d) is refused: %s", pid, why)
        with connection, contextlib.suppress(OSError):
            connection.send(Hello(refused=why).to_json(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _pause(self, why: str) -> None:
        """Stop listening for a while: a connection that cannot be accepted would wake this thread repeatedly."""
        if not self._warned:
            log.warning("no consumer can be accepted now (%s); trying again every second", why)
        self._selector.unregister(self._listener)
        self._paused = self._warned = True

    def _resume(self) -> None:
        self._paused = False
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _receiver(self, peer: Peer) -> Callable[[], None]:
        def receive() -> None:
            """Disconnect a peer: a reader sends no data, so this is its end, or data from another program."""
            try:
                peer.socket.recv(64)
            except BlockingIOError:
                return
            except OSError:
                pass
            self._selector.unregister(peer.socket)
            self._forget(peer)
            log.info("a consumer (process %d) disconnected", peer.pid)

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
