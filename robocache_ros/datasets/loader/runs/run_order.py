"""An order for data that is read fastest in sequence, such as videos: runs in a random order, mixed in a buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robocache_ros.datasets.loader.order import MIX, BatchOrder, Int64, permutation, philox
from robocache_ros.datasets.loader.samples import Samples
from robocache_ros.errors import RoboCacheError

MAX_BUFFER = 2**20
MAX_SAMPLES = 2**31


@dataclass(frozen=True)
class ShuffledRuns:
    """Runs of consecutive samples in a random order, each sample mixed with others of a buffer.

    Attributes:
        length: samples of a run at most; a run does not leave its episode.
        buffer: a sample is moved back by up to so many places. So many samples, and those of the runs that are being
            read, are in memory.
    """

    length: int = 32
    buffer: int = 512

    def __post_init__(self) -> None:
        if not (1 <= self.length <= self.buffer <= MAX_BUFFER):
            raise RoboCacheError(f"shuffle: {self}: give 1 <= length <= buffer <= {MAX_BUFFER:,}")


@dataclass(frozen=True)
class RunOrder(BatchOrder):
    """A `BatchOrder` of shuffled runs. Each rank has other runs."""

    runs: ShuffledRuns = ShuffledRuns()
    ends: Any = ()  # (N,) the number after the last sample of each episode

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length > MAX_SAMPLES:
            raise RoboCacheError(
                f"shuffle: {self.length:,} samples; at most {MAX_SAMPLES:,} are mixed; use shuffle=True"
            )

    @property
    def mixing(self) -> list[int] | None:
        """Length of the runs, and size of the buffer."""
        return [self.runs.length, self.runs.buffer]

    def share(self, epoch: int) -> Int64:
        """The samples of this rank in their order, (n,) int64."""
        numbers, _ = self._in_runs(epoch)
        moved = philox(self.seed, epoch, MIX, self.rank).random_raw(len(numbers)) >> np.uint64(32)
        places = np.arange(len(numbers), dtype=np.uint64) << np.uint64(32)
        return numbers[np.argsort(places + moved * np.uint64(self.runs.buffer), kind="stable")]

    def reads(self, epoch: int, batches: Sequence[Int64]) -> Sequence[Int64]:
        """The runs of the samples of some batches, (n,) each, in the order in which they are needed."""
        if not batches:
            return []
        numbers, runs = self._in_runs(epoch)
        there = np.isin(numbers, np.concatenate(batches))
        numbers, runs = numbers[there], runs[there]
        return np.split(numbers, np.flatnonzero(np.diff(runs)) + 1)

    def _in_runs(self, epoch: int) -> tuple[Int64, Int64]:
        """The samples of this rank in the order in which they are read, and the run of each, (n,) int64."""
        ends = np.unique(np.append(np.asarray(self.ends, np.int64), self.length))
        begins = np.concatenate([[0], ends[:-1]])
        counts = -(-(ends - begins) // self.runs.length)  # runs of each episode
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = np.repeat(begins, counts) + within * self.runs.length
        lengths = np.minimum(starts + self.runs.length, np.repeat(ends, counts)) - starts
        order = permutation(len(starts), self.seed, epoch)
        starts, lengths = starts[order], lengths[order]
        runs = np.repeat(np.arange(len(starts)), lengths)
        numbers = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        # The ranks have adjacent parts, as large as those of a `BatchOrder`.
        sizes = [-(-(self.used - rank) // self.world_size) for rank in range(self.rank + 1)]
        mine = slice(sum(sizes[:-1]), sum(sizes))
        return numbers[mine], runs[mine]


def make_order(
    shuffle: bool | ShuffledRuns,
    samples: Samples,
    batch_size: int,
    seed: int,
    drop_last: bool,
    rank: int,
    world_size: int,
) -> BatchOrder:
    """Return the order of a loader; the arguments are those of `TimelineLoader`."""
    plain = (len(samples), batch_size, bool(shuffle), seed, drop_last, rank, world_size)
    if isinstance(shuffle, ShuffledRuns):
        return RunOrder(*plain, shuffle, samples.episode_ends())
    return BatchOrder(*plain)
