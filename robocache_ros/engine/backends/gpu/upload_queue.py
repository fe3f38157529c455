"""Copies host memory to the GPU through one pinned ring, on separate CUDA streams, with a ticket for each copy."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.ops.cuda.gpu_memory import copy_async, new_event, new_stream, pinned

log = logging.getLogger(__name__)

ALIGNMENT = 256
SMALL, LARGE = 0, 1  # CUDA streams: a row of joints does not wait behind a camera image
RETIRE_AT = 8  # number of in-flight copies before the queue checks for completed ones


class Staging:
    """Allocates parts of a ring of bytes; they are released in the order of their allocation."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.head = 0  # bytes allocated so far, including the gaps at the end of the ring
        self._tail = 0  # bytes released so far

    def claim(self, size: int) -> int | None:
        """Offset of `size` contiguous bytes; None if not enough are free."""
        start = self.head % self.nbytes
        size = -(-size // ALIGNMENT) * ALIGNMENT
        gap = self.nbytes - start if start + size > self.nbytes else 0
        if self.head + gap + size - self._tail > self.nbytes:
            return None
        self.head += gap + size
        return 0 if gap else start

    def release(self, head: int) -> None:
        """Release all parts that were allocated when `head` had this value."""
        self._tail = head


class UploadQueue:
    """Copies payloads to the GPU; the host waits only if the ring is full, which `stalls` counts.

    Args:
        device: CUDA device.
        nbytes: initial size of the pinned ring.
    """

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self.stalls = 0
        self.streams: tuple[Any, Any] = (new_stream(device), new_stream(device))
        self._handles = tuple(int(stream.cuda_stream) for stream in self.streams)
        # In-flight copies: the head of the ring after each copy, the event after it, and the memory that it reads.
        self._in_flight: deque[tuple[int, Any, Any]] = deque()
        self._retired = 0  # number of copies that are complete and removed from `_in_flight`
        self._events: list[Any] = []
        self._use(nbytes)

    @property
    def nbytes(self) -> int:
        """Size of the pinned ring in bytes."""
        return self._staging.nbytes

    def _use(self, nbytes: int) -> None:
        self._pinned = pinned(-(-nbytes // ALIGNMENT) * ALIGNMENT)
        self._bytes: NDArray[np.uint8] = self._pinned.numpy()
        self._base = self._pinned.data_ptr()
        self._staging = Staging(len(self._bytes))

    def reserve(self, nbytes: int) -> None:
        """Make the ring at least this large; if it must grow, this waits for all in-flight copies."""
        if nbytes > self.nbytes:
            while self._in_flight:
                self._await_oldest()
            self._use(nbytes)

    def send(self, data: NDArray[np.uint8], target: int, lane: int) -> int:
        """Copy (nbytes,) uint8 to an address on the GPU, on the SMALL or LARGE stream; returns a ticket for the copy.

        The caller may reuse `data` immediately.

        Kernels that still read the target must come before an event that was passed to `after`.
        """
        size = data.nbytes
        if len(self._in_flight) >= RETIRE_AT:
            self.retire()
        offset = self._claim(size)
        self._bytes[offset : offset + size] = data
        return self._copy(target, self._base + offset, size, lane, None)

    def send_from(self, source: int, data: NDArray[np.uint8], target: int, lane: int) -> int:
        """Like `send`, for `data` at address `source` in pinned memory; it is kept until the copy is complete."""
        if len(self._in_flight) >= RETIRE_AT:
            self.retire()
        return self._copy(target, source, data.nbytes, lane, data)

    def wait(self, tickets: Sequence[int], stream: Any) -> None:
        """Make a CUDA stream wait for these copies; the host does not wait."""
        for ticket in tickets:
            if ticket >= self._retired:
                stream.wait_event(self._in_flight[ticket - self._retired][1])

    def after(self, event: Any) -> None:
        """Make later copies wait for an event that comes after the kernels that read the memory to overwrite."""
        for stream in self.streams:
            stream.wait_event(event)

    def retire(self) -> None:
        """Release the memory of completed copies."""
        while self._in_flight and self._in_flight[0][1].query():
            self._retire_oldest()
        if not self._in_flight:
            self._staging = Staging(self._staging.nbytes)  # empty, so that all of it is contiguous again

    def _copy(self, target: int, source: int, nbytes: int, lane: int, memory: Any) -> int:
        copy_async(target, source, nbytes, self._handles[lane])
        event = self._events.pop() if self._events else new_event()
        event.record(self.streams[lane])
        self._in_flight.append((self._staging.head, event, memory))
        return self._retired + len(self._in_flight) - 1

    def _claim(self, size: int) -> int:
        if size > self.nbytes:
            log.warning("the pinned ring of the uploads grows from %d to %d bytes", self.nbytes, 2 * size)
            self.reserve(2 * size)
        offset = self._staging.claim(size)
        if offset is None:
            self.retire()
            offset = self._staging.claim(size)
        if offset is None:
            if not self.stalls:
                log.warning("samples arrive faster than they are copied to the GPU: the host waits")
            self.stalls += 1
        while offset is None:
            self._await_oldest()
            offset = self._staging.claim(size)
        return offset

    def _await_oldest(self) -> None:
        self._in_flight[0][1].synchronize()
        self.retire()

    def _retire_oldest(self) -> None:
        head, event, _ = self._in_flight.popleft()
        self._staging.release(head)
        self._events.append(event)
        self._retired += 1
