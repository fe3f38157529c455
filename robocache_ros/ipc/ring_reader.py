"""The consumer's side: maps the ring of a node and reads frames in it without a copy."""

from __future__ import annotations

import os
import select
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

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.ipc import handshake, rings, shared_memory, slot_table
from robocache_ros.ipc.shared_memory import IpcUnavailableError
from robocache_ros.ipc.slot_layout import RingLayout, slot_views

EARLY_S = 0.000_8  # a waiting reader starts to poll without sleeping this long before a frame is due,
POLL_S = 0.000_5  # and polls for this long after it
MAX_DESCRIPTION_BYTES = 16 * 2**20
MAX_ANNOUNCEMENTS = 1024  # read at once; a socket's buffer holds about 300


class OverwrittenError(RoboCacheError):
    """The writer overwrote the slot of a frame while it was leased: the data that was read may be inconsistent."""


class SlotLease:
    """A frame in its slot, which the writer does not reuse while it is leased.

    The lease lasts until all tensors that view the slot are deleted, or until `release`, or the end of the `with`
    block. Do not write to the tensors: other consumers view the same memory. On CUDA, work that is launched on torch's
    current stream after the lease began runs after the frame was written. The slot is returned when all work that was
    launched on the stream before the release is complete.

    Attributes:
        tick_ns: tick of the frame.
        published_ns: wall time at which it was announced.
        sequence: its number, which rises with each frame of a ring, also if the ticks jump back.
        tensors: by field, views of the slot on the ring's device.
        host: by field, copies.
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
        self.tick_ns, self.published_ns = times_ns
        self.sequence = sequence
        self.tensors = slot_views(reader.layout, block[1])
        self.host = host
        self._slot = slot
        self._reader = reader
        self._release = weakref.finalize(block[0], reader._give_back, slot)
        self._release.atexit = False

    @property
    def overwritten(self) -> bool:
        """Whether the writer has used the slot for another tick while it was leased."""
        return self._release.alive and self._reader._table.sequence(self._slot) != self.sequence

    def release(self) -> None:
        """Release the slot; do not read the tensors afterwards."""
        self._release()

    def __enter__(self) -> SlotLease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        overwritten = kind is None and self.overwritten
        self.release()
        if overwritten:
            raise OverwrittenError(
                f"tick {self.tick_ns}: its slot was overwritten while it was leased; keep frames for less time"
            )


class Reader:
    """One connection to a node's ring; it ends when the node ends (`alive`).

    Use it in one thread at a time; frames may be deleted in any thread. `fileno` becomes readable with each new tick,
    and when the node ends.

    Args:
        path: path of the node's socket, from `socket_path`.

    Raises:
        IpcUnavailableError: no node of this user listens at the path, it refused, or its ring cannot be mapped.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # The thread that deletes the last tensor releases the slot, also during a call in another thread.
        self._lock = threading.RLock()
        self._pending: deque[tuple[int, Callable[[], bool]]] = deque()
        self.alive = False
        self._socket, fds, self.generation = handshake.connect(os.fspath(path))
        try:
            self.layout = RingLayout.from_json(shared_memory.read_text_fd(fds[0], MAX_DESCRIPTION_BYTES))
            size = slot_table.table_bytes(self.layout)
            self._table = slot_table.Table(shared_memory.map_fd(fds[2], size, writable=False), self.layout)
            self._lease_page = shared_memory.map_fd(fds[-1], self.layout.slots * 8, writable=True)
            place = shared_memory.read_text_fd(fds[1], MAX_DESCRIPTION_BYTES)
            self._ring = rings.map_ring(self.layout, place, fds[3:-1])
        except Exception as error:  # a peer may send anything; the consumer continues with messages
            self._socket.close()
            raise IpcUnavailableError(f"{path}: {printable(error, 160)}") from None
        finally:
            handshake.close_all(fds)
        self._leases = memoryview(self._lease_page).cast("q")
        self._counts = [0] * self.layout.slots
        self._newest_ns = 0  # tick of the frame that was leased last
        self._due_ns = 0  # wall time at which the next frame is due
        self._leave = weakref.finalize(self, self._socket.close)
        self.alive = True

    @property
    def meta(self) -> str:
        """The text that the node attached to its ring."""
        return self.layout.meta

    @property
    def newest_sequence(self) -> int:
        """`sequence` of the newest frame in the ring; 0 if there is none."""
        return self._table.newest()[1]

    def fileno(self) -> int:
        """For select and event loops; -1 once closed."""
        return self._socket.fileno()

    def latest(self, after: int = 0) -> SlotLease | None:
        """Lease the newest frame; None if no frame has a `sequence` above `after`, or the node has ended."""
        self._drain()
        for _ in range(self.layout.slots):  # more attempts than a writer at its rate can interfere with
            if not self.alive:
                break
            slot, sequence = self._table.newest()
            if sequence <= after:
                break
            lease = self._lease(slot, sequence, self._table.tick_ns(slot))
            if lease:
                return lease
        return None

    def wait(self, timeout_s: float, after: int = 0, warm_up: Callable[[], None] = lambda: None) -> SlotLease | None:
        """Wait for a frame with a `sequence` above `after`, and lease the newest one.

        Args:
            timeout_s: seconds to wait at most.
            after: `sequence` of the last frame that was read.
            warm_up: called shortly before a frame is due, so that the code that it runs is in the caches.

        Returns:
            The lease; None at the timeout or when the node ends.
        """
        end = time.monotonic() + timeout_s
        while True:
            lease = self.latest(after)
            left = end - time.monotonic()
            if lease or not self.alive or left <= 0:
                return lease
            self._sleep(left, warm_up)

    def _sleep(self, left_s: float, warm_up: Callable[[], None]) -> None:
        """Return when something was announced, or after `left_s`.

        A sleeping thread wakes up a tenth of a millisecond late, with cold caches. The socket is therefore polled
        shortly before a frame is due, which follows from the period of earlier frames. Other threads may run meanwhile.
        """
        watched = [self._socket]
        ahead_s = (self._due_ns - time.time_ns()) / 1e9
        if not EARLY_S < ahead_s < left_s:
            select.select(watched, [], [], left_s)
            return
        if select.select(watched, [], [], ahead_s - EARLY_S)[0]:
            return
        end = time.monotonic() + EARLY_S + POLL_S
        warm_up()
        while time.monotonic() < end and not select.select(watched, [], [], 0)[0]:
            pass

    def close(self) -> None:
        """Disconnect; all slots are released."""
        self.alive = False
        self._leave()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drain(self) -> None:
        """Read the announcements: they wake and order; the slot table determines which frames exist."""
        for _ in range(len(self._pending)):
            slot, done = self._pending.popleft()
            if done():
                self._end_lease(slot)
            else:
                self._pending.append((slot, done))
        try:
            for _ in range(MAX_ANNOUNCEMENTS):
                if self.alive and not self._socket.recv(64):
                    self.close()
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def _lease(self, slot: int, sequence: int, tick_ns: int) -> SlotLease | None:
        """Mark a slot as leased; None if the writer has started to reuse it meanwhile."""
        with self._lock:
            self._counts[slot] += 1
            self._leases[slot] = 1
        published_ns = self._table.published_ns(slot)
        host = {name: np.array(view) for name, view in self._table.host[slot].items()}
        if self._table.sequence(slot) != sequence or self._table.tick_ns(slot) != tick_ns:
            self._end_lease(slot)
            return None
        if tick_ns != self._newest_ns:
            self._due_ns = published_ns + tick_ns - self._newest_ns if self._newest_ns else 0
            self._newest_ns = tick_ns
        self._ring.wait(slot)
        block = self._ring.block(slot * self.layout.slot_bytes, self.layout.slot_bytes)
        return SlotLease(self, slot, sequence, (tick_ns, published_ns), block, host)

    def _give_back(self, slot: int) -> None:
        done = self._ring.fence()
        if done is None:
            self._end_lease(slot)
        else:
            self._pending.append((slot, done))

    def _end_lease(self, slot: int) -> None:
        with self._lock:
            self._counts[slot] -= 1
            if not self._counts[slot]:
                self._leases[slot] = 0
