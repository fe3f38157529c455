"""The samples of a dataset, and their order in each epoch: a pure function of the arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.loader.reading import MAX_REASON
from robocache_ros.errors import RoboCacheError, printable

Int64 = NDArray[np.int64]
_MASK = 2**64 - 1
# What random numbers of a sample are for: a word of the generator's counter, so that their streams do not overlap.
ORDER, NOISE, DROPOUT, CROP, COLOUR, MIX, SHIFT = range(7)


def philox(seed: int, epoch: int, purpose: int, sample: int = 0) -> np.random.Philox:
    """The generator of one sample, in one epoch, for one purpose. All versions of NumPy give the same raw numbers."""
    key, counter = [seed & _MASK, epoch & _MASK], [0, sample & _MASK, purpose, 0]
    return np.random.Philox(key=np.array(key, np.uint64), counter=np.array(counter, np.uint64))


_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157  # of Philox4x64: Salmon et al. (2011)
_KEY_STEPS = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_ROUNDS = 10


def random_words(seed: int, epoch: int, purpose: int, samples: Sequence[int], count: int) -> NDArray[np.uint64]:
    """Return `philox(seed, epoch, purpose, sample).random_raw(count)` of each sample, (N, count).

    Computed for all samples at once, which for 128 of them takes a third of the time.
    """
    keys = [np.array([seed & _MASK], np.uint64), np.array([epoch & _MASK], np.uint64)]
    blocks = -(-count // 4)
    words = np.zeros((4, len(samples), blocks), np.uint64)
    words[0], words[2] = np.arange(1, blocks + 1), purpose
    words[1] = np.array([sample & _MASK for sample in samples], np.uint64)[:, None]
    first, second, third, fourth = words
    for _ in range(_ROUNDS):
        (high, low), (high2, low2) = (_product(*each) for each in zip((first, third), _MULTIPLIERS, strict=True))
        first, second, third, fourth = high2 ^ second ^ keys[0], low2, high ^ fourth ^ keys[1], low
        keys = [key + np.uint64(step) for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return np.stack([first, second, third, fourth], axis=2).reshape(len(samples), -1)[:, :count]


def _product(values: NDArray[np.uint64], factor: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The upper and lower 64 bits of values times a factor, from products of 32 bits."""
    half, low = np.uint64(32), np.uint64(2**32 - 1)
    factor_low, factor_high = np.uint64(factor % 2**32), np.uint64(factor >> 32)
    value_low, value_high = values & low, values >> half
    middle = factor_high * value_low + (factor_low * value_low >> half)
    carried = factor_low * value_high + (middle & low)
    return factor_high * value_high + (middle >> half) + (carried >> half), values * np.uint64(factor)


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


class Samples:
    """Numbers the samples of a dataset.

    Args:
        dataset: an item is an episode, or what the dataset itself makes of one.
        windows: (ticks, stride) of the windows that items are cut into, those that are complete; None: whole items.
            Items shorter than a window have none.
        skip: count items whose length cannot be read in `unreadable`, instead of raising.
    """

    def __init__(self, dataset: Any, windows: tuple[int, int] | None, *, skip: bool = False) -> None:
        self.windows, self._dataset = windows, dataset
        self.unreadable: dict[int, str] = {}
        if windows is None:
            if skip and hasattr(dataset, "leave_out_unreadable"):
                self.unreadable = dataset.leave_out_unreadable()
            self._ends = np.arange(1, len(dataset) + 1, dtype=np.int64)
            return
        ticks, stride = windows
        if ticks < 1 or stride < 1:
            raise RoboCacheError(f"windows: {windows}: the ticks and the stride are at least 1; give (ticks, stride)")
        lengths = self._lengths(dataset, skip)
        self._ends = np.cumsum(np.maximum(0, (lengths - ticks) // stride + 1))

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def of(self, numbers: NDArray[np.int64]) -> list[list[int]]:
        """Return the fields of samples by their numbers, (B,) int64. They are sent to workers: lists take less time."""
        items, starts = self.places(numbers)
        ticks = np.full_like(numbers, self.windows[0] if self.windows else 0)
        fields: list[list[int]] = np.stack([numbers, items, starts, ticks], axis=1).tolist()
        return fields

    def places(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the items of samples, and their first ticks in them, (B,) int64 each."""
        if self.windows is None:
            return numbers, np.zeros_like(numbers)
        items = np.searchsorted(self._ends, numbers, "right")
        before = np.where(items > 0, self._ends[items - 1], 0)
        return items, (numbers - before) * self.windows[1]

    def episode_ends(self) -> NDArray[np.int64]:
        """(N,) the number after the last sample of each episode that is cut into windows; that of all if none is."""
        if self.windows is None and getattr(self._dataset, "window", None) is not None:
            return np.asarray(self._dataset.window_ends(), np.int64)
        return self._ends if self.windows else self._ends[-1:]

    def _lengths(self, dataset: Any, skip: bool) -> NDArray[np.int64]:
        if hasattr(dataset, "lengths"):
            return np.asarray(dataset.lengths, np.int64)
        if getattr(dataset, "window", None) is not None:
            raise RoboCacheError("windows: the dataset makes windows of its own; give one of the two")
        if not (hasattr(dataset, "ticks") and hasattr(dataset, "source")):
            raise RoboCacheError("windows: the dataset does not know its lengths; give it an attribute `lengths`")
        lengths = np.zeros(len(dataset), np.int64)
        for item in range(len(dataset)):
            try:
                lengths[item] = dataset.ticks(dataset.source.span_ns(item), f"episode {item}")[1]
            except (RoboCacheError, OSError) as error:
                if not skip:
                    raise
                self.unreadable[item] = printable(error, MAX_REASON)
        return lengths


def stream_widths(dataset: Any) -> dict[str, tuple[int, ...]]:
    """The columns that each stream has in `fused`, `proprio`, `actions` and `rewards`, in the order of `valid`.

    They are empty for a dataset that does not know its streams, and for one without a readable episode.
    """
    if getattr(dataset, "layout", None) is not None:  # of a mixture, whose datasets all have it
        dataset = dataset.datasets[0]
    if not hasattr(dataset, "streams_of"):
        return {}
    for index in range(len(dataset)):
        try:
            streams = dataset.streams_of(index if getattr(dataset, "window", None) is None else dataset.place(index)[0])
        except (RoboCacheError, OSError):
            continue
        columns = [
            ("" if stream.is_image else stream.role, 0 if stream.is_image else stream.values.shape[1])
            for stream in streams.streams.values()
        ]
        roles = {
            "fused": ("observation", "action"),
            "proprio": ("observation",),
            "actions": ("action",),
            "rewards": ("reward",),
        }
        return {key: tuple(width if role in wanted else 0 for role, width in columns) for key, wanted in roles.items()}
    return {}


class Request(NamedTuple):
    """Samples that are read together."""

    samples: Sequence[Sequence[int]]  # the fields of each `Sample`
    epoch: int = 0


class Epochs:
    """The epochs of an order.

    Args:
        order: of the samples.
        samples: of the dataset.
    """

    def __init__(self, order: BatchOrder, samples: Samples) -> None:
        self._order, self._samples = order, samples
        self.keep(0)

    def keep(self, stop: int) -> None:
        """Leave the samples up to a number, without it, out of what is read: they are in memory."""
        self.rest = lru_cache(maxsize=1)(partial(_rest, self._order, stop))  # an epoch that was read ahead comes next

    def requests(self, epoch: int, first: int) -> Iterator[Request]:
        """Yield what is read from a batch of an epoch on. The sequence goes on with the next epoch, without an end."""
        while len(self._order):
            for numbers in self.rest(epoch, first).reads:
                yield Request(self._samples.of(numbers), epoch)
            epoch, first = epoch + 1, 0


class Rest(NamedTuple):
    """The rest of an epoch, as numbers of samples."""

    batches: list[Int64]
    left: list[Int64]  # of each batch, those that are not in memory
    reads: Sequence[Int64]  # the same, as they are read together


def _rest(order: BatchOrder, kept: int, epoch: int, first: int) -> Rest:
    batches = order.batches(epoch)[first:]
    left = [numbers[numbers >= kept] for numbers in batches] if kept else batches
    reads = order.reads(epoch, left)
    return Rest(batches, left, [numbers for numbers in reads if len(numbers)] if kept else reads)
