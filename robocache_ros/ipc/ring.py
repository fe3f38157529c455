"""The writer and the readers of a ring of slots."""

from __future__ import annotations

import json
import os
import select
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.ipc import shared_memory
from robocache_ros.ipc.shared_memory import IpcUnavailableError, Server, close_all
from robocache_ros.ipc.slots import Field, RingLayout, Table, make_ring, map_ring, slot_views, table_bytes

ANNOUNCEMENT = struct.Struct("=qqi")  # sequence, tick_ns, slot


class Writer:
    """A ring of K slots that readers map. Never waits for a reader.

    A tick is written to the oldest slot that no reader has leased. If every slot but the newest is leased, the
    oldest of them is overwritten: `overwritten` of its lease is then true, and `overwritten` of the writer counts it.

    The host does not wait on CUDA either: the copies are queued on torch's current stream, followed by an event that
    the streams of the readers wait for, and the slot is announced immediately.

    Args:
        path: path of the socket, from `socket_path`.
        fields: the fields of a frame.
        slots: K. Each reader leases one or two at a time.
        device: `cpu`, `cuda` or `cuda:<index>`.
        meta: text that is passed to the readers unchanged.

    Attributes:
        overwritten: frames whose slot was overwritten while a reader had leased it.

    Raises:
        IpcUnavailableError: there is too little memory or too few file descriptors, another node serves the path, or
            no socket can be created there.
        RoboCacheError: the fields do not form a ring, or the GPU has too little memory.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Sequence[Field],
        *,
        slots: int = 8,
        device: str = "cpu",
        meta: str = "",
    ) -> None:
        place = torch.device(device)
        self.layout = RingLayout(tuple(fields), slots, place.type, meta)
        self.overwritten = 0
        self.generation = int.from_bytes(os.urandom(7), "little")
        self._sequence = 0
        with ExitStack() as made:  # released if a later step fails
            self._ring, ring_fds = make_ring(self.layout, place)
            made.callback(self._ring.close)
            nbytes = table_bytes(self.layout)
            table_fd = shared_memory.create("robocache-slots", nbytes)
            self._fds: tuple[int, ...] = (table_fd, *ring_fds)
            made.callback(lambda: close_all(self._fds))
            self._table = Table(shared_memory.map_fd(table_fd, nbytes, writable=True), self.layout)
            shared_memory.seal(table_fd, shared_memory.SEAL_READERS)
            for name, text in (("place", json.dumps(self._ring.describe())), ("layout", self.layout.to_json())):
                self._fds = (shared_memory.text_fd(f"robocache-{name}", text), *self._fds)
            self._server = Server(Path(path), slots, self._fds, self.generation)
            self._made = made.pop_all()
        size = self.layout.slot_bytes
        self._views = [
            slot_views(self.layout, self._ring.tensor[slot * size : (slot + 1) * size]) for slot in range(slots)
        ]

    @property
    def readers(self) -> int:
        """Readers that are connected."""
        return len(self._server.peers)

    @property
    def refused(self) -> int:
        """Readers that were refused."""
        return self._server.refused

    def publish(self, tick_ns: int, values: Mapping[str, Tensor | NDArray[Any]]) -> None:
        """Copy a frame into a slot and announce it; see `fill`."""
        self.fill(tick_ns, values)
        self.announce()

    def fill(self, tick_ns: int, values: Mapping[str, Tensor | NDArray[Any]]) -> None:
        """Copy a frame into a slot, which no reader sees until `announce`.

        Args:
            tick_ns: the frame's tick.
            values: every field by name, in its shape and dtype: tensors for the ring, arrays for `host` fields.

        Raises:
            RoboCacheError: a value is missing or has another shape or dtype; no slot was filled.
        """
        for field in self.layout.fields:
            value = values.get(field.name)
            if value is None or value.shape != field.shape or str(value.dtype).rpartition(".")[2] != field.dtype:
                raise _unfit(field, value)
        with self._filling(tick_ns) as views:
            for name, view in views.items():
                if isinstance(view, Tensor):
                    self._ring.copy(view, values[name])  # type: ignore[arg-type]
                else:
                    view[...] = values[name]

    def announce(self) -> None:
        """Announce the frame that was filled last to the readers."""
        slot, sequence, tick_ns = self._filled
        self._table.commit(slot, sequence, tick_ns, time.time_ns())
        self._server.announce(ANNOUNCEMENT.pack(sequence, tick_ns, slot))

    @contextmanager
    def _filling(self, tick_ns: int) -> Iterator[dict[str, Any]]:
        slot = self._claim_slot()
        sequence = self._sequence = self._sequence + 2
        try:
            yield {**self._views[slot], **self._table.host[slot]}
        except BaseException:
            self._table.abandon(slot, 0)  # an incomplete frame must not be read
            raise
        self._ring.record(slot)
        self._filled = (slot, sequence, tick_ns)

    def close(self) -> None:
        """Disconnect the readers and free the memory. Host memory that readers lease stays readable for them."""
        self._server.close()
        self._views.clear()
        self._made.close()

    def _claim_slot(self) -> int:
        """Choose a slot and mark it as being written."""
        newest, _ = self._table.newest()
        order = sorted((self._table.sequence(slot), slot) for slot in range(self.layout.slots) if slot != newest)
        peers = self._server.peers
        for sequence, slot in order:
            if any(peer.leases[slot] for peer in peers):
                continue
            self._table.begin(slot, self._sequence + 2)
            if not any(peer.leases[slot] for peer in peers):  # false if a reader has leased it since the choice
                return slot
            self._table.abandon(slot, sequence)
        self.overwritten += 1
        oldest = order[0][1]
        self._table.begin(oldest, self._sequence + 2)
        return oldest


def _unfit(field: Field, value: Tensor | NDArray[Any] | None) -> RoboCacheError:
    if value is None:
        return RoboCacheError(f"{field.name}: missing; give every field of the ring")
    return RoboCacheError(
        f"{field.name}: expected {field.shape} {field.dtype}, got {tuple(value.shape)} "
        f"{str(value.dtype).removeprefix('torch.')}; the fields of a ring are fixed, create another writer"
    )


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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
        self._socket, fds, self.generation = shared_memory.connect(os.fspath(path))
        try:
            self.layout = RingLayout.from_json(shared_memory.read_text_fd(fds[0], MAX_DESCRIPTION_BYTES))
            memory = shared_memory.map_fd(fds[2], table_bytes(self.layout), writable=False)
            self._table = Table(memory, self.layout)
            self._lease_page = shared_memory.map_fd(fds[-1], self.layout.slots * 8, writable=True)
            place = shared_memory.read_text_fd(fds[1], MAX_DESCRIPTION_BYTES)
            self._ring = map_ring(self.layout, place, fds[3:-1])
        except Exception as error:  # a peer may send anything; the consumer continues with messages
            self._socket.close()
            raise IpcUnavailableError(f"{path}: {printable(error, 160)}") from None
        finally:
            close_all(fds)
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


RETRY_S = 0.5


class Connection:
    """The reader of a node's ring; None while there is no ring, and frames arrive as messages.

    Never raises if there is no node. After a node restarts, its ring is found and mapped again: `reader.layout` and
    `reader.generation` may then have changed.

    Args:
        path: path of the node's socket, from `socket_path`.
        retry_s: minimum time between two attempts to connect.

    Attributes:
        reader: the reader of the last `connect`.
        why: the reason why there is no reader, for the log.
    """

    def __init__(self, path: str | os.PathLike[str], *, retry_s: float = RETRY_S) -> None:
        self.path = os.fspath(path)
        self.reader: Reader | None = None
        self.why = "not connected yet"
        self._retry_s = retry_s
        self._next_try = 0.0

    def connect(self) -> Reader | None:
        """The reader of the open connection; connects again when the next attempt is due; None without a node."""
        if self.reader and self.reader.alive:
            return self.reader
        now = time.monotonic()
        if self.reader:
            self.reader, self.why = None, "the node has closed its ring"
            self._next_try = now  # a node that restarts is soon available again
        if now >= self._next_try:
            self._next_try = now + self._retry_s
            try:
                self.reader, self.why = Reader(self.path), ""
            except IpcUnavailableError as error:
                self.why = str(error)
        return self.reader

    def drop(self, why: str) -> None:
        """Disconnect from a node whose ring cannot be used, until the next attempt is due."""
        if self.reader:
            self.reader.close()
        self.reader, self.why = None, why
        self._next_try = time.monotonic() + self._retry_s

    def close(self) -> None:
        """Disconnect permanently."""
        if self.reader:
            self.reader.close()
        self._next_try = float("inf")
