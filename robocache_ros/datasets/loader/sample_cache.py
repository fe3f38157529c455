"""The aligned items of a dataset that fits in memory, packed: a batch is a gather."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.datasets.loader.batch import Batch
from robocache_ros.datasets.loader.device.cached_places import CachedPlaces, cached_places
from robocache_ros.datasets.loader.packing import NEVER, is_time
from robocache_ros.datasets.loader.reading import Sample
from robocache_ros.datasets.loader.samples import Samples
from robocache_ros.datasets.loader.workers.batch_prefetch import Prefetcher
from robocache_ros.errors import RoboCacheError

ITEMS_PER_READ = 16
BYTES_TOGETHER = {"cpu": 2**20, "cuda": 2**28}  # of batches that are gathered together: they share memory
MAX_TOGETHER = 64
SHARE = 0.5  # of the free memory that the cache may use: packing needs room for its largest tensor twice
Skipped = tuple[tuple[int, str], ...]  # samples that cannot be read, and why
_LOG = logging.getLogger(__name__)


class SampleCache:
    """Items of a dataset, each tensor as one piece."""

    def __init__(
        self, parts: Sequence[Batch], skipped: Mapping[int, str], device: torch.device, *, pinned: bool
    ) -> None:
        self.skipped = skipped  # items that cannot be read
        self._device = device  # of the batches
        first = parts[0]
        self._per_tick, self._widths = first.per_tick, first.widths
        items = [item for part in parts for item in part.samples]
        self._rows = np.zeros(max(items) + 1, np.int64)  # of each item
        self._rows[items] = np.arange(len(items))
        self._lengths = np.array([n for part in parts for n in part.lengths], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self._lengths)[:-1]])
        self._texts = {
            key: np.array([text for part in parts for text in part.texts[key]], object) for key in first.texts
        }
        self._tensors: dict[str, Tensor] = {}
        for key in [key for key in first.tensors if key not in ("length", "index")]:
            packed = torch.cat([part.tensors.pop(key) for part in parts])
            self._tensors[key] = packed.pin_memory() if pinned else packed
        self._place = next(iter(self._tensors.values())).device

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors.values())

    def batches(self, wanted: Sequence[NDArray[np.int64]], samples: Samples) -> Iterator[tuple[Batch | None, Skipped]]:
        """Yield each batch as the workers read it, None if it has no sample; and its samples that cannot be read.

        Small batches of samples of one length are gathered together and split, which takes a fraction of the time.

        Args:
            wanted: (B,) the numbers of the samples of each batch.
            samples: of the dataset.
        """
        together = self._together(max(map(len, wanted), default=0), samples)
        for start in range(0, len(wanted), together):
            group = [self._readable(numbers, samples) for numbers in wanted[start : start + together]]
            gathered = self._gathered_together([numbers for numbers, _ in group if len(numbers)], samples)
            for numbers, skipped in group:
                yield next(gathered) if len(numbers) else None, skipped

    def _together(self, batch_size: int, samples: Samples) -> int:
        """How many batches are gathered together."""
        if samples.windows is None and not (self._lengths == self._lengths[0]).all():
            return 1
        ticks = samples.windows[0] if samples.windows else int(self._lengths[0])
        per_sample = sum(
            (ticks if key in self._per_tick else 1) * tensor[:1].numel() * tensor.element_size()
            for key, tensor in self._tensors.items()
        )
        return max(1, min(MAX_TOGETHER, BYTES_TOGETHER[self._place.type] // max(1, batch_size * per_sample)))

    def _readable(self, numbers: NDArray[np.int64], samples: Samples) -> tuple[NDArray[np.int64], Skipped]:
        """Return the samples that could be read, and the others with the reason."""
        if not self.skipped:
            return numbers, ()
        items = samples.places(numbers)[0].tolist()
        skipped = [
            (n, self.skipped[item]) for n, item in zip(numbers.tolist(), items, strict=True) if item in self.skipped
        ]
        return numbers[[item not in self.skipped for item in items]], tuple(skipped)

    def _gathered_together(self, group: Sequence[NDArray[np.int64]], samples: Samples) -> Iterator[Batch]:
        """Yield batches, none of them empty. If there are several, their samples are of one length."""
        if not group:
            return
        numbers = np.concatenate(group)
        items, starts = samples.places(numbers)
        rows = self._rows[items]
        lengths = np.full(len(rows), samples.windows[0]) if samples.windows else self._lengths[rows]
        places = cached_places(self._starts[rows] + starts, lengths, rows, numbers, self._place)
        found = self._tensors_of(places)
        found["length"], found["index"] = places.lengths.to(self._device), places.numbers.to(self._device)
        padding = places.padding.to(self._device)
        sizes = [len(each) for each in group]
        masks, parts = (
            padding.split_with_sizes(sizes),
            {key: tensor.split_with_sizes(sizes) for key, tensor in found.items()},
        )
        texts = {key: words[rows].tolist() for key, words in self._texts.items()}
        first = 0
        for place, size in enumerate(sizes):
            last = first + size
            yield Batch(
                {key: part[place] for key, part in parts.items()},
                tuple(group[place].tolist()),
                tuple(lengths[first:last].tolist()),
                self._per_tick,
                {key: tuple(words[first:last]) for key, words in texts.items()},
                self._widths,
                masks[place],
            )
            first = last

    def _tensors_of(self, places: CachedPlaces) -> dict[str, Tensor]:
        """Return the tensors of B samples, padded to the longest."""
        index, found = places.ticks.flatten(), {}
        padding = places.padding.to(self._device) if places.ragged else None
        for key, tensor in self._tensors.items():
            if key not in self._per_tick:
                found[key] = self._gathered(tensor, places.rows)
                continue
            found[key] = self._gathered(tensor, index).view(*places.ticks.shape, *tensor.shape[1:])
            if padding is not None:
                mask = padding.view(*padding.shape, *(1,) * (tensor.ndim - 1))
                found[key].masked_fill_(mask, NEVER if is_time(key) else 0)
        return found

    def _gathered(self, tensor: Tensor, index: Tensor) -> Tensor:
        if tensor.device == self._device:
            return tensor.index_select(0, index)
        staging = torch.empty((len(index), *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=True)
        return torch.index_select(tensor, 0, index, out=staging).to(self._device, non_blocking=True)


def fill(
    where: str, items: int, prefetcher: Prefetcher, widths: Mapping[str, tuple[int, ...]], device: torch.device
) -> SampleCache | None:
    """Read all items and keep them, if they fit. One line in the log states where they are kept, and why.

    Args:
        where: device, host or auto.
        items: of the dataset.
        prefetcher: reads them.
        widths: see `Batch`.
        device: of the batches.

    Returns:
        the cache; None if the items fit nowhere and `where` is auto.

    Errors:
        RoboCacheError: they do not fit where they are wanted, or an item cannot be read.
    """
    parts: list[Batch] = []
    skipped: dict[int, str] = {}
    place = None
    for item in prefetcher.batches(_all(items), widths, lambda batch: batch):
        skipped.update(item.description.skipped)
        if item.batch is None:
            continue
        if place is None:
            place = _choose(where, items, item.batch, device)
            if place is None:
                return None
        _check_same(parts, item.batch)
        parts.append(_packed(item.batch, place))
    if place is None:
        return None  # no item can be read: the epoch reports it
    cache = SampleCache(parts, skipped, device, pinned=place.type == "cpu" and device.type == "cuda")
    _LOG.info("cache: %d items, %.1f MiB on %s", items - len(skipped), cache.nbytes / 2**20, place)
    return cache


def _all(items: int) -> Any:
    for start in range(0, items, ITEMS_PER_READ):
        yield [Sample(i, i) for i in range(start, min(start + ITEMS_PER_READ, items))]


def _choose(where: str, items: int, batch: Batch, device: torch.device) -> torch.device | None:
    """Return where the cache is kept: the first place that has room for all items, if they are like the first ones."""
    expected = sum(map(_bytes, batch.tensors.values())) / len(batch.samples) * items
    host = torch.device("cpu")
    places = {"device": [device], "host": [host], "auto": [device, host]}[where]
    room = {place: _free_bytes(place) * SHARE for place in places}
    facts = ", ".join(f"{each / 2**30:.1f} GiB may be used on {place}" for place, each in room.items())
    facts = f"{expected / 2**30:.2f} GiB expected of {items} items, {facts}"
    for place, each in room.items():
        if expected <= each:
            _LOG.info("cache: on %s, because of %s", place, facts)
            return place
    if where != "auto":
        raise RoboCacheError(f"cache: {facts}; use cache='auto' or 'none'")
    _LOG.info("cache: none, because of %s", facts)
    return None


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _free_bytes(place: torch.device) -> int:
    if place.type == "cuda":
        return int(torch.cuda.mem_get_info(place)[0])
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _packed(batch: Batch, place: torch.device) -> Batch:
    """Return a batch without its padding, where it is kept."""
    packed = batch.output("concat")
    batch.tensors = {key: packed[key].to(place, copy=True) for key in batch.tensors}
    return batch


def _check_same(parts: Iterable[Batch], batch: Batch) -> None:
    for first in parts:
        for key, tensor in batch.tensors.items():
            known = first.tensors.get(key)
            skip = 2 if key in batch.per_tick else 1
            if known is None or known.shape[1:] != tensor.shape[skip:] or known.dtype != tensor.dtype:
                raise RoboCacheError(f"cache: {key}: items differ in their shape or dtype; map them to one layout")
        return
