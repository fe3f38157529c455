"""The memory of a ring's slots, on the host or on a GPU, for the writer and for the readers."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from robocache_ros.ipc import shared_memory
from robocache_ros.ipc.shared_memory import IpcUnavailableError
from robocache_ros.ipc.slot_layout import RingLayout


class Ring(Protocol):
    """The slots' memory for one of the sides, on any device."""

    tensor: Tensor  # (bytes,) uint8

    def block(self, start: int, nbytes: int) -> tuple[object, Tensor]:
        """Reader: (nbytes,) uint8, and an object that exists until the tensors that view them are deleted."""

    def copy(self, target: Tensor, value: Tensor) -> None:
        """Writer: copy a value into a view of the ring, in the order of the current stream."""

    def record(self, slot: int) -> None:
        """Writer: record that the slot is complete after the work launched so far; readers wait for this."""

    def wait(self, slot: int) -> None:
        """Reader: make work that is launched later run after the slot was written; the host does not wait."""

    def fence(self) -> Callable[[], bool] | None:
        """Reader: a function that returns whether all work launched so far is complete; None if it is already."""

    def describe(self) -> dict[str, Any]:
        """The values with which the other side maps it."""

    def close(self) -> None:
        """Free the memory."""


class HostRing:
    """A ring in the memory behind a descriptor, which the caller still owns.

    Every store is complete when its call returns, so no ordering is needed.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self._map: mmap.mmap = shared_memory.map_fd(fd, nbytes, writable=True)
        self.tensor = torch.from_numpy(np.frombuffer(self._map, np.uint8))

    def block(self, start: int, nbytes: int) -> tuple[object, Tensor]:
        """(nbytes,) uint8 of the ring, and the array that the tensors keep alive."""
        owner = np.frombuffer(self._map, np.uint8, nbytes, start)
        return owner, torch.from_numpy(owner)

    def copy(self, target: Tensor, value: Tensor) -> None:
        """Copy a value into a view of the ring."""
        target.copy_(value)

    def record(self, slot: int) -> None:
        """Nothing to order."""

    def wait(self, slot: int) -> None:
        """Nothing to order."""

    def fence(self) -> Callable[[], bool] | None:
        """None: all work is complete."""
        return None

    def describe(self) -> dict[str, Any]:
        """An empty description: the descriptor is sent separately."""
        return {}

    def close(self) -> None:
        """The memory is unmapped with the last tensor that views it."""


def make_ring(layout: RingLayout, device: torch.device) -> tuple[Ring, tuple[int, ...]]:
    """Writer: the slots' memory, and its descriptor if it has one."""
    if device.type == "cpu":
        fd = shared_memory.create("robocache-ring", layout.ring_bytes)
        shared_memory.seal(fd)
        return HostRing(fd, layout.ring_bytes), (fd,)
    from robocache_ros.ops.cuda.shared_ring import SharedRing

    index = torch.cuda.current_device() if device.index is None else device.index
    return SharedRing(layout.ring_bytes, layout.slots, index), ()


def map_ring(layout: RingLayout, place: bytes, fds: Sequence[int]) -> Ring:
    """Reader: the memory that a writer created, from its description or its descriptor."""
    if layout.device == "cpu":
        if not fds:
            raise IpcUnavailableError("ring: its file descriptor is missing; use one version on both sides")
        return HostRing(fds[0], layout.ring_bytes)
    from robocache_ros.ops.cuda.shared_ring import MappedRing

    return MappedRing(json.loads(place), layout.ring_bytes)
