"""From the host's memory into the GPU's: one pinned ring, copies on streams of their own, and a ticket for each."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.ops.cuda.memory import copy_async, new_event, new_stream, pinned

log = logging.getLogger(__name__)

ALIGNMENT = 256
SMALL, LARGE = 0, 1  # lanes: a row of joints does not queue behind a camera's frame
RETIRE_AT = 8  # copies in flight before those that are through are looked for


class Staging:
    """The room in a ring of bytes, given out and taken back in one order."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.head = 0  # bytes ever given out, the gaps at the ring's end counted in
        self._tail = 0  # bytes ever taken back

    def claim(self, size: int) -> int | None:
        """Offset of `size` bytes in one piece; None where there is no room before some are released."""
        start = self.head % self.nbytes
        size = -(-size // ALIGNMENT) * ALIGNMENT
        gap = self.nbytes - start if start + size > self.nbytes else 0
        if self.head + gap + size - self._tail > self.nbytes:
            return None
        self.head += gap + size
        return 0 if gap else start

    def release(self, head: int) -> None:
        """Take back all that had been given out when `head` was what it is here."""
        self._tail = head


class Uplink:
    """Copies payloads to the GPU; the host waits only where the ring is full, and counts it in `stalls`.

    Args:
        device: CUDA device.
        nbytes: of the pinned ring to begin with.
    """

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self.stalls = 0
        self._lanes: tuple[Any, Any] = (new_stream(device), new_stream(device))
        self._handles = tuple(int(lane.cuda_stream) for lane in self._lanes)
        self._flights: deque[tuple[int, Any, Any]] = deque()  # (staging head after it, event behind it, what it needs)
        self._retired = 0  # tickets of copies that are through, and no longer in `_flights`
        self._events: list[Any] = []
        self._use(nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of the pinned ring."""
        return self._staging.nbytes

    def _use(self, nbytes: int) -> None:
        self._pinned = pinned(-(-nbytes // ALIGNMENT) * ALIGNMENT)
        self._bytes: NDArray[np.uint8] = self._pinned.numpy()
        self._base = self._pinned.data_ptr()
        self._staging = Staging(len(self._bytes))

    def reserve(self, nbytes: int) -> None:
        """See to it that the ring has this many bytes; all copies are awaited where it must grow."""
        if nbytes > self.nbytes:
            while self._flights:
                self._await_oldest()
            self._use(nbytes)

    def send(self, data: NDArray[np.uint8], target: int, lane: int) -> int:
        """Copy (nbytes,) uint8 to an address on the GPU; returns its ticket. `data` may be reused at once.

        What it overwrites may still be read by kernels that `after` was told of.
        """
        size = data.nbytes
        if len(self._flights) >= RETIRE_AT:
            self.retire()
        offset = self._claim(size)
        self._bytes[offset : offset + size] = data
        return self._fly(target, self._base + offset, size, lane, None)

    def send_from(self, source: int, data: NDArray[np.uint8], target: int, lane: int) -> int:
        """The same of `data` at the address `source` in pinned memory: it is kept until the copy is through."""
        if len(self._flights) >= RETIRE_AT:
            self.retire()
        return self._fly(target, source, data.nbytes, lane, data)

    def wait(self, tickets: Sequence[int], stream: Any) -> None:
        """What is launched on a stream from now on comes after these copies; the host does not wait."""
        for ticket in tickets:
            if ticket >= self._retired:
                stream.wait_event(self._flights[ticket - self._retired][1])

    def after(self, event: Any) -> None:
        """Copies from now on come after an event: what they overwrite is read before it."""
        for lane in self._lanes:
            lane.wait_event(event)

    def retire(self) -> None:
        """Let go of what copies needed that are through."""
        while self._flights and self._flights[0][1].query():
            self._let_go()
        if not self._flights:
            self._staging = Staging(self._staging.nbytes)  # all of it is free, in one piece

    def _fly(self, target: int, source: int, nbytes: int, lane: int, needed: Any) -> int:
        copy_async(target, source, nbytes, self._handles[lane])
        event = self._events.pop() if self._events else new_event()
        event.record(self._lanes[lane])
        self._flights.append((self._staging.head, event, needed))
        return self._retired + len(self._flights) - 1

    def _claim(self, size: int) -> int:
        if size > self.nbytes:
            log.warning("the pinned ring grows from %d to %d bytes", self.nbytes, 2 * size)
            self.reserve(2 * size)
        offset = self._staging.claim(size)
        if offset is None:
            self.retire()
            offset = self._staging.claim(size)
        if offset is None:
            if not self.stalls:
                log.warning("samples come faster than the GPU takes them: the host waits for a copy")
            self.stalls += 1
        while offset is None:
            self._await_oldest()
            offset = self._staging.claim(size)
        return offset

    def _await_oldest(self) -> None:
        self._flights[0][1].synchronize()
        self.retire()

    def _let_go(self) -> None:
        head, event, _ = self._flights.popleft()
        self._staging.release(head)
        self._events.append(event)
        self._retired += 1
