"""Host memory that is shared by file descriptor alone: it has no name, and goes with its last user."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError

# Readers can neither shrink the memory under the writer's feet nor, where they have no business to, write into it.
SEAL_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
SEAL_FUTURE_WRITE = 0x10  # F_SEAL_FUTURE_WRITE, Linux 5.1; the fcntl module has no name for it


class IpcUnavailableError(RoboCacheError):
    """The fast path cannot be had here; the message says why. Frames still come as messages."""


def create(name: str, nbytes: int) -> int:
    """A file descriptor of `nbytes` zeroed bytes of memory, all of them there; RoboCacheError where memory is short."""
    # The kernel would go on looking for room at any price: it ends processes before it refuses.
    available = _available_bytes()
    if nbytes > available:
        raise _too_little(name, nbytes, f"{available / 2**20:.1f} MiB are available")
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.close(fd)
        raise _too_little(name, nbytes, str(error.strerror)) from None
    return fd


def _available_bytes() -> int:
    with open("/proc/meminfo", "rb") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"MemAvailable:"))


def _too_little(name: str, nbytes: int, why: str) -> RoboCacheError:
    return RoboCacheError(f"{name}: {nbytes / 2**20:.1f} MiB of shared memory cannot be had ({why}); use fewer slots")


def seal(fd: int, seals: int) -> None:
    """Forbid changes to the memory; a kernel that knows no such seal leaves it to the uid check."""
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except OSError:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEAL_SIZE)


def text_fd(name: str, text: str) -> int:
    """A file descriptor to read `text` from."""
    data = text.encode()
    fd = create(name, max(len(data), 1))
    os.pwrite(fd, data, 0)
    return fd


def map_fd(fd: int, nbytes: int, *, writable: bool) -> mmap.mmap:
    """Map the memory behind a descriptor; IpcUnavailableError where it is smaller than described."""
    there = os.fstat(fd).st_size
    if there < nbytes:
        raise IpcUnavailableError(f"shared memory: {there} bytes where the description says {nbytes}")
    return mmap.mmap(fd, nbytes, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))


class Ring(Protocol):
    """The slots' memory as one side sees it, whatever the device."""

    tensor: Tensor  # (bytes,) uint8

    def block(self, start: int, nbytes: int) -> tuple[object, Tensor]:
        """Reader: (nbytes,) uint8 of the ring, and the object that lives as long as some tensor views them."""

    def copy(self, target: Tensor, value: Tensor) -> None:
        """Writer: put a value into a view of the ring, in the order of the current stream."""

    def record(self, slot: int) -> None:
        """Writer: what has been put into a slot so far is what its readers wait for."""

    def wait(self, slot: int) -> None:
        """Reader: what is launched from now on runs after the slot was written; the host does not wait."""

    def fence(self) -> Callable[[], bool] | None:
        """Reader: tells when all that was launched so far is through; None where it is already."""

    def describe(self) -> dict[str, Any]:
        """What the other side needs to map it."""

    def close(self) -> None:
        """Give the memory back."""


class HostRing:
    """A ring in the memory behind a descriptor, which stays the caller's.

    Every store is done when the call that made it returns, so nothing is to be ordered.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self._map = map_fd(fd, nbytes, writable=True)
        self.tensor = torch.from_numpy(np.frombuffer(self._map, np.uint8))

    def block(self, start: int, nbytes: int) -> tuple[object, Tensor]:
        """(nbytes,) uint8 of the ring, and the array that its tensors keep."""
        owner = np.frombuffer(self._map, np.uint8, nbytes, start)
        return owner, torch.from_numpy(owner)

    def copy(self, target: Tensor, value: Tensor) -> None:
        """Put a value into a view of the ring."""
        target.copy_(value)

    def record(self, slot: int) -> None:
        """Nothing to order."""

    def wait(self, slot: int) -> None:
        """Nothing to order."""

    def fence(self) -> Callable[[], bool] | None:
        """Done already."""
        return None

    def describe(self) -> dict[str, Any]:
        """The descriptor travels beside it."""
        return {}

    def close(self) -> None:
        """The mapping goes with the last tensor that views it."""
