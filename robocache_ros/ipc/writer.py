"""The node's side: puts each tick's frame into a free slot and tells the readers."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ipc import memory, table
from robocache_ros.ipc.layout import Field, RingLayout
from robocache_ros.ipc.server import Server

ANNOUNCEMENT = struct.Struct("=qqi")  # sequence, tick_ns, slot


def slot_views(layout: RingLayout, block: Tensor) -> dict[str, Tensor]:
    """The tensors of a slot, over its bytes."""
    views = {}
    typed: dict[torch.dtype, Tensor] = {}
    for name, dtype, shape, strides, at in layout.places:
        whole = typed.get(dtype)
        if whole is None:
            whole = typed[dtype] = block.view(dtype)
        views[name] = whole.as_strided(shape, strides, whole.storage_offset() + at)
    return views


class Writer:
    """A ring of K slots that readers map. Never waits for a reader.

    A tick goes into the oldest slot that no reader holds. Where every slot but the newest is held, the oldest of them
    is overwritten: its reader is told so, and `overtaken` counts it.

    On CUDA nothing is waited for either: the copies are put on torch's current stream with an event behind them that
    the readers' own streams wait for, and the slot is announced at once.

    Args:
        path: of the socket, from `socket_path`.
        fields: what a frame holds.
        slots: K. Each reader holds one or two at a time.
        device: `cpu`, `cuda` or `cuda:<index>`.
        meta: passed on to the readers as it is.

    Raises:
        RoboCacheError: the memory cannot be had (the message says how much), or another node serves the path.
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
        self.overtaken = 0
        self.published = 0
        self._ring, ring_fds = _make_ring(self.layout, place)
        table_fd = memory.create("robocache-slots", table.table_bytes(self.layout))
        self._table = table.Table(memory.map_fd(table_fd, table.table_bytes(self.layout), writable=True), self.layout)
        memory.seal(table_fd, memory.SEAL_SIZE | memory.SEAL_FUTURE_WRITE)
        size = self.layout.slot_bytes
        self._views = [
            slot_views(self.layout, self._ring.tensor[slot * size : (slot + 1) * size]) for slot in range(slots)
        ]
        description = memory.text_fd("robocache-layout", self.layout.to_json())
        where = memory.text_fd("robocache-place", json.dumps(self._ring.describe()))
        self._fds = (description, where, table_fd, *ring_fds)
        self._sequence = 0
        self.generation = int.from_bytes(os.urandom(7), "little")
        try:
            self._server = Server(Path(path), slots, self._fds, self.generation)
        except BaseException:
            self._release()
            raise

    @property
    def readers(self) -> int:
        """Readers that are connected."""
        return len(self._server.peers)

    @property
    def refused(self) -> int:
        """Readers that were sent away."""
        return self._server.refused

    def publish(self, tick_ns: int, values: Mapping[str, Tensor | NDArray[Any]]) -> None:
        """Copy a frame into a slot and announce it; see `fill`."""
        self.fill(tick_ns, values)
        self.announce()

    def fill(self, tick_ns: int, values: Mapping[str, Tensor | NDArray[Any]]) -> None:
        """Copy a frame into a slot, which no reader sees until `announce`.

        Args:
            tick_ns: the frame's tick.
            values: every field by name, in its shape and dtype: tensors for the ring's, arrays for the `host` ones.

        Raises:
            RoboCacheError: a value is missing or of another shape or dtype; nothing was filled.
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
        """Tell the readers of the frame that was filled last."""
        slot, sequence, tick_ns = self._filled
        self._table.commit(slot, sequence, tick_ns, time.time_ns())
        self._server.announce(ANNOUNCEMENT.pack(sequence, tick_ns, slot))
        self.published += 1

    @contextmanager
    def slot(self, tick_ns: int) -> Iterator[dict[str, Any]]:
        """The arrays of a free slot, to be filled whole; announced on leaving, unless by an exception.

        Yields tensors for the ring's fields and NumPy arrays for the `host` ones.
        """
        with self._filling(tick_ns) as views:
            yield views
        self.announce()

    @contextmanager
    def _filling(self, tick_ns: int) -> Iterator[dict[str, Any]]:
        slot = self._take()
        sequence = self._sequence = self._sequence + 2
        try:
            yield {**self._views[slot], **self._table.host[slot]}
        except BaseException:
            self._table.abandon(slot, 0)  # half a frame: nobody may read it
            raise
        self._ring.record(slot)
        self._filled = (slot, sequence, tick_ns)

    def close(self) -> None:
        """Send the readers away and give the memory back. What they hold of host memory stays readable to them."""
        self._server.close()
        self._release()

    def _take(self) -> int:
        """Choose a slot and mark it as being written."""
        newest, _ = self._table.newest()
        order = sorted((self._table.sequence(slot), slot) for slot in range(self.layout.slots) if slot != newest)
        peers = self._server.peers
        for sequence, slot in order:
            if any(peer.holds[slot] for peer in peers):
                continue
            self._table.begin(slot, self._sequence + 2)
            if not any(peer.holds[slot] for peer in peers):  # a reader came between the look and the mark
                return slot
            self._table.abandon(slot, sequence)
        self.overtaken += 1
        oldest = order[0][1]
        self._table.begin(oldest, self._sequence + 2)
        return oldest

    def _release(self) -> None:
        self._views.clear()
        self._ring.close()
        for fd in self._fds:
            os.close(fd)


def _unfit(field: Field, value: Tensor | NDArray[Any] | None) -> RoboCacheError:
    if value is None:
        return RoboCacheError(f"{field.name}: missing; a frame holds every field of the ring")
    return RoboCacheError(
        f"{field.name}: expected {field.shape} {field.dtype}, got {tuple(value.shape)} "
        f"{str(value.dtype).removeprefix('torch.')}; a ring's fields are fixed, make another writer"
    )


def _make_ring(layout: RingLayout, device: torch.device) -> tuple[memory.Ring, tuple[int, ...]]:
    """The slots' memory, and the descriptor of it where it has one."""
    if device.type == "cpu":
        fd = memory.create("robocache-ring", layout.ring_bytes)
        memory.seal(fd, memory.SEAL_SIZE)
        return memory.HostRing(fd, layout.ring_bytes), (fd,)
    from robocache_ros.ops.cuda.ipc import SharedRing

    index = torch.cuda.current_device() if device.index is None else device.index
    return SharedRing(layout.ring_bytes, layout.slots, index), ()
