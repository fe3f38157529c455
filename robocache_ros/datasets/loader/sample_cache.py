"""The aligned items of a dataset that fits in memory, packed: a batch is a gather."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robocache_ros.datasets.loader.batch import Batch
from robocache_ros.datasets.loader.packing import NEVER, is_time
from robocache_ros.datasets.loader.reading import Sample
from robocache_ros.datasets.loader.workers.batch_prefetch import Prefetcher
from robocache_ros.errors import RoboCacheError

ITEMS_PER_READ = 16
SHARE = 0.5  # of the free memory that the cache may use: packing needs room for its largest tensor twice
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
        self._texts = {key: [text for part in parts for text in part.texts[key]] for key in first.texts}
        self._tensors: dict[str, Tensor] = {}
        for key in [key for key in first.tensors if key not in ("length", "index")]:
            packed = torch.cat([part.tensors.pop(key) for part in parts])
            self._tensors[key] = packed.pin_memory() if pinned else packed

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors.values())

    def batch(self, samples: Sequence[Sample]) -> tuple[Batch | None, tuple[tuple[int, str], ...]]:
        """Return a batch as the workers read it, None if it has no sample; and the samples that cannot be read."""
        skipped: tuple[tuple[int, str], ...] = ()
        if self.skipped:
            skipped = tuple((s.number, self.skipped[s.item]) for s in samples if s.item in self.skipped)
            samples = [sample for sample in samples if sample.item not in self.skipped]
        if not samples:
            return None, skipped
        wanted = np.array(samples, np.int64)  # (B, 4), the fields of `Sample`
        rows = self._rows[wanted[:, 1]]
        counts = np.where(wanted[:, 3] > 0, wanted[:, 3], self._lengths[rows])
        starts = self._starts[rows] + wanted[:, 2]
        ticks = np.arange(counts.max())
        places = starts[:, None] + np.minimum(ticks, counts[:, None] - 1)
        padding = None if (counts == counts[0]).all() else torch.from_numpy(ticks >= counts[:, None]).to(self._device)
        index, row_index = torch.from_numpy(places.ravel()), torch.from_numpy(rows)
        found = {}
        for key, tensor in self._tensors.items():
            if key not in self._per_tick:
                found[key] = self._gathered(tensor, row_index)
                continue
            found[key] = self._gathered(tensor, index).view(*places.shape, *tensor.shape[1:])
            if padding is not None:
                mask = padding.view(*padding.shape, *(1,) * (tensor.ndim - 1))
                found[key].masked_fill_(mask, NEVER if is_time(key) else 0)
        numbers = tuple(sample.number for sample in samples)
        found["length"] = torch.from_numpy(counts).to(self._device)
        found["index"] = torch.tensor(numbers).to(self._device)
        texts = {key: tuple(words[row] for row in rows) for key, words in self._texts.items()}
        lengths = tuple(counts.tolist())
        return Batch(found, numbers, lengths, self._per_tick, texts, self._widths), skipped

    def _gathered(self, tensor: Tensor, index: Tensor) -> Tensor:
        if tensor.device == self._device:
            return tensor.index_select(0, index.to(self._device))
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
