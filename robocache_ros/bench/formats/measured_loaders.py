"""The sources of batches that are measured. Their workers start together, once for all sizes of batches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from robocache_ros.bench.formats.batch_rates import warm_up
from robocache_ros.bench.scaling.rates import endless
from robocache_ros.bench.training.interpolating_dataset import InterpolatingDataset, data_loader
from robocache_ros.bench.training.mixed_rate_episodes import mixed_rate_dataset
from robocache_ros.datasets import TimelineDataset, TimelineLoader, Window
from robocache_ros.datasets.loader.epochs import Epochs
from robocache_ros.datasets.loader.runs.run_order import make_order
from robocache_ros.training.training_data import open_for_training

WINDOW = Window(n_obs=16, horizon=16)
READ, CACHED = "read", "cached"
PEERS = {"DataLoader, 8 workers, np.interp": False, "DataLoader, a worker a core, whole arrays": True}
SMALL = 16  # samples of the batches with which workers start


class ResizableLoader(TimelineLoader):
    """A `TimelineLoader` that keeps its workers and its cache when the size of its batches changes."""

    def resize(self, batch_size: int) -> None:
        """Make the batches of the following epochs of another size. What was read ahead is discarded."""
        order = self._order
        self.batch_size = batch_size
        self._order = make_order(
            self._shuffle, self._samples, batch_size, order.seed, order.drop_last, order.rank, order.world_size
        )
        self._epochs = Epochs(self._order, self._samples)

    def rest(self) -> None:
        """Wait for what workers are reading ahead, and discard it."""
        for _ in self._prefetcher.batches(iter(()), 0, self._widths, self._finish):
            pass


class MeasuredLoaders:
    """The loaders of some sets.

    Args:
        sets: path of each set, by the name of its format.
        workers: of a loader that reads; 0: this process reads.
        device: of the batches.
    """

    def __init__(self, sets: Mapping[str, Path], workers: int, device: torch.device) -> None:
        self._sets, self._device = sets, device
        self.workers = {READ: workers, CACHED: 0}  # one pass fills a cache, sooner than workers start
        self.workers |= {name: workers and (os.cpu_count() or 1 if careful else 8) for name, careful in PEERS.items()}
        self._loaders: dict[tuple[str, str], ResizableLoader] = {}

    def start(self) -> None:
        """Start the workers of all sets at the same time, which takes most of a benchmark otherwise."""
        for name in self._sets:
            with suppress(Exception):  # raised again, and reported, when the set is measured
                self.loader(name, READ)
        for name in self._sets:
            with suppress(Exception):
                warm_up(endless(self.loader(name, READ)), 2 * self.workers[READ])
                self.rest(name, READ, last=False)

    def batches(self, name: str, form: str, batch_size: int) -> Iterator[Any]:
        """Return the batches of a set in one of the forms, epoch after epoch, after a batch of each of its workers.

        Errors:
            RoboCacheError: the set cannot be read.
        """
        batches = endless(self._source(name, form, batch_size))
        return warm_up(batches, max(1, self.workers[form]) * (2 if form in PEERS else 1))  # those of peers start

    def rest(self, name: str, form: str, *, last: bool) -> None:
        """Make the workers of a loader rest while others are measured; end them if it is not used again."""
        if last and (name, form) in self._loaders:
            self._loaders.pop((name, form)).close()
        elif (name, form) in self._loaders:
            self._loaders[name, form].rest()

    def _source(self, name: str, form: str, batch_size: int) -> Iterable[Any]:
        if form in PEERS:
            dataset = InterpolatingDataset(self._sets[name], WINDOW, keep_open=PEERS[form])
            return data_loader(dataset, batch_size, self.workers[form], self._device)
        loader = self.loader(name, form)
        loader.resize(batch_size)
        return loader

    def loader(self, name: str, form: str) -> ResizableLoader:
        """Return the loader of a set, which is made once."""
        if (name, form) not in self._loaders:
            where = "device" if self._device.type == "cuda" else "host"
            self._loaders[name, form] = ResizableLoader(
                _opened(name, self._sets[name]),
                SMALL,
                shuffle=True,
                drop_last=True,
                device=self._device,
                workers=self.workers[form],
                cache=where if form == CACHED else "none",
            )
        return self._loaders[name, form]

    def close(self) -> None:
        """End the workers."""
        for loader in self._loaders.values():
            loader.close()


def _opened(name: str, path: Path) -> TimelineDataset:
    if name == "hdf5":
        return mixed_rate_dataset(path, WINDOW)
    return open_for_training(path, file_format=name, rate_hz=30 if name == "calvin" else 50, window=WINDOW)
