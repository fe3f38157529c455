"""Reads the samples of a batch from a dataset; runs in the workers, or in the loader's own process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.loader.packing import (
    Arrays,
    Description,
    Entry,
    RawLayout,
    is_file,
    key_of,
    place_arrays,
    plan,
    view,
    write,
)
from robocache_ros.datasets.undecoded_images import UndecodedImages
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.read import all_finite


class WindowRun(NamedTuple):
    """B windows of an episode."""

    arrays: dict[str, NDArray[Any]]  # (B, ...)
    texts: dict[str, str]  # of the episode
    ticks: int  # of each


def read_windows(dataset: Any, items: Sequence[int]) -> WindowRun | None:
    """Read windows at once.

    Args:
        dataset: a `TimelineDataset` with windows.
        items: their indices.

    Returns:
        None if they are of several episodes, or have images of files, which are decoded into the batch one by one.

    Errors:
        DatasetError: a file, a record or an image is missing or damaged.
    """
    places = [dataset.place(item) for item in items]
    if len({episode for episode, _ in places}) > 1:
        return None
    episode, count = dataset.aligned_episode(places[0][0])
    if episode.has_files:
        return None
    ticks = np.array([tick for _, tick in places], np.int64)
    rows, flags = dataset.window.rows(ticks[:, None], count)
    arrays, texts = episode.windows(*rows, dataset.window.n_images)
    return WindowRun({**arrays, **flags}, texts, dataset.window.n_obs)


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


class SampleRead(NamedTuple):
    """A sample that was read."""

    number: int
    arrays: Arrays
    texts: dict[str, str]
    ticks: int
    per_tick: frozenset[str]  # arrays that have a row per tick
    layout: RawLayout | None = None


class Loaded(NamedTuple):
    """The samples of a batch in memory, before they are written into the block."""

    samples: list[SampleRead]
    entries: tuple[Entry, ...]
    description: Description
    together: Arrays | None = None  # (B, ...) of all samples, instead of `samples`


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
        if (together := self._read_together([Sample._make(fields) for fields in wanted])) is not None:
            return together
        read = self._read_raw if self.raw and hasattr(self.dataset, "unaligned") else self._read
        found: list[SampleRead] = []
        skipped = []
        for sample in map(Sample._make, wanted):
            try:
                found.append(read(sample))
            except Exception as error:  # a damaged file raises whatever its library does
                if not self.skip:
                    raise RoboCacheError(f"sample {sample.number}: {_reason(error)}") from error
                skipped.append((sample.number, _reason(error)))
        layouts = {each.layout for each in found}
        if len(layouts) > 1:  # no one operation aligns all of them
            return replace(self, raw=False).load(wanted, epoch)
        return _planned(found, skipped)

    def _read_together(self, wanted: Sequence[Sample]) -> Loaded | None:
        """Read windows of one episode; None if they are others, or if one cannot be read: reading it alone names it."""
        if self.raw or len(wanted) < 2 or wanted[0].ticks or not _defines(self.dataset, "aligned_episode"):
            return None
        try:
            run = read_windows(self.dataset, [sample.item for sample in wanted])
        except Exception:
            return None
        if run is None or not all(array.dtype.kind != "f" or all_finite(array) for array in run.arrays.values()):
            return None
        numbers = tuple(sample.number for sample in wanted)
        lengths = (run.ticks,) * len(wanted)
        arrays: Arrays = {**run.arrays, "length": np.array(lengths), "index": np.array(numbers)}
        entries, nbytes = place_arrays(arrays)
        texts = {key: (text,) * len(wanted) for key, text in run.texts.items()}
        others = NOT_PER_TICK | CHUNKS
        keys = frozenset(k for k, each in run.arrays.items() if each.shape[1:2] == (run.ticks,) and k not in others)
        return Loaded([], entries, Description(entries, nbytes, numbers, lengths, texts, keys, copied=nbytes), arrays)

    def _dataset_of(self, sample: Sample) -> Any:
        return self.chunks if self.chunks is not None and sample.ticks else self.dataset

    def write(self, loaded: Loaded, block: NDArray[np.uint8]) -> Description:
        """Write a batch into a block, and return what it contains: without the samples whose images are damaged.

        Errors:
            RoboCacheError: an image is damaged, and samples are not to be skipped; the message names the sample.
        """
        if loaded.together is not None:
            for entry in loaded.entries:
                view(entry, block)[...] = loaded.together[entry.key]
            return loaded.description
        while undecodable := write([each.arrays for each in loaded.samples], loaded.entries, block):
            failed = [(loaded.samples[place].number, _reason(error)) for place, error in undecodable.items()]
            if not self.skip:
                number, reason = failed[0]
                raise RoboCacheError(f"sample {number}: {reason}") from next(iter(undecodable.values()))
            kept = [each for place, each in enumerate(loaded.samples) if place not in undecodable]
            loaded = _planned(kept, [*loaded.description.skipped, *failed])
        return loaded.description

    def _read_raw(self, sample: Sample) -> SampleRead:
        from robocache_ros.datasets.loader.raw_samples import raw_sample  # needs torch, unlike other datasets

        unaligned = self._dataset_of(sample).unaligned(sample.item)
        _check_window(sample, len(unaligned.ticks_ns))
        if (name := unaligned.episode.not_finite) is not None:
            _check_finite(name, unaligned.episode.streams[name].values)
        layout, arrays, ticks, texts = raw_sample(unaligned, sample.start, sample.ticks, jpeg_files=self.jpeg_files)
        files = {key: arrays.pop(key) for key in list(arrays) if is_file(key)} if self.jpeg_files else {}
        arrays |= {"length": np.array(ticks), "index": np.array(sample.number), **files}  # the files are the last
        return SampleRead(sample.number, arrays, texts, ticks, frozenset(), layout)

    def _read(self, sample: Sample) -> SampleRead:
        dataset = self._dataset_of(sample)
        item: Mapping[str, Any] = (
            dataset.undecoded(sample.item) if _defines(dataset, "undecoded") else dataset[sample.item]
        )
        texts = {key: value for key, value in item.items() if isinstance(value, str)}
        arrays: Arrays = {
            key: value if isinstance(value, UndecodedImages) else np.asarray(value)
            for key, value in item.items()
            if key != "length" and not isinstance(value, str)
        }
        total = int(item["length"]) if "length" in item else max(map(_rows, arrays.values()), default=0)
        _check_window(sample, total)
        others = NOT_PER_TICK | (CHUNKS if "action_is_pad" in arrays else frozenset())
        keys = frozenset(key for key, array in arrays.items() if _rows(array) == total and key not in others)
        for key, array in arrays.items():
            if isinstance(array, np.ndarray):
                _check_finite(key, array)
        if sample.ticks:
            window = slice(sample.start, sample.start + sample.ticks)
            arrays = {key: array[window] if key in keys else array for key, array in arrays.items()}
        length = sample.ticks or total
        arrays |= {"length": np.array(length), "index": np.array(sample.number)}
        return SampleRead(sample.number, arrays, texts, length, keys)


def _planned(found: list[SampleRead], skipped: Sequence[tuple[int, str]]) -> Loaded:
    layout = found[0].layout if found else None
    entries, nbytes = plan([each.arrays for each in found], *_padded_keys(layout))
    texts = sorted({key for each in found for key in each.texts})
    for key in texts:
        if lacking := [each.number for each in found if key not in each.texts]:
            raise RoboCacheError(f"{printable(key, 40)}: sample {lacking[0]} lacks this text; map them to one layout")
    files = [entry.offset for entry in entries if is_file(entry.key)]
    description = Description(
        entries,
        nbytes,
        tuple(each.number for each in found),
        tuple(each.ticks for each in found),
        {key: tuple(each.texts[key] for each in found) for key in (found[0].texts if found else ())},
        frozenset().union(*(each.per_tick for each in found)),
        tuple(skipped),
        layout,
        min(files, default=nbytes),
    )
    return Loaded(found, entries, description)


def _reason(error: Exception) -> str:
    return printable(error, MAX_REASON) or type(error).__name__


def _defines(dataset: Any, name: str) -> bool:
    """Whether the class that defines the items of a dataset defines a method too: a subclass may have other items."""
    defining = next((kind for kind in type(dataset).__mro__ if "__getitem__" in vars(kind)), object)
    return name in vars(defining)


def depends_on_epoch(dataset: IndexedEpisodes) -> bool:
    """Whether the items of a dataset are others in each epoch."""
    return hasattr(dataset, "set_epoch")


def _padded_keys(layout: RawLayout | None) -> tuple[set[str], set[str]]:
    """The arrays by whose lengths kernels are prepared, the samples of vectors, and those that may be joined."""
    vectors = [index for index, stream in enumerate(layout.streams if layout else ()) if stream.width]
    stepped = {key_of(index, part) for index in vectors for part in ("stamp_ns", "values", "valid", "age")}
    return stepped, {key_of(index, "values") for index in vectors}


def _check_window(sample: Sample, total: int) -> None:
    if not total:
        raise RoboCacheError("it has no ticks; leave it out of the dataset")
    if sample.start + sample.ticks > total:
        raise RoboCacheError(f"it has {total} ticks where {sample.start + sample.ticks} were counted before")


def _rows(array: NDArray[Any] | UndecodedImages) -> int:
    return array.shape[0] if array.ndim else 0


def _check_finite(key: str, array: NDArray[Any]) -> None:
    """Refuse NaN and infinite numbers: they would make a training silently useless."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    place = np.argwhere(~np.isfinite(array))[0]
    column = f", column {place[-1]}" if array.ndim > 1 else ""
    first = f"row {place[0]}{column}" if array.ndim else "the value"
    raise RoboCacheError(f"{printable(key, 40)}: {first} is not finite; repair the data, or use on_error='skip'")
