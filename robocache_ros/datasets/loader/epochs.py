"""What is read for the batches of one epoch after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from robocache_ros.datasets.loader.order import BatchOrder, Int64
from robocache_ros.datasets.loader.samples import Samples


class Request(NamedTuple):
    """Samples that are read together."""

    samples: Sequence[Sequence[int]]  # the fields of each `Sample`
    epoch: int = 0


class Epoch(NamedTuple):
    """An epoch, or the rest of it."""

    batches: list[Int64]  # (B,) the numbers of the samples of each
    reads: Sequence[Int64]  # (n,) those that are read together; the batches, or runs


class Epochs:
    """The epochs of an order.

    Args:
        order: of the samples.
        samples: of the dataset.
    """

    def __init__(self, order: BatchOrder, samples: Samples) -> None:
        self._order, self._samples = order, samples
        self.rest = lru_cache(maxsize=1)(partial(_rest, order))  # an epoch that was read ahead comes next

    def requests(self, epoch: int, first: int) -> Iterator[Request]:
        """Yield what is read from a batch of an epoch on. The sequence goes on with the next epoch, without an end."""
        while len(self._order):
            for numbers in self.rest(epoch, first).reads:
                yield Request(self._samples.of(numbers), epoch)
            epoch, first = epoch + 1, 0


def _rest(order: BatchOrder, epoch: int, first: int) -> Epoch:
    batches = order.batches(epoch)[first:]
    return Epoch(batches, order.reads(epoch, batches))
