"""The small tensors of samples that wait for their batch, in rows of one tensor for each key: a batch is a gather."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from robocache_ros.datasets.loader.batch import Batch

ROW_BYTES = 1 << 16  # of larger tensors, such as images, a copy would take longer than a gather saves


class SamplePool:
    """Samples in host memory, of the shapes of a first batch. It grows to the samples that wait at one time.

    Attributes:
        keys: of all tensors of a batch, in their order.
        tensors: (N, ...) by key, those whose rows are small.
    """

    def __init__(self, batch: Batch) -> None:
        self.keys = tuple(batch.tensors)
        self.tensors = {
            key: tensor.new_empty((0, *tensor.shape[1:]))
            for key, tensor in batch.tensors.items()
            if not tensor.is_cuda and tensor[:1].numel() * tensor.element_size() <= ROW_BYTES
        }
        self._length = batch.lengths[0]
        self._free: list[int] = []
        self._size = 0

    def add(self, batch: Batch) -> list[int] | None:
        """Copy the small tensors of a batch, and return the slots of its samples; None if it has other shapes."""
        if any(length != self._length for length in batch.lengths) or not self._fits(batch.tensors):
            return None
        count = len(batch.samples)
        if len(self._free) < count:
            self._grow(max(count, self._size))
        slots, self._free = self._free[-count:], self._free[:-count]
        index = torch.tensor(slots)
        for key, tensor in self.tensors.items():
            tensor.index_copy_(0, index, batch.tensors[key])
        return slots

    def free(self, slots: Sequence[int]) -> None:
        """Reuse slots."""
        self._free.extend(slots)

    def _fits(self, tensors: dict[str, Tensor]) -> bool:
        return tuple(tensors) == self.keys and all(
            tensors[key].shape[1:] == tensor.shape[1:] and tensors[key].dtype == tensor.dtype
            for key, tensor in self.tensors.items()
        )

    def _grow(self, count: int) -> None:
        self.tensors = {
            key: torch.cat([tensor, tensor.new_empty((count, *tensor.shape[1:]))])
            for key, tensor in self.tensors.items()
        }
        self._free.extend(range(self._size, self._size + count))
        self._size += count
