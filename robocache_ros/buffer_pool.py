"""Memory for large messages, reused as soon as nothing refers to the message in it."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

HOST_BLOCKS = 16  # for a feed: a message is kept while a tick may need it


def buffer_for(nbytes: int) -> int:
    """Size of a buffer for messages of about `nbytes`; clouds and compressed images vary in size."""
    return nbytes + nbytes // 8 + 4096


class BufferPool:
    """Blocks of memory, returned as arrays.

    A block is in use while its array, or any view of the array, exists. A payload therefore keeps its message, and no
    call is needed to return a block.

    Args:
        make: allocates (nbytes,) uint8 of new memory.
        most: maximum number of blocks; if all are in use, `acquire` returns new memory that the pool does not keep.
    """

    def __init__(self, make: Callable[[int], Bytes], most: int) -> None:
        self._make = make
        self._most = most
        self._blocks: list[_Block] = []

    @property
    def nbytes(self) -> tuple[int, ...]:
        """Size of each block in bytes."""
        return tuple([len(block.memory) for block in self._blocks])

    def reserve(self, nbytes: int) -> None:
        """Allocate all blocks, with at least `nbytes` each; smaller blocks are released as soon as they are free."""
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
        """The address of `data` if it is in one of the blocks, else None."""
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
        # Through a memoryview, so that views of the array refer to the array and not to the memory behind it.
        array = np.frombuffer(self.memory.data, np.uint8)
        self._array = weakref.ref(array)
        return array


def host_pool(most: int = HOST_BLOCKS) -> BufferPool:
    """A BufferPool in pageable memory."""
    return BufferPool(lambda nbytes: np.empty(nbytes, np.uint8), most)
