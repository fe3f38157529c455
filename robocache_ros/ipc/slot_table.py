"""The slot table: which tick each slot contains, in host memory that readers can only read."""

from __future__ import annotations

import mmap

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.ipc.slot_layout import ALIGNMENT, DTYPES, RingLayout

# A slot's line: sequence number (odd while it is being written, 0 before the first write), tick_ns, published_ns.
LINE = 8  # in words of 8 bytes: one cache line per slot
SEQUENCE, TICK, PUBLISHED = 0, 1, 2


def table_bytes(layout: RingLayout) -> int:
    """Bytes of the table and of the host fields behind it."""
    return _lines_bytes(layout) + layout.slots * layout.host_bytes


def _lines_bytes(layout: RingLayout) -> int:
    return -(-layout.slots * LINE * 8 // ALIGNMENT) * ALIGNMENT


class Table:
    """The slot table for one of the sides.

    Reads and writes of a word are atomic (aligned, 8 bytes). After a reader has received an announcement, it sees all
    that was written before the announcement was sent: the packet passes through a kernel lock on both sides.
    """

    def __init__(self, memory: mmap.mmap, layout: RingLayout) -> None:
        self._words = memoryview(memory)[: layout.slots * LINE * 8].cast("q")
        base = _lines_bytes(layout)
        self.host: list[dict[str, NDArray[np.generic]]] = [
            {
                name: np.frombuffer(
                    memory,
                    torch.zeros(0, dtype=DTYPES[field.dtype]).numpy().dtype,
                    field.nbytes // DTYPES[field.dtype].itemsize,
                    base + slot * layout.host_bytes + layout.offsets[name],
                ).reshape(field.shape)
                for name, field in layout.host.items()
            }
            for slot in range(layout.slots)
        ]
        self._slots = range(layout.slots)

    def sequence(self, slot: int) -> int:
        """Sequence number of a slot: even and rising with each tick; odd while it is being written."""
        return self._words[slot * LINE]

    def tick_ns(self, slot: int) -> int:
        """Tick of the slot's frame."""
        return self._words[slot * LINE + TICK]

    def published_ns(self, slot: int) -> int:
        """Wall time at which the slot was announced."""
        return self._words[slot * LINE + PUBLISHED]

    def begin(self, slot: int, sequence: int) -> None:
        """Mark a slot as being written."""
        self._words[slot * LINE] = sequence - 1

    def commit(self, slot: int, sequence: int, tick_ns: int, published_ns: int) -> None:
        """Announce a slot: the sequence number is written last."""
        at = slot * LINE
        self._words[at + TICK] = tick_ns
        self._words[at + PUBLISHED] = published_ns
        self._words[at] = sequence

    def abandon(self, slot: int, sequence: int) -> None:
        """Restore the sequence number of a slot that was not written to."""
        self._words[slot * LINE] = sequence

    def newest(self) -> tuple[int, int]:
        """(slot, sequence) of the newest complete slot; sequence 0 if there is none."""
        return max(
            ((s, n) for s in self._slots if (n := self._words[s * LINE]) % 2 == 0), key=lambda e: e[1], default=(0, 0)
        )
