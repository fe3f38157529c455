"""The samples of a dataset that fits in memory: items packed, or the rows that windows share. A batch is a gather."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.datasets.loader.batch import Batch, Skipped
from robocache_ros.datasets.loader.order import Request, Samples
from robocache_ros.datasets.loader.packing import ABSENT_STAMP_NS, is_time
from robocache_ros.datasets.loader.prefetch import Prefetcher
from robocache_ros.datasets.loader.reading import CHUNKS, Sample
from robocache_ros.datasets.timeline_dataset import Window
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.read import IMAGE_MODALITIES
from robocache_ros.ipc.shared_memory import available_bytes

_LOG = logging.getLogger("robocache_ros.datasets.loader")


def _room(where: str, expected: float, what: str, share: float, device: torch.device) -> dict[torch.device, float]:
    """Return the bytes that a cache may use in each place.

    Args:
        where: device, host or auto: both.
        expected: bytes of all that is to be kept.
        what: is kept.
        share: of the free memory that may be used.
        device: of the batches.

    Errors:
        RoboCacheError: not all of it has room where the cache is wanted.
    """
    host = torch.device("cpu")
    places = {"device": [device], "host": [host], "auto": [device, host]}[where]
    room = {place: free_bytes(place) * share for place in places}
    if where != "auto" and expected > room[places[0]]:
        raise RoboCacheError(f"cache: {_facts(expected, what, room)}; use cache='auto' or 'none'")
    return room


def _facts(expected: float, what: str, room: Mapping[torch.device, float]) -> str:
    each = ", ".join(f"{most / 2**30:.1f} GiB may be used on {place}" for place, most in room.items())
    return f"{expected / 2**30:.2f} GiB expected of {what}, {each}"


def _one_place(where: str, expected: float, what: str, share: float, device: torch.device) -> torch.device | None:
    """Return the first place that has room for a cache, None if none has; see `_room`."""
    room = _room(where, expected, what, share, device)
    facts = _facts(expected, what, room)
    for place, each in room.items():
        if expected <= each:
            _LOG.info("cache: on %s, because of %s", place, facts)
            return place
    _LOG.info("cache: none, because of %s", facts)
    return None


def free_bytes(place: torch.device) -> int:
    """Return the free memory of a place; of the host, the share of this process."""
    if place.type == "cuda":
        return int(torch.cuda.mem_get_info(place)[0])
    return (available_bytes() or 0) // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


BYTES_TOGETHER = {"cpu": 2**20, "cuda": 2**28}  # of batches that are gathered together: they share memory
MAX_TOGETHER = 64
Numbers = NDArray[np.int64]


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


class CachedPlaces(NamedTuple):
    """B samples of up to T ticks, as tensors where the cache is."""

    ticks: Tensor  # (B, T) int64 rows of their ticks, the last one again where they have ended
    rows: Tensor  # (B,) int64 of their items
    lengths: Tensor  # (B,) int64 ticks of each
    numbers: Tensor  # (B,) int64 of the samples
    padding: Tensor  # (B, T) bool
    ragged: bool  # whether there is padding


def cached_places(
    starts: Numbers, lengths: Numbers, rows: Numbers, numbers: Numbers, device: torch.device
) -> CachedPlaces:
    """Return the places of samples; `starts` are (B,) int64, the first tick of each."""
    longest = int(lengths.max())
    ragged = bool((lengths != longest).any())
    if device.type == "cpu":  # NumPy takes less time here
        counting = np.arange(longest)
        index = starts[:, None] + np.minimum(counting, lengths[:, None] - 1)
        padding = counting >= lengths[:, None]
        first, row, length, number, none = map(torch.from_numpy, (index, rows, lengths, numbers, padding))
        return CachedPlaces(first, row, length, number, none, ragged)
    sent = torch.from_numpy(np.stack([starts, lengths, rows, numbers])).pin_memory()
    first, length, row, number = sent.to(device, non_blocking=True).unbind()
    place = torch.arange(longest, device=device)
    if not ragged:
        none = torch.zeros((len(rows), longest), dtype=torch.bool, device=device)
        return CachedPlaces(first[:, None] + place, row, length, number, none, ragged)
    within = torch.minimum(place, length[:, None] - 1)
    return CachedPlaces(first[:, None] + within, row, length, number, place >= length[:, None], ragged)


ITEMS_PER_READ = 16
SAMPLE_SHARE = 0.5  # of the free memory that the cache may use: packing needs room for its largest tensor twice


class _SampleCache(CachedBatches):
    """Items of a dataset, each tensor as one piece."""

    def __init__(
        self, parts: Sequence[Batch], skipped: Mapping[int, str], device: torch.device, *, pinned: bool
    ) -> None:
        first = parts[0]
        place = next(iter(first.tensors.values())).device
        super().__init__(first.per_tick, first.widths, place, device)
        self.skipped = skipped  # items that cannot be read
        items = [item for part in parts for item in part.samples]
        self._rows_of = np.zeros(max(items) + 1, np.int64)  # of each item
        self._rows_of[items] = np.arange(len(items))
        self._lengths = np.array([n for part in parts for n in part.lengths], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self._lengths)[:-1]])
        self._texts = {
            key: np.array([text for part in parts for text in part.texts[key]], object) for key in first.texts
        }
        self._tensors: dict[str, Tensor] = {}
        for key in [key for key in first.tensors if key not in ("length", "index")]:
            packed = torch.cat([part.tensors.pop(key) for part in parts])
            self._tensors[key] = packed.pin_memory() if pinned else packed

    def sample_bytes(self, samples: Samples) -> int | None:
        if samples.windows is None and not (self._lengths == self._lengths[0]).all():
            return None
        ticks = samples.windows[0] if samples.windows else int(self._lengths[0])
        return sum(
            (ticks if key in self._per_tick else 1) * tensor[:1].numel() * tensor.element_size()
            for key, tensor in self._tensors.items()
        )

    def readable(self, numbers: Numbers, samples: Samples) -> tuple[Numbers, Skipped]:
        if not self.skipped:
            return numbers, ()
        items = samples.places(numbers)[0].tolist()
        skipped = [
            (n, self.skipped[item]) for n, item in zip(numbers.tolist(), items, strict=True) if item in self.skipped
        ]
        return numbers[[item not in self.skipped for item in items]], tuple(skipped)

    def gather(self, numbers: Numbers, samples: Samples) -> Gathered:
        items, starts = samples.places(numbers)
        rows = self._rows_of[items]
        lengths = np.full(len(rows), samples.windows[0]) if samples.windows else self._lengths[rows]
        places = cached_places(self._starts[rows] + starts, lengths, rows, numbers, self._place)
        found = self._tensors_of(places)
        found["length"], found["index"] = places.lengths.to(self._device), places.numbers.to(self._device)
        texts = {key: words[rows].tolist() for key, words in self._texts.items()}
        return Gathered(found, places.padding.to(self._device), lengths, texts)

    def _tensors_of(self, places: CachedPlaces) -> dict[str, Tensor]:
        """Return the tensors of B samples, padded to the longest."""
        index, found = places.ticks.flatten(), {}
        padding = places.padding.to(self._device) if places.ragged else None
        for key, tensor in self._tensors.items():
            if key not in self._per_tick:
                found[key] = self._rows(tensor, places.rows)
                continue
            found[key] = self._rows(tensor, index).view(*places.ticks.shape, *tensor.shape[1:])
            if padding is not None:
                mask = padding.view(*padding.shape, *(1,) * (tensor.ndim - 1))
                found[key].masked_fill_(mask, ABSENT_STAMP_NS if is_time(key) else 0)
        return found


def fill_samples(
    where: str, items: int, prefetcher: Prefetcher, widths: Mapping[str, tuple[int, ...]], device: torch.device
) -> _SampleCache | None:
    """Read all items and keep them, if they fit; see `filled`."""
    parts: list[Batch] = []
    skipped: dict[int, str] = {}
    place = None
    reads = [range(items)[start : start + ITEMS_PER_READ] for start in range(0, items, ITEMS_PER_READ)]
    requests = (Request([Sample(item, item) for item in read]) for read in reads)
    for item in prefetcher.batches(requests, len(reads), widths, lambda batch: batch):
        skipped.update(item.description.skipped)
        if item.batch is None:
            continue
        if place is None:
            expected = _nbytes(item.batch.tensors) / len(item.batch.samples) * items
            place = _one_place(where, expected, f"{items} items", SAMPLE_SHARE, device)
            if place is None:
                return None
        if parts:
            _check_same(parts[0], item.batch)
        packed = item.batch.output("concat")  # without padding
        item.batch.tensors = {key: packed[key].to(place, copy=True) for key in item.batch.tensors}
        parts.append(item.batch)
    if place is None:
        return None  # no item can be read: the epoch reports it
    nbytes = sum(_nbytes(part.tensors) for part in parts)
    _LOG.info("cache: %d items, %.1f MiB on %s", items - len(skipped), nbytes / 2**20, place)
    return _SampleCache(parts, skipped, device, pinned=place.type == "cpu" and device.type == "cuda")


def _nbytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _check_same(first: Batch, batch: Batch) -> None:
    for key, tensor in batch.tensors.items():
        known = first.tensors.get(key)
        skip = 2 if key in batch.per_tick else 1
        if known is None or known.shape[1:] != tensor.shape[skip:] or known.dtype != tensor.dtype:
            raise RoboCacheError(f"cache: {key}: items differ in their shape or dtype; map them to one layout")


TICKS_PER_READ = 64
WHOLE_READ = Window(TICKS_PER_READ, TICKS_PER_READ, 1 - TICKS_PER_READ)  # ticks up to a sample's, with their actions
WINDOW_SHARE = 0.8  # of the free memory that the cache may use
OWN = ("is_pad", "action_is_pad", "length", "index")  # what depends on the window


class Rows(NamedTuple):
    """N ticks of all episodes, one after the other: the number of a window is that of its tick."""

    observed: dict[str, Tensor]  # (N, ...)
    acted: dict[str, Tensor]  # (N, ...)
    constant: dict[str, Tensor]  # (N, ...) what all ticks of an episode have in common
    texts: dict[str, NDArray[Any]]  # (N,) of str


class _WindowCache(CachedBatches):
    """Windows of consecutive episodes that are in memory, aligned at all of their ticks.

    Args:
        rows: of the episodes.
        begin: the number of the first tick.
        unreadable: ticks that could not be read, and why.
        ends: (E,) the number after the last window of each episode.
        window: of the dataset.
    """

    def __init__(
        self,
        rows: Rows,
        begin: int,
        unreadable: Mapping[int, str],
        ends: Numbers,
        window: Window,
        first: Batch,
        device: torch.device,
    ) -> None:
        few = frozenset() if window.n_images in (None, window.n_obs) else frozenset(filter(_is_image, first.tensors))
        super().__init__(first.per_tick - few, first.widths, next(iter(rows.observed.values())).device, device)
        self._data, self._window, self._order, self._begin = rows, window, tuple(first.tensors), begin
        self._ends = ends
        self._starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        self._unreadable = unreadable
        self._bad = np.array(sorted(unreadable), np.int64)

    def sample_bytes(self, samples: Samples) -> int | None:
        data, window = self._data, self._window
        return sum(
            (window.n_images or rows if _is_image(key) else rows) * tensor[:1].numel() * tensor.element_size()
            for rows, table in ((window.n_obs, data.observed), (window.horizon, data.acted), (1, data.constant))
            for key, tensor in table.items()
        )

    def readable(self, numbers: Numbers, samples: Samples) -> tuple[Numbers, Skipped]:
        if not len(self._bad):
            return numbers, ()
        first, last = self._bounds(numbers)
        window = self._window
        spans = [(1 - window.n_obs, 0), (window.action_offset, window.action_offset + window.horizon - 1)]
        reason: dict[int, str] = {}
        for begin, end in spans:
            lowest, highest = (np.clip(numbers + each, first, last) for each in (begin, end))
            place = np.searchsorted(self._bad, lowest)
            for number, at, top in zip(numbers.tolist(), place.tolist(), highest.tolist(), strict=True):
                if at < len(self._bad) and self._bad[at] <= top:
                    reason.setdefault(number, self._unreadable[int(self._bad[at])])
        kept = numbers[[number not in reason for number in numbers.tolist()]]
        return kept, tuple((number, reason[number]) for number in numbers.tolist() if number in reason)

    def gather(self, numbers: Numbers, samples: Samples) -> Gathered:
        sent = torch.from_numpy(np.stack([numbers, *self._bounds(numbers)]))
        if self._place.type == "cuda":
            sent = sent.pin_memory().to(self._place, non_blocking=True)
        number, first, last = (each[:, None] for each in sent.unbind())
        size, window = len(numbers), self._window
        observed = number + torch.arange(1 - window.n_obs, 1, device=self._place)
        acted = number + torch.arange(window.horizon, device=self._place) + window.action_offset
        found = {key: self._rows(tensor, number[:, 0] - self._begin) for key, tensor in self._data.constant.items()}
        pads = []
        for rows, table in ((observed, self._data.observed), (acted, self._data.acted)):
            pads.append(((rows < first) | (rows > last)).to(self._device))
            index = torch.minimum(torch.maximum(rows, first), last) - self._begin
            for key, each in table.items():
                wanted = index[:, -(window.n_images or 0) :] if _is_image(key) else index
                found[key] = self._rows(each, wanted.flatten()).view(size, -1, *each.shape[1:])
        found["is_pad"], found["action_is_pad"] = pads
        found["length"] = torch.full((size,), window.n_obs, dtype=torch.int64, device=self._device)
        found["index"] = number[:, 0].to(self._device)
        lengths = np.full(size, window.n_obs, np.int64)
        texts = {key: words[numbers - self._begin].tolist() for key, words in self._data.texts.items()}
        padding = torch.zeros((size, window.n_obs), dtype=torch.bool, device=self._device)
        return Gathered({key: found[key] for key in self._order}, padding, lengths, texts)

    def _bounds(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """The first and the last tick of the episode of each window."""
        episodes = np.searchsorted(self._ends, numbers, "right")
        return self._starts[episodes], self._ends[episodes] - 1


class Part(NamedTuple):
    """Consecutive samples that are in memory."""

    begin: int
    stop: int  # after the last one
    batches: CachedBatches


def fill_windows(
    where: str, dataset: Any, prefetcher: Prefetcher, widths: Mapping[str, tuple[int, ...]], device: torch.device
) -> list[Part]:
    """Read the first episodes of a dataset of windows, as many as fit, and keep them; see `filled`."""
    ends = np.asarray(dataset.window_ends(), np.int64)
    first: Batch | None = None
    kept: list[tuple[int, int, Rows]] = []
    unreadable: dict[int, str] = {}
    reads = list(_reads(ends))
    requests = (Request([Sample(stop - 1, stop - 1, 0, TICKS_PER_READ)]) for _, stop in reads)
    found = prefetcher.batches(requests, len(reads), widths, lambda batch: batch)
    for (begin, stop), item in zip(reads, found, strict=True):
        if item.batch is None:
            unreadable.update(dict.fromkeys(range(begin, stop), item.description.skipped[0][1]))
            continue
        if first is None:
            first = item.batch
            kept = _places(where, first, ends, device)
        rows = next(((rows, begin - start) for start, end, rows in kept if start <= begin < end), None)
        if rows is None:  # the first ones are kept
            break
        if not _keep(*rows, item.batch, stop - begin):
            if where != "auto":
                raise RoboCacheError(f"cache: tick {begin} differs from the first in its shapes; use cache='none'")
            _LOG.info("cache: none, because tick %d differs from the first in its shapes", begin)
            return []
    if first is None:
        return []  # no tick can be read: the epoch reports it
    return [
        Part(begin, stop, _WindowCache(rows, begin, unreadable, ends, dataset.window, first, device))
        for begin, stop, rows in kept
    ]


def _places(where: str, first: Batch, ends: Numbers, device: torch.device) -> list[tuple[int, int, Rows]]:
    """Return memory for the ticks of the first episodes, as many as fit: their first one, that after the last, memory.

    One line in the log states what is kept where, and why.
    """
    total, row_bytes = int(ends[-1]), max(1, _row_bytes(first))
    room = _room(where, row_bytes * total, f"{total:,} ticks", WINDOW_SHARE, device)
    facts = _facts(row_bytes * total, f"{total:,} ticks", room)
    found: list[tuple[int, int, Rows]] = []
    begin = 0
    for place, most in room.items():
        count = int(np.searchsorted(ends, begin + most // row_bytes, "right"))
        stop = int(ends[count - 1]) if count else 0
        if stop <= begin:
            continue
        try:
            found.append((begin, stop, _empty(first, stop - begin, place)))
        except (RuntimeError, MemoryError) as error:  # less is free than was reported
            if where != "auto":
                raise RoboCacheError(f"cache: {printable(error, 90)}; use cache='auto' or 'none'") from None
            facts += f", {place} has not: {printable(error, 60)}"
            continue
        begin = stop
    places = [f"{stop - start:,} ticks on {next(iter(rows.observed.values())).device}" for start, stop, rows in found]
    places += [f"{total - begin:,} ticks are read in each epoch"] * (begin < total)
    _LOG.info("cache: %s, because of %s", " and ".join(places) if found else "none", facts)
    return found


def _reads(ends: Numbers) -> Iterator[tuple[int, int]]:
    """Yield the first tick, and the one after the last, of each read: of one episode each."""
    begin = 0
    for end in ends.tolist():
        for start in range(begin, end, TICKS_PER_READ):
            yield start, min(start + TICKS_PER_READ, end)
        begin = end


def _table(key: str, batch: Batch) -> str:
    if key in CHUNKS:
        return "acted"
    return "observed" if key in batch.per_tick else "constant"


def _row_bytes(batch: Batch) -> int:
    ticks = {"observed": TICKS_PER_READ, "acted": TICKS_PER_READ, "constant": 1}
    return sum(
        each.numel() * each.element_size() // ticks[_table(key, batch)]
        for key, each in batch.tensors.items()
        if key not in OWN
    )


def _empty(batch: Batch, count: int, place: torch.device) -> Rows:
    """Memory for the rows of some ticks. What cannot be read stays zero."""
    rows = Rows({}, {}, {}, {key: np.full(count, "", object) for key in batch.texts})
    for key, tensor in batch.tensors.items():
        if key not in OWN:
            table = _table(key, batch)
            shape = tensor.shape[1:] if table == "constant" else tensor.shape[2:]
            getattr(rows, table)[key] = torch.zeros((count, *shape), dtype=tensor.dtype, device=place)
    return rows


def _keep(rows: Rows, begin: int, batch: Batch, count: int) -> bool:
    """Copy the rows of a read, the last ones of which are new. Return False if they have other shapes."""
    new = slice(begin, begin + count)
    for table, shown in ((rows.observed, 2), (rows.acted, 2), (rows.constant, 1)):
        for key, memory in table.items():
            read = batch.tensors.get(key)
            if read is None or read.shape[shown:] != memory.shape[1:] or read.dtype != memory.dtype:
                return False
            memory[new].copy_(read[0, -count:] if shown == 2 else read.expand(count, *memory.shape[1:]))
    for key, words in rows.texts.items():
        words[new] = batch.texts[key][0]
    return True


def _is_image(key: str) -> bool:
    """Whether a tensor has images, of which a window may have fewer ticks."""
    return key.partition("/")[0] in IMAGE_MODALITIES


def chunks_of(dataset: Any, cache: str) -> Any:
    """Return the dataset by whose windows a cache is filled; None if it is filled with items."""
    if cache == "none" or getattr(dataset, "window", None) is None or not hasattr(dataset, "of_source"):
        return None
    return dataset.of_source(dataset.source, WHOLE_READ)


def filled(
    where: str, dataset: Any, prefetcher: Prefetcher, widths: Mapping[str, tuple[int, ...]], device: torch.device
) -> list[Part]:
    """Read a dataset and keep it, as far as it fits. One line in the log states where it is kept, and why.

    Args:
        where: device, host or auto: windows on the device, then on the host, as many as fit, and items on one of both.
        dataset: of the loader.
        prefetcher: reads it; its reader has the `chunks_of` the dataset.
        widths: see `Batch`.
        device: of the batches.

    Returns:
        the samples that are kept, from the first on; none if nothing fits and `where` is auto, or can be read.

    Errors:
        RoboCacheError: the dataset does not fit where it is wanted, or cannot be read.
    """
    if chunks_of(dataset, where) is not None:
        return fill_windows(where, dataset, prefetcher, widths, device)
    items = fill_samples(where, len(dataset), prefetcher, widths, device)
    return [] if items is None else [Part(0, ALL, items)]


ALL = 2**62


def joined(parts: Sequence[Batch], wanted: Numbers) -> Batch:
    """Return samples of equal lengths as one batch, in the order of the wanted numbers."""
    if len(parts) == 1:
        return parts[0]
    first, samples = parts[0], tuple(chain.from_iterable(part.samples for part in parts))
    place = {number: at for at, number in enumerate(wanted.tolist())}
    rows = sorted(range(len(samples)), key=lambda row: place[samples[row]])
    index, device = torch.tensor(rows), next(iter(first.tensors.values())).device
    if device.type == "cuda":
        index = index.pin_memory().to(device, non_blocking=True)
    tensors = {key: torch.cat([part.tensors[key] for part in parts]).index_select(0, index) for key in first.tensors}
    texts = {key: tuple(chain.from_iterable(part.texts[key] for part in parts)) for key in first.texts}
    texts = {key: tuple(words[row] for row in rows) for key, words in texts.items()}
    lengths = tuple(chain.from_iterable(part.lengths for part in parts))
    return Batch(tensors, tuple(samples[row] for row in rows), lengths, first.per_tick, texts, first.widths)
