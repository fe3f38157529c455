"""Reads the samples of a batch from a dataset; runs in the workers, or in the loader's own process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.loader.packing import Arrays, Description, Entry, is_file, plan, write
from robocache_ros.errors import RoboCacheError, printable

if TYPE_CHECKING:
    from robocache_ros.datasets.loader.device.raw_samples import RawLayout

MAX_REASON = 200  # characters kept of the reason why a sample was skipped
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
    ticks: int = 0  # 0: all; of a dataset with windows of its own, so many up to the one of the window `item`


class Loaded(NamedTuple):
    """The samples of a batch in memory, before they are copied into the block."""

    samples: list[Arrays]
    entries: tuple[Entry, ...]
    description: Description

    def write(self, block: NDArray[np.uint8]) -> None:
        """Copy the arrays into a block."""
        write(self.samples, self.entries, block)


class _Read(NamedTuple):
    """A sample that was read."""

    number: int
    arrays: Arrays
    texts: dict[str, str]
    ticks: int
    per_tick: frozenset[str]  # arrays that have a row per tick
    layout: RawLayout | None = None


@dataclass(frozen=True)
class BatchReader:
    """Reads batches of a dataset."""

    dataset: IndexedEpisodes
    skip: bool = False  # leave out samples that cannot be read, and report them
    raw: bool = False  # leave the streams of a dataset that has `unaligned` as they are: the device aligns them
    jpeg_files: bool = False  # leave jpeg files encoded, if `raw`
    chunks: IndexedEpisodes | None = None  # the dataset with the windows that a cache is filled with

    def load(self, wanted: Sequence[Sequence[int]], epoch: int = 0) -> Loaded:
        """Read samples, given by their fields. A dataset whose items depend on the epoch is told which one it is.

        Errors:
            RoboCacheError: a sample cannot be read and is not to be skipped, or samples do not go together; the message
                names it.
        """
        if depends_on_epoch(self.dataset):
            self.dataset.set_epoch(epoch)  # type: ignore[attr-defined]
        read = self._read_raw if self.raw and hasattr(self.dataset, "unaligned") else self._read
        found: list[_Read] = []
        skipped = []
        for sample in map(Sample._make, wanted):
            try:
                found.append(read(sample))
            except Exception as error:  # a damaged file raises whatever its library does
                reason = f"{printable(error, MAX_REASON) or type(error).__name__}"
                if not self.skip:
                    raise RoboCacheError(f"sample {sample.number}: {reason}") from error
                skipped.append((sample.number, reason))
        layouts = {each.layout for each in found}
        if len(layouts) > 1:  # no one operation aligns all of them
            return replace(self, raw=False).load(wanted, epoch)
        layout = layouts.pop() if layouts else None
        samples = [each.arrays for each in found]
        entries, nbytes = plan(samples, stepped_keys(layout))
        files = [entry.offset for entry in entries if is_file(entry.key)]
        texts = {key: tuple(each.texts[key] for each in found) for key in (found[0].texts if found else ())}
        description = Description(
            entries,
            nbytes,
            tuple(each.number for each in found),
            tuple(each.ticks for each in found),
            texts,
            frozenset().union(*(each.per_tick for each in found)),
            tuple(skipped),
            layout,
            min(files, default=nbytes),
        )
        return Loaded(samples, entries, description)

    def _dataset_of(self, sample: Sample) -> Any:
        return self.chunks if self.chunks is not None and sample.ticks else self.dataset

    def _read_raw(self, sample: Sample) -> _Read:
        """Read the streams of a sample."""
        from robocache_ros.datasets.loader.device.raw_samples import raw_sample  # needs torch, unlike other datasets

        unaligned = self._dataset_of(sample).unaligned(sample.item)
        _check_window(sample, len(unaligned.ticks_ns))
        for stream in unaligned.episode.streams.values():
            if not stream.is_image:
                _check_finite(stream.name, stream.values)
        layout, arrays, ticks, texts = raw_sample(unaligned, sample.start, sample.ticks, jpeg_files=self.jpeg_files)
        files = {key: arrays.pop(key) for key in list(arrays) if is_file(key)}
        arrays |= {"length": np.array(ticks), "index": np.array(sample.number), **files}  # the files are the last
        return _Read(sample.number, arrays, texts, ticks, frozenset(), layout)

    def _read(self, sample: Sample) -> _Read:
        """Read a sample as the dataset gives it."""
        item = self._dataset_of(sample)[sample.item]
        texts = {key: value for key, value in item.items() if isinstance(value, str)}
        arrays = {key: np.asarray(value) for key, value in item.items() if not isinstance(value, str)}
        total = int(arrays.pop("length")) if "length" in arrays else max(map(_rows, arrays.values()), default=0)
        _check_window(sample, total)
        others = NOT_PER_TICK | (CHUNKS if "action_is_pad" in arrays else frozenset())
        keys = frozenset(key for key, array in arrays.items() if _rows(array) == total and key not in others)
        for key, array in arrays.items():
            _check_finite(key, array)
        if sample.ticks:
            window = slice(sample.start, sample.start + sample.ticks)
            arrays = {key: array[window] if key in keys else array for key, array in arrays.items()}
        length = sample.ticks or total
        arrays |= {"length": np.array(length), "index": np.array(sample.number)}
        return _Read(sample.number, arrays, texts, length, keys)


def depends_on_epoch(dataset: IndexedEpisodes) -> bool:
    """Whether the items of a dataset are others in each epoch."""
    return hasattr(dataset, "set_epoch")


def stepped_keys(layout: RawLayout | None) -> frozenset[str]:
    """The arrays by whose lengths kernels are prepared: the samples of vectors."""
    vectors = (index for index, stream in enumerate(layout.streams if layout else ()) if stream.width)
    return frozenset(f"{index}/{part}" for index in vectors for part in ("stamp_ns", "values", "valid", "age"))


def _check_window(sample: Sample, total: int) -> None:
    if not total:
        raise RoboCacheError("it has no ticks; leave it out of the dataset")
    if sample.start + sample.ticks > total:
        raise RoboCacheError(f"it has {total} ticks where {sample.start + sample.ticks} were counted before")


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
