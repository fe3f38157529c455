"""An order for data that is read fastest in sequence, such as videos: runs in a random order, mixed in a buffer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.datasets.loader.batch import Batch, Skipped
from robocache_ros.datasets.loader.order import MIX, BatchOrder, Int64, Samples, permutation, philox
from robocache_ros.datasets.loader.packing import ABSENT_STAMP_NS, is_time
from robocache_ros.datasets.loader.prefetch import OnDevice
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


def mixed(wanted: Iterable[NDArray], runs: Iterator[OnDevice]) -> Iterator[tuple[Batch | None, Skipped]]:  # type: ignore[type-arg]
    """Yield batches of wanted samples, None if a batch has none; and the samples that cannot be read.

    A run is read when a sample of it is wanted, and its memory is free when none is wanted any more.

    Args:
        wanted: (B,) the numbers of the samples of each batch.
        runs: together they have the samples.
    """
    held: dict[int, _Row] = {}
    pool: SamplePool | None = None
    unreadable: dict[int, str] = {}
    for numbers in wanted:
        rows, skipped = [], []
        for number in numbers.tolist():
            while number not in held and number not in unreadable:
                run = next(runs)
                unreadable.update(run.description.skipped)
                if run.batch is not None:
                    pool = pool or SamplePool(run.batch)
                    held.update(_rows(run.batch, pool))
            if number in held:
                rows.append(held.pop(number))
            else:
                skipped.append((number, unreadable.pop(number)))
        yield _joined(rows, pool) if pool and rows else None, tuple(skipped)


class _Row(NamedTuple):
    batch: Batch  # the run, with the tensors that are not in the pool
    place: int  # in the run
    slot: int  # in the pool; -1: not in it


def _rows(batch: Batch, pool: SamplePool) -> Iterator[tuple[int, _Row]]:
    slots = pool.add(batch)
    if slots is None:
        slots = [-1] * len(batch.samples)
    else:
        batch = replace(batch, tensors={key: each for key, each in batch.tensors.items() if key not in pool.tensors})
    for place, (number, slot) in enumerate(zip(batch.samples, slots, strict=True)):
        yield number, _Row(batch, place, slot)


def _joined(rows: Sequence[_Row], pool: SamplePool) -> Batch:
    first = rows[0].batch
    lengths = tuple(row.batch.lengths[row.place] for row in rows)
    slots = [row.slot for row in rows if row.slot >= 0]
    index = torch.tensor(slots) if len(slots) == len(rows) else None
    tensors = {}
    for key in pool.keys:
        if index is not None and key in pool.tensors:
            tensors[key] = pool.tensors[key].index_select(0, index)
            continue
        parts = [
            row.batch.tensors[key][row.place] if key in row.batch.tensors else pool.tensors[key][row.slot]
            for row in rows
        ]
        if key in first.per_tick:
            parts = [part[:length] for part, length in zip(parts, lengths, strict=True)]
        tensors[key] = _stacked(parts, ABSENT_STAMP_NS if is_time(key) else 0)
    pool.free(slots)
    texts = {key: tuple(row.batch.texts[key][row.place] for row in rows) for key in first.texts}
    numbers = tuple(row.batch.samples[row.place] for row in rows)
    return Batch(tensors, numbers, lengths, first.per_tick, texts, first.widths)


def _stacked(parts: list[Tensor], padding: int) -> Tensor:
    if all(part.shape == parts[0].shape for part in parts):
        return torch.stack(parts)
    longest = max(len(part) for part in parts)
    found = parts[0].new_full((len(parts), longest, *parts[0].shape[1:]), padding)
    for row, part in zip(found, parts, strict=True):
        row[: len(part)] = part
    return found
