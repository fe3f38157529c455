"""The samples of a dataset that fits in memory: items packed, or the rows that windows share. A batch is a gather."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
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
from robocache_ros.errors import RoboCacheError
from robocache_ros.ipc.shared_memory import available_bytes

_LOG = logging.getLogger("robocache_ros.datasets.loader")


def choose_place(where: str, expected: float, what: str, share: float, device: torch.device) -> torch.device | None:
    """Return where a cache is kept: the first place that has room for it. A line in the log states the sizes.

    Args:
        where: device, host or auto: the first of the two that has room.
        expected: bytes.
        what: is kept.
        share: of the free memory that may be used.
        device: of the batches.

    Returns:
        the place; None if none has room and `where` is auto.

    Errors:
        RoboCacheError: there is no room where the cache is wanted.
    """
    host = torch.device("cpu")
    places = {"device": [device], "host": [host], "auto": [device, host]}[where]
    room = {place: free_bytes(place) * share for place in places}
    facts = ", ".join(f"{each / 2**30:.1f} GiB may be used on {place}" for place, each in room.items())
    facts = f"{expected / 2**30:.2f} GiB expected of {what}, {facts}"
    for place, each in room.items():
        if expected <= each:
            _LOG.info("cache: on %s, because of %s", place, facts)
            return place
    if where != "auto":
        raise RoboCacheError(f"cache: {facts}; use cache='auto' or 'none'")
    _LOG.info("cache: none, because of %s", facts)
    return None


def free_bytes(place: torch.device) -> int:
    """Return the free memory of a place."""
    return int(torch.cuda.mem_get_info(place)[0]) if place.type == "cuda" else available_bytes() or 0


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
            place = choose_place(where, expected, f"{items} items", SAMPLE_SHARE, device)
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
    """Windows of episodes that are in memory, aligned at all of their ticks.

    Args:
        rows: of the episodes.
        unreadable: ticks that could not be read, and why.
        ends: (E,) the number after the last window of each episode.
        window: of the dataset.
    """

    def __init__(
        self,
        rows: Rows,
        unreadable: Mapping[int, str],
        ends: Numbers,
        window: Window,
        first: Batch,
        device: torch.device,
    ) -> None:
        super().__init__(first.per_tick, first.widths, next(iter(rows.observed.values())).device, device)
        self._data, self._window, self._order = rows, window, tuple(first.tensors)
        self._ends = ends
        self._starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        self._unreadable = unreadable
        self._bad = np.array(sorted(unreadable), np.int64)

    def sample_bytes(self, samples: Samples) -> int | None:
        data, window = self._data, self._window
        return sum(
            rows * tensor[:1].numel() * tensor.element_size()
            for rows, table in ((window.n_obs, data.observed), (window.horizon, data.acted), (1, data.constant))
            for tensor in table.values()
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
        found = {key: self._rows(tensor, number[:, 0]) for key, tensor in self._data.constant.items()}
        pads = []
        for rows, table in ((observed, self._data.observed), (acted, self._data.acted)):
            pads.append(((rows < first) | (rows > last)).to(self._device))
            index = torch.minimum(torch.maximum(rows, first), last).flatten()
            found.update({key: self._rows(each, index).view(size, -1, *each.shape[1:]) for key, each in table.items()})
        found["is_pad"], found["action_is_pad"] = pads
        found["length"] = torch.full((size,), window.n_obs, dtype=torch.int64, device=self._device)
        found["index"] = number[:, 0].to(self._device)
        lengths = np.full(size, window.n_obs, np.int64)
        texts = {key: words[numbers].tolist() for key, words in self._data.texts.items()}
        padding = torch.zeros((size, window.n_obs), dtype=torch.bool, device=self._device)
        return Gathered({key: found[key] for key in self._order}, padding, lengths, texts)

    def _bounds(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """The first and the last tick of the episode of each window."""
        episodes = np.searchsorted(self._ends, numbers, "right")
        return self._starts[episodes], self._ends[episodes] - 1


def fill_windows(
    where: str, dataset: Any, prefetcher: Prefetcher, widths: Mapping[str, tuple[int, ...]], device: torch.device
) -> _WindowCache | None:
    """Read the episodes of a dataset of windows and keep them, if they fit; see `filled`."""
    ends = np.asarray(dataset.window_ends(), np.int64)
    rows: Rows | None = None
    first: Batch | None = None
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
            place = choose_place(where, _row_bytes(first) * ends[-1], f"{ends[-1]:,} ticks", WINDOW_SHARE, device)
            if place is None:
                return None
            rows = _empty(first, int(ends[-1]), place, pinned=place.type == "cpu" and device.type == "cuda")
        assert rows is not None
        _keep(rows, item.batch, begin, stop)
    if rows is None or first is None:
        return None  # no tick can be read: the epoch reports it
    nbytes = sum(map(_nbytes, (rows.observed, rows.acted, rows.constant)))
    _LOG.info("cache: %d ticks of %d episodes, %.1f MiB", ends[-1], len(ends), nbytes / 2**20)
    return _WindowCache(rows, unreadable, ends, dataset.window, first, device)


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


def _empty(batch: Batch, count: int, place: torch.device, *, pinned: bool) -> Rows:
    """Memory for the rows of all ticks. What cannot be read stays zero."""
    rows = Rows({}, {}, {}, {key: np.full(count, "", object) for key in batch.texts})
    for key, tensor in batch.tensors.items():
        if key not in OWN:
            table = _table(key, batch)
            shape = tensor.shape[1:] if table == "constant" else tensor.shape[2:]
            memory = torch.zeros((count, *shape), dtype=tensor.dtype, device=place, pin_memory=pinned)
            getattr(rows, table)[key] = memory
    return rows


def _keep(rows: Rows, batch: Batch, begin: int, stop: int) -> None:
    """Copy the rows of a read; the last ones of it are new."""
    for table in (rows.observed, rows.acted):
        for key, memory in table.items():
            memory[begin:stop].copy_(batch.tensors[key][0, begin - stop :])
    for key, memory in rows.constant.items():
        memory[begin:stop].copy_(batch.tensors[key].expand(stop - begin, *memory.shape[1:]))
    for key, words in rows.texts.items():
        words[begin:stop] = batch.texts[key][0]


def chunks_of(dataset: Any, cache: str) -> Any:
    """Return the dataset by whose windows a cache is filled; None if it is filled with items."""
    if cache == "none" or getattr(dataset, "window", None) is None or not hasattr(dataset, "of_source"):
        return None
    return dataset.of_source(dataset.source, WHOLE_READ)


def filled(
    where: str, dataset: Any, prefetcher: Prefetcher, widths: Mapping[str, tuple[int, ...]], device: torch.device
) -> CachedBatches | None:
    """Read the whole dataset and keep it, if it fits. One line in the log states where it is kept, and why.

    Args:
        where: device, host or auto.
        dataset: of the loader.
        prefetcher: reads it; its reader has the `chunks_of` the dataset.
        widths: see `Batch`.
        device: of the batches.

    Returns:
        the cache; None if it fits nowhere and `where` is auto, or if nothing can be read.

    Errors:
        RoboCacheError: the dataset does not fit where it is wanted, or cannot be read.
    """
    if chunks_of(dataset, where) is None:
        return fill_samples(where, len(dataset), prefetcher, widths, device)
    return fill_windows(where, dataset, prefetcher, widths, device)
