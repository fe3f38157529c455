"""Several datasets with weights, as one map-style dataset whose order follows from a seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from robocache_ros.datasets.mapping.common_layout import CommonLayout, load_layout
from robocache_ros.datasets.mapping.mapped_episodes import MappedEpisodes
from robocache_ros.datasets.timeline_dataset import TimelineDataset
from robocache_ros.datasets.unaligned import Unaligned
from robocache_ros.errors import RoboCacheError, printable

MAX_SAMPLES = 100_000_000


class WeightedMixture(Dataset[dict[str, Any]]):
    """A mixture: each sample of an epoch is drawn from a dataset with a probability in proportion to its weight.

    The samples of a dataset are used in a random order, all of them before one is used again. The order follows from
    `seed` and the epoch.

    Args:
        datasets: by name.
        weights: of each dataset: its probability is weight / sum of weights.
        layout: the common layout of all samples, a YAML file or what it contains; see `load_layout`. Its `image_size`
            replaces that of the datasets. None: the layout of each dataset.
        samples: number of samples of an epoch; None: the number of samples of all datasets.
        seed: of the order.

    Errors:
        RoboCacheError: a weight is missing or not positive, a dataset is empty, rates differ, or the layout is wrong.
    """

    def __init__(
        self,
        datasets: Mapping[str, TimelineDataset],
        weights: Mapping[str, float],
        *,
        layout: str | Path | Mapping[str, Any] | None = None,
        samples: int | None = None,
        seed: int = 0,
    ) -> None:
        for name, dataset in datasets.items():
            weight = weights.get(name, 0.0)
            if not (0 < weight < math.inf and len(dataset)):
                raise RoboCacheError(
                    f"{printable(name, 40)}: weight {weight!r}, {len(dataset)} samples; give a positive weight and data"
                )
        rates = {dataset.rate_hz: name for name, dataset in datasets.items()}
        if len(rates) > 1:
            told = ", ".join(f"{printable(name, 40)} {rate_hz} Hz" for rate_hz, name in list(rates.items())[:2])
            raise RoboCacheError(f"datasets: ticks of different rates, {told}; open all with one target_hz")
        count = sum(len(dataset) for dataset in datasets.values()) if samples is None else samples
        if not datasets or not 0 < count <= MAX_SAMPLES:
            raise RoboCacheError(f"samples: {count:,} of {len(datasets)} datasets; 1 to {MAX_SAMPLES:,} are possible")
        self.layout = None if layout is None else load_layout(layout)
        if self.layout is not None:
            datasets = {name: _in_layout(dataset, name, self.layout) for name, dataset in datasets.items()}
        self.datasets, self.names = tuple(datasets.values()), tuple(datasets)
        self._shares = np.array([weights[name] for name in self.names], np.float64)
        self._shares /= self._shares.sum()
        self._count, self._seed = count, seed
        self.set_epoch(0)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        dataset, sample = self.place(index)
        return {**self.datasets[dataset][sample], "dataset": self.names[dataset]}

    def undecoded(self, index: int) -> dict[str, Any]:
        """Return a sample as `TimelineDataset.undecoded` does, and the name of its dataset."""
        dataset, sample = self.place(index)
        return {**self.datasets[dataset].undecoded(sample), "dataset": self.names[dataset]}

    def unaligned(self, index: int) -> Unaligned:
        """Return a sample before its streams are aligned.

        Errors:
            DatasetError: a file or a record is missing or damaged.
        """
        dataset, sample = self.place(index)
        found = self.datasets[dataset].unaligned(sample)
        return replace(found, texts={**found.texts, "dataset": self.names[dataset]})

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of an epoch."""
        random = np.random.default_rng((self._seed, epoch))
        self._dataset = random.choice(len(self.datasets), self._count, p=self._shares).astype(np.int32)
        self._sample = np.empty(self._count, np.int64)
        for index, dataset in enumerate(self.datasets):
            places = np.flatnonzero(self._dataset == index)
            size = len(dataset)
            rounds = [random.permutation(size) for _ in range(-(-len(places) // size))]
            self._sample[places] = np.concatenate(rounds)[: len(places)] if rounds else []

    def place(self, index: int) -> tuple[int, int]:
        """Return the dataset of a sample, and the index of the sample in it."""
        if not -self._count <= index < self._count:
            raise IndexError(f"index {index} of {self._count} samples")
        return int(self._dataset[index]), int(self._sample[index])


def _in_layout(dataset: TimelineDataset, name: str, layout: CommonLayout) -> TimelineDataset:
    if name not in layout.origins:
        known = printable(", ".join(layout.origins), 80)
        raise RoboCacheError(f"datasets.{printable(name, 40)}: not in the layout, which has {known}; add it")
    made = dataset.of_source(MappedEpisodes(dataset.source, layout.streams, layout.origins[name]))
    made.image_size = None  # that of each camera of the layout, which resizes the stored images once
    return made
