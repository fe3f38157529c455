"""The rows that the windows of a dataset share, each once: a batch is a gather of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.datasets.loader.batch import Batch
from robocache_ros.datasets.loader.cache.cached_batches import CachedBatches, Gathered, Numbers, Skipped
from robocache_ros.datasets.loader.cache.free_memory import choose_place
from robocache_ros.datasets.loader.epochs import Request
from robocache_ros.datasets.loader.reading import CHUNKS, Sample
from robocache_ros.datasets.loader.samples import Samples
from robocache_ros.datasets.loader.workers.batch_prefetch import Prefetcher
from robocache_ros.datasets.sample_window import Window

TICKS_PER_READ = 64
WHOLE_READ = Window(TICKS_PER_READ, TICKS_PER_READ, 1 - TICKS_PER_READ)  # ticks up to a sample's, with their actions
SHARE = 0.8  # of the free memory that the cache may use
OWN = ("is_pad", "action_is_pad", "length", "index")  # what depends on the window
_LOG = logging.getLogger("robocache_ros.datasets.loader")


class Rows(NamedTuple):
    """N ticks of all episodes, one after the other: the number of a window is that of its tick."""

    observed: dict[str, Tensor]  # (N, ...)
    acted: dict[str, Tensor]  # (N, ...)
    constant: dict[str, Tensor]  # (N, ...) what all ticks of an episode have in common
    texts: dict[str, NDArray[Any]]  # (N,) of str


class WindowCache(CachedBatches):
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

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        tables = (self._data.observed, self._data.acted, self._data.constant)
        return sum(tensor.numel() * tensor.element_size() for table in tables for tensor in table.values())

    def sample_bytes(self, samples: Samples) -> int | None:
        """See `CachedBatches`."""
        data, window = self._data, self._window
        return sum(
            rows * tensor[:1].numel() * tensor.element_size()
            for rows, table in ((window.n_obs, data.observed), (window.horizon, data.acted), (1, data.constant))
            for tensor in table.values()
        )

    def readable(self, numbers: Numbers, samples: Samples) -> tuple[Numbers, Skipped]:
        """See `CachedBatches`."""
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
        """See `CachedBatches`."""
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
) -> WindowCache | None:
    """Read the episodes of a dataset of windows and keep them, if they fit; see `filling.filled`."""
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
            place = choose_place(where, _row_bytes(first) * ends[-1], f"{ends[-1]:,} ticks", SHARE, device)
            if place is None:
                return None
            rows = _empty(first, int(ends[-1]), place, pinned=place.type == "cpu" and device.type == "cuda")
        assert rows is not None
        _keep(rows, item.batch, begin, stop)
    if rows is None or first is None:
        return None  # no tick can be read: the epoch reports it
    cache = WindowCache(rows, unreadable, ends, dataset.window, first, device)
    _LOG.info("cache: %d ticks of %d episodes, %.1f MiB", ends[-1], len(ends), cache.nbytes / 2**20)
    return cache


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
    """The bytes of a tick."""
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
