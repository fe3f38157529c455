"""What caches have in common: small batches are gathered together, which takes a fraction of the time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.datasets.loader.batch import Batch
from robocache_ros.datasets.loader.samples import Samples

BYTES_TOGETHER = {"cpu": 2**20, "cuda": 2**28}  # of batches that are gathered together: they share memory
MAX_TOGETHER = 64
Numbers = NDArray[np.int64]
Skipped = tuple[tuple[int, str], ...]  # samples that cannot be read, and why


class Gathered(NamedTuple):
    """B samples of up to T ticks."""

    tensors: dict[str, Tensor]  # (B, ...), with `length` and `index`
    padding: Tensor  # (B, T) bool
    lengths: Numbers  # (B,)
    texts: dict[str, list[Any]]  # B each


class CachedBatches(ABC):
    """Batches of samples that are in memory.

    Args:
        per_tick: tensors whose second axis is that of the ticks.
        widths: see `Batch`.
        place: of the memory.
        device: of the batches.
    """

    def __init__(
        self, per_tick: frozenset[str], widths: Mapping[str, tuple[int, ...]], place: torch.device, device: torch.device
    ) -> None:
        self._per_tick, self._widths, self._place, self._device = per_tick, widths, place, device

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the tensors."""

    @abstractmethod
    def sample_bytes(self, samples: Samples) -> int | None:
        """Return the bytes of a sample; None if their lengths differ."""

    @abstractmethod
    def readable(self, numbers: Numbers, samples: Samples) -> tuple[Numbers, Skipped]:
        """Return the samples that could be read, and the others with the reason."""

    @abstractmethod
    def gather(self, numbers: Numbers, samples: Samples) -> Gathered:
        """Return samples by their numbers, at least one."""

    def batches(self, wanted: Sequence[Numbers], samples: Samples) -> Iterator[tuple[Batch | None, Skipped]]:
        """Yield each batch as the workers read it, None if it has no sample; and its samples that cannot be read.

        Args:
            wanted: (B,) the numbers of the samples of each batch.
            samples: of the dataset.
        """
        nbytes = self.sample_bytes(samples)
        batch_bytes = max(1, max(map(len, wanted), default=0) * (nbytes or 0))
        together = 1 if nbytes is None else max(1, min(MAX_TOGETHER, BYTES_TOGETHER[self._place.type] // batch_bytes))
        for start in range(0, len(wanted), together):
            group = [self.readable(numbers, samples) for numbers in wanted[start : start + together]]
            gathered = self._split([numbers for numbers, _ in group if len(numbers)], samples)
            for numbers, skipped in group:
                yield next(gathered) if len(numbers) else None, skipped

    def _split(self, group: Sequence[Numbers], samples: Samples) -> Iterator[Batch]:
        """Yield batches, none of them empty. If there are several, their samples are of one length."""
        if not group:
            return
        found = self.gather(np.concatenate(group), samples)
        sizes = [len(each) for each in group]
        masks = found.padding.split_with_sizes(sizes)
        parts = {key: tensor.split_with_sizes(sizes) for key, tensor in found.tensors.items()}
        first = 0
        for place, size in enumerate(sizes):
            last = first + size
            yield Batch(
                {key: part[place] for key, part in parts.items()},
                tuple(group[place].tolist()),
                tuple(found.lengths[first:last].tolist()),
                self._per_tick,
                {key: tuple(words[first:last]) for key, words in found.texts.items()},
                self._widths,
                masks[place],
            )
            first = last

    def _rows(self, tensor: Tensor, index: Tensor) -> Tensor:
        """Return rows of a tensor of the cache, on the device of the batches."""
        if tensor.device == self._device:
            return tensor.index_select(0, index)
        staging = torch.empty((len(index), *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=True)
        return torch.index_select(tensor, 0, index, out=staging).to(self._device, non_blocking=True)
