"""Memory that large messages are taken into, and that is used again when nobody refers to what was in it."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

HOST_BLOCKS = 16  # of a feed: its messages are kept while a tick may need one


def room_for(nbytes: int) -> int:
    """Room for messages of about so many bytes: clouds differ in their points, compressed images in everything."""
    return nbytes + nbytes // 8 + 4096


class Rooms:
    """Blocks of memory, lent out as arrays.

    A block is in use as long as the array that was lent, or any view of it, lives: a payload that is kept keeps its
    message, and nothing needs to be given back.

    Args:
        make: (nbytes,) uint8 of new memory.
        most: blocks that are kept; where all are in use, what is lent is new memory and not kept.
    """

    def __init__(self, make: Callable[[int], Bytes], most: int) -> None:
        self._make = make
        self._most = most
        self._blocks: list[_Block] = []

    @property
    def nbytes(self) -> tuple[int, ...]:
        """Bytes of each block."""
        return tuple([len(block.memory) for block in self._blocks])

    def reserve(self, nbytes: int) -> None:
        """Make all blocks that may be kept, of so many bytes; those that are smaller go, as soon as they are free."""
        self._blocks = [block for block in self._blocks if len(block.memory) >= nbytes or block.in_use]
        while len(self._blocks) < self._most:
            self._blocks.append(_Block(self._make(nbytes)))

    def lend(self, nbytes: int) -> Bytes:
        """At least `nbytes` uint8, whose contents are whatever they are."""
        for block in self._blocks:
            if not block.in_use and len(block.memory) >= nbytes:
                return block.lend()
        self._blocks = [block for block in self._blocks if len(block.memory) >= nbytes or block.in_use]
        if len(self._blocks) == self._most:
            return np.empty(nbytes, np.uint8)
        self._blocks.append(_Block(self._make(nbytes)))
        return self._blocks[-1].lend()

    def address(self, data: Bytes) -> int | None:
        """Where `data` begins, if it lies in one of the blocks."""
        start = int(data.__array_interface__["data"][0])
        inside = any(block.start <= start and start + data.nbytes <= block.stop for block in self._blocks)
        return start if inside else None


class _Block:
    def __init__(self, memory: Bytes) -> None:
        self.memory = memory
        self.start = int(memory.ctypes.data)
        self.stop = self.start + memory.nbytes
        self._lent: weakref.ref[Bytes] | None = None

    @property
    def in_use(self) -> bool:
        return self._lent is not None and self._lent() is not None

    def lend(self) -> Bytes:
        # Over a memoryview: views of the array then refer to it, and not past it to the memory.
        array = np.frombuffer(self.memory.data, np.uint8)
        self._lent = weakref.ref(array)
        return array


def host_rooms() -> Rooms:
    """Rooms in ordinary memory."""
    return Rooms(lambda nbytes: np.empty(nbytes, np.uint8), HOST_BLOCKS)
