"""The node's side: writes each tick's frame into a free slot and announces it to the readers."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ipc import rings, shared_memory, slot_table
from robocache_ros.ipc.handshake import close_all
from robocache_ros.ipc.server import Server
from robocache_ros.ipc.slot_layout import Field, RingLayout, slot_views

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
        published: frames announced.

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
        self.published = 0
        self.generation = int.from_bytes(os.urandom(7), "little")
        self._sequence = 0
        with ExitStack() as made:  # released if a later step fails
            self._ring, ring_fds = rings.make_ring(self.layout, place)
            made.callback(self._ring.close)
            table_bytes = slot_table.table_bytes(self.layout)
            table_fd = shared_memory.create("robocache-slots", table_bytes)
            self._fds: tuple[int, ...] = (table_fd, *ring_fds)
            made.callback(lambda: close_all(self._fds))
            memory = shared_memory.map_fd(table_fd, table_bytes, writable=True)
            self._table = slot_table.Table(memory, self.layout)
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
        self.published += 1

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
