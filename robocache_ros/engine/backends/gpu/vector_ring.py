"""The samples of one vector stream in GPU memory."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.engine.backends.gpu.allocation import allocate
from robocache_ros.engine.backends.gpu.upload_queue import SMALL, UploadQueue
from robocache_ros.engine.backends.interface import MemoryRow
from robocache_ros.spec import StreamSpec


class VectorRing:
    """Rows of float32 values on the GPU.

    Args:
        stream: a vector stream.
        slots: number of samples to keep.
        device: CUDA device.
        uploads: copies the samples to the GPU.
    """

    def __init__(self, stream: StreamSpec, slots: int, device: torch.device, uploads: UploadQueue) -> None:
        self.name = stream.name
        self._uploads = uploads
        self._bytes = 4 * stream.dim
        self.rows = allocate(self.name, "samples", slots, self._bytes, device).view(torch.float32)
        self._base = self.rows.data_ptr()
        self.tickets = [-1] * slots

    def put(self, slot: int, value: NDArray[np.float32]) -> None:
        """Send (D,) float32 values to their slot."""
        data = np.ascontiguousarray(value, np.float32).view(np.uint8)
        self.tickets[slot] = self._uploads.send(data, self._base + slot * self._bytes, SMALL)

    def memory(self) -> list[MemoryRow]:
        """The memory in use."""
        return [MemoryRow(self.name, "samples", "gpu", len(self.rows), self._bytes)]
