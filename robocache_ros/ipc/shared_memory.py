"""Shared memory, and the socket by which a writer passes it to readers of the same user."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import mmap
import os
import re
import resource
import selectors
import socket
import stat
import struct
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from robocache_ros.errors import RoboCacheError, printable

SEAL_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  # access to mapped memory that has shrunk raises SIGBUS
SEAL_CONTENTS = fcntl.F_SEAL_WRITE  # no process can write, including the creator
SEAL_READERS = 0x10  # F_SEAL_FUTURE_WRITE, Linux 5.1: only existing mappings can write; not in the fcntl module


class IpcUnavailableError(RoboCacheError):
    """Frames cannot be passed through shared memory, for the reason in the text. They still arrive as messages."""


def create(name: str, nbytes: int) -> int:
    """A file descriptor of `nbytes` zeroed bytes of memory, all of them allocated; the size is sealed.

    Raises:
        IpcUnavailableError: there is too little memory, or there are too few file descriptors.
    """
    # If memory is not available, the kernel does not refuse the request but kills processes.
    available = available_bytes()
    if available is not None and nbytes > available:
        raise _too_little(name, nbytes, f"{available / 2**20:.1f} MiB are available")
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise _too_little(name, nbytes, str(error.strerror)) from None
    try:
        os.posix_fallocate(fd, 0, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEAL_SIZE)
    except OSError as error:
        os.close(fd)
        raise _too_little(name, nbytes, str(error.strerror)) from None
    return fd


def available_bytes() -> int | None:
    """Bytes of memory that are available; None if the kernel does not report them."""
    try:
        with open("/proc/meminfo", "rb") as lines:
            return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(b"MemAvailable:")), None)
    except OSError:
        return None


def _too_little(name: str, nbytes: int, why: str) -> IpcUnavailableError:
    return IpcUnavailableError(
        f"{name}: {nbytes / 2**20:.1f} MiB of shared memory are not available ({why}); use fewer slots"
    )


def seal(fd: int, seals: int = 0) -> None:
    """Forbid changes to the memory, and further seals; if the kernel lacks a seal, only the uid check protects it."""
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)
    except OSError:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)


def text_fd(name: str, text: str) -> int:
    """A file descriptor with `text` as its contents, which are sealed."""
    data = text.encode()
    fd = create(name, max(len(data), 1))
    os.pwrite(fd, data, 0)
    seal(fd, SEAL_CONTENTS)
    return fd


def read_text_fd(fd: int, limit: int) -> bytes:
    """All bytes behind a peer's descriptor; IpcUnavailableError if they are more than `limit`, or not sealed."""
    size = _sealed_bytes(fd)
    if size > limit:
        raise IpcUnavailableError(f"shared memory: a description of {size} bytes; at most {limit} are read")
    return os.pread(fd, size, 0)


def map_fd(fd: int, nbytes: int, *, writable: bool) -> mmap.mmap:
    """Map the memory behind a descriptor.

    Raises:
        IpcUnavailableError: it is smaller than described, may shrink while it is mapped, or cannot be mapped.
    """
    size = _sealed_bytes(fd)
    if size < nbytes:
        raise IpcUnavailableError(
            f"shared memory: {size} bytes where the description gives {nbytes}; use one version on both sides"
        )
    try:
        return mmap.mmap(fd, nbytes, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
    except PermissionError:
        raise
    except (OSError, ValueError, OverflowError) as error:
        raise IpcUnavailableError(
            f"shared memory: {nbytes} bytes cannot be mapped ({error}); free memory, or use fewer slots"
        ) from None


def _sealed_bytes(fd: int) -> int:
    """Bytes behind a descriptor, which cannot shrink."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:  # not memory but a file, a pipe, a folder
        seals = 0
    if not seals & fcntl.F_SEAL_SHRINK:
        raise IpcUnavailableError("shared memory: its size is not sealed; use one version on both sides")
    return os.fstat(fd).st_size


LONGEST = 100  # bytes of a socket's path; Linux allows 107


def runtime_folder() -> Path:
    """$XDG_RUNTIME_DIR/robocache, or else a private folder in the temporary folder; created if needed.

    Raises:
        IpcUnavailableError: the folder cannot be created, is a link, belongs to another user, or others may enter it.
    """
    named = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(named) / "robocache" if named else Path(tempfile.gettempdir()) / f"robocache-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise IpcUnavailableError(f"{folder}: cannot be created ({error.strerror}); set XDG_RUNTIME_DIR") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise IpcUnavailableError(
            f"{folder}: is not a folder of only this user (mode 0700); remove it, or set XDG_RUNTIME_DIR"
        )
    return folder


def socket_path(node: str, domain: int | str | None = None) -> Path:
    """The path of a node's socket, the same for the node and for its consumers.

    Args:
        node: fully qualified name, such as `/robot/fusion_node`.
        domain: ROS domain; None: $ROS_DOMAIN_ID, else 0.

    Raises:
        IpcUnavailableError: there is no folder that only this user can enter, or the path is too long for a socket.
    """
    domain = os.environ.get("ROS_DOMAIN_ID") or 0 if domain is None else domain
    folder = runtime_folder()
    name = re.sub(r"[^A-Za-z0-9_]", ".", f"{domain}{node}")
    if len(os.fsencode(folder)) + len(name) + 6 > LONGEST:
        name = hashlib.sha256(f"{domain}{node}".encode()).hexdigest()[:20]
    path = folder / f"{name}.sock"
    if len(os.fsencode(path)) > LONGEST:
        raise IpcUnavailableError(f"{path}: is too long for a socket; set XDG_RUNTIME_DIR to a shorter folder")
    return path


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
        is_absent = isinstance(error, (FileNotFoundError, ConnectionRefusedError))  # as while the node starts
        why = "" if is_absent else f" ({printable(error)})"
        raise IpcUnavailableError(
            f"{path}: no node answers there yet{why}; start the node, or check its name"
        ) from None
    return connection, list(fds), hello.generation


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)


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
        self._page_fd = create("robocache-leases", max(slots * 8, mmap.PAGESIZE))
        try:
            seal(self._page_fd)
            self._page = map_fd(self._page_fd, slots * 8, writable=True)
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
                self._paused = False
                self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
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
