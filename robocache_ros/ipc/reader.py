"""A consumer's side: maps the ring of a node and takes frames from it without a copy."""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ipc import memory, table
from robocache_ros.ipc.layout import RingLayout
from robocache_ros.ipc.memory import IpcUnavailableError
from robocache_ros.ipc.server import Hello, peer_uid_pid
from robocache_ros.ipc.writer import slot_views

EARLY_S = 0.000_8  # before a frame is due, a reader that waits gets ready, and looks for it without sleeping
POLL_S = 0.000_5  # and for so long after it: 4 to 6 % of a core at 50 Hz
CONNECT_S = 1.0  # how long a node may take to answer: it does so on a thread of its own


class OvertakenError(RoboCacheError):
    """The writer needed the slot of a frame that was still held: what was read of it may be torn."""


class HeldFrame:
    """A frame in its slot, which the writer goes round while it is held.

    It is held as long as any tensor views it, or until `release`, or the end of the `with` block. The tensors are not
    to be written to: other consumers view the same memory. On CUDA, what torch's current stream is given after the
    taking runs after the frame was written, and the slot is given back once all that the stream was given before the
    release is through.
    """

    def __init__(
        self,
        reader: Reader,
        slot: int,
        sequence: int,
        times_ns: tuple[int, int],
        block: tuple[object, Tensor],
        host: dict[str, NDArray[Any]],
    ) -> None:
        self.tick_ns, self.published_ns = times_ns  # the latter is wall time
        self.tensors = slot_views(reader.layout, block[1])  # by field, on the ring's device
        self.host = host  # by field, copies
        self._sequence = sequence
        self._slot = slot
        self._reader = reader
        self._release = weakref.finalize(block[0], reader._give_back, slot)
        self._release.atexit = False

    @property
    def overtaken(self) -> bool:
        """Whether the writer has taken the slot for another tick while it was held."""
        return self._release.alive and self._reader._table.sequence(self._slot) != self._sequence

    def check(self) -> None:
        """OvertakenError where the writer has taken the slot: what was read may be torn."""
        if self.overtaken:
            raise OvertakenError(
                f"tick {self.tick_ns}: its slot was needed; hold frames for less time or give more slots"
            )

    def release(self) -> None:
        """Give the slot back; the tensors are not to be read any more."""
        self._release()

    def __enter__(self) -> HeldFrame:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        overtaken = kind is None and self.overtaken
        self.release()
        if overtaken:
            raise OvertakenError(f"tick {self.tick_ns}: was overwritten while it was held; hold frames for less time")


class Reader:
    """One connection to a node's ring; it ends when the node does (`alive`).

    Used by one thread at a time; frames may be dropped in any. `fileno` becomes readable with each new tick, and when
    the node goes.

    Args:
        path: of the node's socket, from `socket_path`.

    Raises:
        IpcUnavailableError: no node of this user is behind the path, it refused, or its ring cannot be mapped here.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # Frames are given back by whichever thread drops the last tensor, also in the middle of a call of this one's.
        self._lock = threading.RLock()
        self._pending: deque[tuple[int, Callable[[], bool]]] = deque()
        self.alive = False
        self._socket, fds, self.generation = _connect(os.fspath(path))
        try:
            self.layout = RingLayout.from_json(_read(fds[0]))
            size = table.table_bytes(self.layout)
            self._table = table.Table(memory.map_fd(fds[2], size, writable=False), self.layout)
            self._holds_map = memory.map_fd(fds[-1], self.layout.slots * 8, writable=True)
            self._ring = _map_ring(self.layout, json.loads(_read(fds[1])), fds[3:-1])
        except RoboCacheError as error:
            self._socket.close()
            raise IpcUnavailableError(f"{path}: {error}") from None
        finally:
            for fd in fds:
                os.close(fd)
        self._holds = memoryview(self._holds_map).cast("q")
        self._counts = [0] * self.layout.slots
        self._newest_ns = 0  # tick of the frame that was held last
        self._due_ns = 0  # wall time at which the next one is due
        self._leave = weakref.finalize(self, self._socket.close)
        self.alive = True

    @property
    def meta(self) -> str:
        """What the node passed on."""
        return self.layout.meta

    def fileno(self) -> int:
        """For select and event loops; -1 once closed."""
        return self._socket.fileno()

    def frame(self, tick_ns: int) -> HeldFrame | None:
        """Hold the frame of a tick; None where no slot holds it (not yet, or no more), or the node is gone."""
        self._drain()
        found = self._table.find(tick_ns) if self.alive else None
        return self._hold(*found, tick_ns) if found else None

    def latest(self, after_ns: int | None = None) -> HeldFrame | None:
        """Hold the newest frame; None where there is none, none past `after_ns`, or the node is gone."""
        self._drain()
        while self.alive:
            slot, sequence = self._table.newest()
            tick_ns = self._table.tick_ns(slot)
            if not sequence or (after_ns is not None and tick_ns <= after_ns):
                break
            held = self._hold(slot, sequence, tick_ns)
            if held:
                return held
        return None

    def wait(
        self, timeout_s: float, after_ns: int | None = None, rehearse: Callable[[], None] = lambda: None
    ) -> HeldFrame | None:
        """Hold the newest frame past `after_ns`, waiting for one; None at the timeout or when the node goes.

        `rehearse` is called shortly before a frame is due: what it goes through is in the caches when the frame comes.
        """
        end = time.monotonic() + timeout_s
        while True:
            held = self.latest(after_ns)
            left = end - time.monotonic()
            if held or not self.alive or left <= 0:
                return held
            self._sleep(left, rehearse)

    def _sleep(self, left_s: float, rehearse: Callable[[], None]) -> None:
        """Return when there is news, or after `left_s`.

        A thread that sleeps is woken a tenth of a millisecond late, with cold caches. So shortly before a frame is
        due by the beat of those before it, the socket is asked over and over; other threads may run between.
        """
        watched = [self._socket]
        ahead_s = (self._due_ns - time.time_ns()) / 1e9
        if not EARLY_S < ahead_s < left_s:
            select.select(watched, [], [], left_s)
            return
        if select.select(watched, [], [], ahead_s - EARLY_S)[0]:
            return
        end = time.monotonic() + EARLY_S + POLL_S
        rehearse()
        while time.monotonic() < end and not select.select(watched, [], [], 0)[0]:
            pass

    def close(self) -> None:
        """Leave; what is held is given back."""
        self.alive = False
        self._leave()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drain(self) -> None:
        """Read what has been announced: it wakes, and it orders; the table says the rest."""
        for _ in range(len(self._pending)):
            slot, done = self._pending.popleft()
            if done():
                self._let_go(slot)
            else:
                self._pending.append((slot, done))
        try:
            while self.alive:
                if not self._socket.recv(64):
                    self.close()
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def _hold(self, slot: int, sequence: int, tick_ns: int) -> HeldFrame | None:
        with self._lock:
            self._counts[slot] += 1
            self._holds[slot] = 1
        published_ns = self._table.published_ns(slot)
        host = {name: np.array(view) for name, view in self._table.host[slot].items()}
        if self._table.sequence(slot) != sequence or self._table.tick_ns(slot) != tick_ns:
            self._let_go(slot)
            return None
        if tick_ns != self._newest_ns:
            self._due_ns = published_ns + tick_ns - self._newest_ns if self._newest_ns else 0
            self._newest_ns = tick_ns
        self._ring.wait(slot)
        block = self._ring.block(slot * self.layout.slot_bytes, self.layout.slot_bytes)
        return HeldFrame(self, slot, sequence, (tick_ns, published_ns), block, host)

    def _give_back(self, slot: int) -> None:
        done = self._ring.fence()
        if done is None:
            self._let_go(slot)
        else:
            self._pending.append((slot, done))

    def _let_go(self, slot: int) -> None:
        with self._lock:
            self._counts[slot] -= 1
            if not self._counts[slot]:
                self._holds[slot] = 0


def _connect(path: str) -> tuple[socket.socket, list[int], int]:
    """Connect and receive the descriptors: layout, ring's place, table, (ring,) holds."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(CONNECT_S)
    fds: list[int] = []
    try:
        connection.connect(path)
        uid, _ = peer_uid_pid(connection)
        if uid != os.geteuid():
            raise IpcUnavailableError(f"{path}: user {uid} serves it, not this process's user {os.geteuid()}")
        data, fds, _, _ = socket.recv_fds(connection, 4096, 8)
        hello = Hello.from_json(data)
        if hello.refused or len(fds) < 4:
            raise IpcUnavailableError(f"{path}: {hello.refused or 'the node hung up'}")
        connection.setblocking(False)
        return connection, list(fds), hello.generation
    except (OSError, ValueError) as error:
        connection.close()
        for fd in fds:
            os.close(fd)
        if isinstance(error, IpcUnavailableError):
            raise
        raise IpcUnavailableError(f"{path}: no node answers there ({error})") from None


def _read(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _map_ring(layout: RingLayout, where: dict[str, Any], fds: list[int]) -> memory.Ring:
    if layout.device == "cpu":
        if not fds:
            raise IpcUnavailableError("the ring's descriptor is missing")
        return memory.HostRing(fds[0], layout.ring_bytes)
    from robocache_ros.ops.cuda.ipc import MappedRing

    return MappedRing(where, layout.ring_bytes)
