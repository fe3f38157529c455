"""Blocks of host memory that workers write and the loader reads; pinned where there is a GPU."""

from __future__ import annotations

import mmap
import os
import warnings

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ipc.shared_memory import create

GRANULARITY = 2**20  # bytes: slots of batches of about one size are not replaced again and again


class Slot:
    """A block of shared memory for one batch. It has no name: the kernel frees it with its last process."""

    def __init__(self, number: int, *, pinned: bool, limit: int) -> None:
        self.number = number
        self.fd = -1
        self.nbytes = 0
        self.memory = torch.empty(0, dtype=torch.uint8)  # (nbytes,)
        self.generation = 0  # how often the memory was replaced; a worker maps each once
        self._pinned, self._limit = pinned, limit

    def grow(self, nbytes: int) -> None:
        """Replace the memory by at least `nbytes`.

        Errors:
            RoboCacheError: this is more than the limit, or more than there is.
        """
        if nbytes > self._limit:
            raise RoboCacheError(
                f"batch: {nbytes:,} bytes; at most {self._limit:,}: use a smaller batch_size, or raise max_batch_bytes"
            )
        self.close()
        size = min(max(-(-nbytes * 5 // 4 // GRANULARITY) * GRANULARITY, GRANULARITY), max(self._limit, nbytes))
        self.fd = create("robocache_batch", size)
        self.nbytes = size
        self.generation += 1
        try:
            self.memory = torch.frombuffer(mmap.mmap(self.fd, size), dtype=torch.uint8)
        except OSError as error:  # of the file descriptors, of which the mapping takes one more
            os.close(self.fd)
            self.fd, self.nbytes = -1, 0
            raise RoboCacheError(
                f"batch: {size:,} bytes cannot be mapped ({error.strerror}); raise `ulimit -n`, or use fewer workers"
            ) from None
        if self._pinned:
            _pin(self.memory)

    def close(self) -> None:
        """Give the memory back."""
        if self.fd < 0:
            return
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self.memory.data_ptr())  # type: ignore[no-untyped-call]
        os.close(self.fd)
        self.fd, self.nbytes, self.memory = -1, 0, torch.empty(0, dtype=torch.uint8)


def _pin(memory: Tensor) -> None:
    """Lock the memory's pages, so that copies to the GPU are asynchronous. Without, they are only slower."""
    failed = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0))  # type: ignore[no-untyped-call]
    if failed:
        warnings.warn(f"batches are not pinned (CUDA error {failed}); raise `ulimit -l`", RuntimeWarning, stacklevel=2)
