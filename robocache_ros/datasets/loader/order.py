"""The order of the samples of an epoch: a pure function of its arguments, whatever the number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError

Int64 = NDArray[np.int64]
_MASK = 2**64 - 1
# What random numbers of a sample are for: a word of the generator's counter, so that their streams do not overlap.
ORDER, NOISE, DROPOUT, CROP, COLOUR, MIX = range(6)


def philox(seed: int, epoch: int, purpose: int, sample: int = 0) -> np.random.Philox:
    """The generator of one sample, in one epoch, for one purpose. All versions of NumPy give the same raw numbers."""
    return np.random.Philox(key=[seed & _MASK, epoch & _MASK], counter=[0, sample & _MASK, purpose, 0])


def permutation(length: int, seed: int, epoch: int) -> Int64:
    """The numbers 0 to length - 1 in the random order of an epoch, (length,) int64."""
    keys = philox(seed, epoch, ORDER).random_raw(length)
    return np.argsort(keys, kind="stable").astype(np.int64)


@dataclass(frozen=True)
class BatchOrder:
    """Which samples each batch of one rank has.

    The ranks take turns in the order of the epoch: their shares are disjoint and together complete. All ranks have the
    same number of batches, so that none waits for another at the end: where a rank would have one less, its last full
    batch hands one sample on.
    """

    length: int  # samples of the dataset
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False  # leave out the samples of the last step if the batches of the ranks are not all full
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise RoboCacheError(f"batch_size: {self.batch_size} is less than 1; give the samples of a batch")
        if not 0 <= self.rank < self.world_size:
            raise RoboCacheError(f"rank: {self.rank} is not in 0..{self.world_size - 1}; give the rank of this process")
        if self.length and not self.drop_last and self.used // self.world_size < len(self):
            raise RoboCacheError(
                f"batch_size: {self.length} samples do not give {self.world_size} ranks {len(self)} batches each; "
                "use drop_last=True"
            )

    @property
    def used(self) -> int:
        """How many samples of an epoch all ranks have together."""
        step = self.batch_size * self.world_size
        return self.length // step * step if self.drop_last else self.length

    @property
    def mixing(self) -> list[int] | None:
        """How runs of samples are mixed, if they are: what a state must agree on."""
        return None

    def __len__(self) -> int:
        return -(-self.used // (self.batch_size * self.world_size))

    def share(self, epoch: int) -> Int64:
        """The samples of this rank in their order, (n,) int64."""
        order = permutation(self.length, self.seed, epoch) if self.shuffle else np.arange(self.length, dtype=np.int64)
        return order[: self.used][self.rank :: self.world_size]

    def batches(self, epoch: int) -> list[Int64]:
        """The samples of each batch of this rank in an epoch, as arrays of at most `batch_size` int64."""
        mine = self.share(epoch)
        edges = np.minimum(np.arange(len(self) + 1) * self.batch_size, len(mine))
        if len(self) and edges[-2] == len(mine):
            edges[-2] -= 1
        return [mine[a:b] for a, b in pairwise(edges)]

    def reads(self, epoch: int, batches: Sequence[Int64]) -> Sequence[Int64]:
        """The samples that are read together for some batches of an epoch, (n,) each, as they are needed: a batch."""
        return batches
