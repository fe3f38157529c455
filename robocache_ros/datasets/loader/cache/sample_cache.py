"""The aligned items of a dataset that fits in memory, packed: a batch is a gather."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from robocache_ros.datasets.loader.batch import Batch
from robocache_ros.datasets.loader.cache.cached_batches import CachedBatches, Gathered, Numbers, Skipped
from robocache_ros.datasets.loader.cache.free_memory import choose_place
from robocache_ros.datasets.loader.device.cached_places import CachedPlaces, cached_places
from robocache_ros.datasets.loader.epochs import Request
from robocache_ros.datasets.loader.packing import NEVER, is_time
from robocache_ros.datasets.loader.reading import Sample
from robocache_ros.datasets.loader.samples import Samples
from robocache_ros.datasets.loader.workers.batch_prefetch import Prefetcher
from robocache_ros.errors import RoboCacheError

ITEMS_PER_READ = 16
SHARE = 0.5  # of the free memory that the cache may use: packing needs room for its largest tensor twice
_LOG = logging.getLogger("robocache_ros.datasets.loader")


class SampleCache(CachedBatches):
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

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors.values())

    def sample_bytes(self, samples: Samples) -> int | None:
        """See `CachedBatches`."""
        if samples.windows is None and not (self._lengths == self._lengths[0]).all():
            return None
        ticks = samples.windows[0] if samples.windows else int(self._lengths[0])
        return sum(
            (ticks if key in self._per_tick else 1) * tensor[:1].numel() * tensor.element_size()
            for key, tensor in self._tensors.items()
        )

    def readable(self, numbers: Numbers, samples: Samples) -> tuple[Numbers, Skipped]:
        """See `CachedBatches`."""
        if not self.skipped:
            return numbers, ()
        items = samples.places(numbers)[0].tolist()
        skipped = [
            (n, self.skipped[item]) for n, item in zip(numbers.tolist(), items, strict=True) if item in self.skipped
        ]
        return numbers[[item not in self.skipped for item in items]], tuple(skipped)

    def gather(self, numbers: Numbers, samples: Samples) -> Gathered:
        """See `CachedBatches`."""
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
                found[key].masked_fill_(mask, NEVER if is_time(key) else 0)
        return found


def fill(
    where: str, items: int, prefetcher: Prefetcher, widths: Mapping[str, tuple[int, ...]], device: torch.device
) -> SampleCache | None:
    """Read all items and keep them, if they fit; see `filling.filled`."""
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
            nbytes = sum(tensor.numel() * tensor.element_size() for tensor in item.batch.tensors.values())
            place = choose_place(where, nbytes / len(item.batch.samples) * items, f"{items} items", SHARE, device)
            if place is None:
                return None
        _check_same(parts, item.batch)
        parts.append(_packed(item.batch, place))
    if place is None:
        return None  # no item can be read: the epoch reports it
    cache = SampleCache(parts, skipped, device, pinned=place.type == "cpu" and device.type == "cuda")
    _LOG.info("cache: %d items, %.1f MiB on %s", items - len(skipped), cache.nbytes / 2**20, place)
    return cache


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
