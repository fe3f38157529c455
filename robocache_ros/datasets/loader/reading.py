"""Reads the samples of a batch from a dataset; runs in the workers, or in the loader's own process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.loader.packing import Arrays, Description, Entry, plan, write
from robocache_ros.errors import RoboCacheError, printable

MAX_REASON = 160  # characters kept of the reason why a sample was skipped
NOT_PER_TICK = frozenset({"measured"})  # a flag per stream, also where there are as many streams as ticks
CHUNKS = frozenset(
    {"actions", "rewards", "action_is_pad"}
)  # of a window with a chunk of actions, which has its own ticks


class IndexedEpisodes(Protocol):
    """A map-style dataset: an item is a mapping of arrays or tensors and texts, one array of T ticks at least."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Mapping[str, Any]: ...


class Sample(NamedTuple):
    """A part of an item."""

    number: int  # of the sample in the dataset's order, for seeds and for errors
    item: int  # index in the dataset
    start: int = 0  # first tick
    ticks: int = 0  # 0: all


class Loaded(NamedTuple):
    """The samples of a batch in memory, before they are copied into the block."""

    samples: list[Arrays]
    entries: tuple[Entry, ...]
    description: Description

    def write(self, block: NDArray[np.uint8]) -> None:
        """Copy the arrays into a block."""
        write(self.samples, self.entries, block)


@dataclass(frozen=True)
class BatchReader:
    """Reads batches of a dataset."""

    dataset: IndexedEpisodes
    skip: bool = False  # leave out samples that cannot be read, and report them

    def load(self, wanted: Sequence[Sample], epoch: int = 0) -> Loaded:
        """Read samples. A dataset whose items depend on the epoch, such as a mixture, is told which one it is.

        Errors:
            RoboCacheError: a sample cannot be read and is not to be skipped, or samples do not go together; the message
                names it.
        """
        if depends_on_epoch(self.dataset):
            self.dataset.set_epoch(epoch)  # type: ignore[attr-defined]
        samples, numbers, lengths, texts, skipped = [], [], [], [], []
        per_tick: frozenset[str] = frozenset()
        for sample in wanted:
            try:
                arrays, words, length, keys = self._read(sample)
            except Exception as error:  # a damaged file raises whatever its library does
                reason = f"{printable(error, MAX_REASON) or type(error).__name__}"
                if not self.skip:
                    raise RoboCacheError(f"sample {sample.number}: {reason}") from error
                skipped.append((sample.number, reason))
                continue
            samples.append(arrays)
            numbers.append(sample.number)
            lengths.append(length)
            texts.append(words)
            per_tick |= keys
        entries, nbytes = plan(samples)
        by_key = {key: tuple(words[key] for words in texts) for key in (texts[0] if texts else ())}
        description = Description(entries, nbytes, tuple(numbers), tuple(lengths), by_key, per_tick, tuple(skipped))
        return Loaded(samples, entries, description)

    def _read(self, sample: Sample) -> tuple[Arrays, dict[str, str], int, frozenset[str]]:
        """Return the arrays, the texts, the number of ticks, and which arrays have a row per tick."""
        item = self.dataset[sample.item]
        texts = {key: value for key, value in item.items() if isinstance(value, str)}
        arrays = {key: np.asarray(value) for key, value in item.items() if not isinstance(value, str)}
        total = int(arrays.pop("length")) if "length" in arrays else max(map(_rows, arrays.values()), default=0)
        if not total:
            raise RoboCacheError("it has no ticks; leave it out of the dataset")
        others = NOT_PER_TICK | (CHUNKS if "action_is_pad" in arrays else frozenset())
        keys = frozenset(key for key, array in arrays.items() if _rows(array) == total and key not in others)
        for key, array in arrays.items():
            _check_finite(key, array)
        if sample.ticks:
            if sample.start + sample.ticks > total:
                raise RoboCacheError(f"it has {total} ticks where {sample.start + sample.ticks} were counted before")
            window = slice(sample.start, sample.start + sample.ticks)
            arrays = {key: array[window] if key in keys else array for key, array in arrays.items()}
        length = sample.ticks or total
        return {**arrays, "length": np.array(length), "index": np.array(sample.number)}, texts, length, keys


def depends_on_epoch(dataset: IndexedEpisodes) -> bool:
    """Whether the items of a dataset are others in each epoch."""
    return hasattr(dataset, "set_epoch")


def _rows(array: NDArray[Any]) -> int:
    return array.shape[0] if array.ndim else 0


def _check_finite(key: str, array: NDArray[Any]) -> None:
    """Refuse NaN and infinite numbers: they would make a training silently useless."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    place = np.argwhere(~np.isfinite(array))[0]
    column = f", column {place[-1]}" if array.ndim > 1 else ""
    first = f"row {place[0]}{column}" if array.ndim else "the value"
    raise RoboCacheError(f"{printable(key, 40)}: {first} is not finite; repair the data, or use on_error='skip'")
