"""Memory for large messages, used again as soon as nothing refers to the message in it."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

HOST_BLOCKS = 16  # of a feed: its messages are kept while a tick may need one


def buffer_for(nbytes: int) -> int:
    """Bytes of a buffer for messages of about `nbytes`: clouds and compressed images vary in size."""
    return nbytes + nbytes // 8 + 4096


class BufferPool:
    """Blocks of memory, given out as arrays.

    A block is in use as long as the array, or any view of it, exists: a payload that is kept keeps its message, and no
    call returns a block.

    Args:
        make: (nbytes,) uint8 of new memory.
        most: blocks that are kept; where all are in use, `acquire` returns new memory that is not kept.
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
        """Allocate all blocks, of at least `nbytes`; smaller ones are released as soon as they are free."""
        self._blocks = [block for block in self._blocks if len(block.memory) >= nbytes or block.in_use]
        while len(self._blocks) < self._most:
            self._blocks.append(_Block(self._make(nbytes)))

    def acquire(self, nbytes: int) -> Bytes:
        """At least `nbytes` uint8, uninitialized."""
        for block in self._blocks:
            if not block.in_use and len(block.memory) >= nbytes:
                return block.acquire()
        self._blocks = [block for block in self._blocks if len(block.memory) >= nbytes or block.in_use]
        if len(self._blocks) == self._most:
            return np.empty(nbytes, np.uint8)
        self._blocks.append(_Block(self._make(nbytes)))
        return self._blocks[-1].acquire()

    def address(self, data: Bytes) -> int | None:
        """The address of `data` if it is in one of the blocks."""
        start = int(data.__array_interface__["data"][0])
        inside = any(block.start <= start and start + data.nbytes <= block.stop for block in self._blocks)
        return start if inside else None


class _Block:
    def __init__(self, memory: Bytes) -> None:
        self.memory = memory
        self.start = int(memory.ctypes.data)
        self.stop = self.start + memory.nbytes
        self._array: weakref.ref[Bytes] | None = None

    @property
    def in_use(self) -> bool:
        return self._array is not None and self._array() is not None

    def acquire(self) -> Bytes:
        # Over a memoryview: views of the array then refer to the array, not to the memory behind it.
        array = np.frombuffer(self.memory.data, np.uint8)
        self._array = weakref.ref(array)
        return array


def host_pool(most: int = HOST_BLOCKS) -> BufferPool:
    """A BufferPool in pageable memory."""
    return BufferPool(lambda nbytes: np.empty(nbytes, np.uint8), most)
