"""Synthetic episodes of streams of different rates, and how they are commonly loaded: np.interp in a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from robocache_ros.datasets import Hdf5Trajectories, TimelineDataset, Window
from robocache_ros.extras import need

# Synthetic episodes of streams of different rates and of variable length, in one HDF5 file.


@dataclass(frozen=True)
class RawStream:
    """A stream of the synthetic episodes."""

    name: str
    rate_hz: float
    width: int
    role: str = "observation"


# 270 observed columns, as in the published training step, and 7 actions; in the order in which they are read.
STREAMS = (
    RawStream("features", 30, 256),
    RawStream("joints", 333, 7),
    RawStream("wrench", 100, 7),
    RawStream("actions", 50, 7, "action"),
)
COLUMNS = sum(stream.width for stream in STREAMS if stream.role == "observation")
ACTIONS = 7


def write_episodes(path: Path, count: int, seed: int = 0) -> int:
    """Write episodes of random length; stamps have jitter. Returns the size of the file in bytes.

    The action is a function of the observations, so that a policy can learn it.
    """
    h5py = need("h5py", "hdf5")
    random = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        for episode in range(count):
            length_s = random.uniform(5.5, 9.0)
            phases = random.uniform(0, 6, 300)
            group = file.create_group(f"episode_{episode}")
            for stream in STREAMS:
                size = int(length_s * stream.rate_hz)
                period_ns = 1e9 / stream.rate_hz
                stamps = ((np.arange(size) + random.uniform(0, 0.3, size)) * period_ns).astype(np.int64)
                seconds_of = stamps[:, None] / 1e9
                values = np.sin(seconds_of * 2 + phases[: stream.width]).astype(np.float32)
                group.create_dataset(f"{stream.name}/stamps_ns", data=stamps)
                group.create_dataset(f"{stream.name}/values", data=values)
    return path.stat().st_size


def mixed_rate_dataset(path: Path, window: Window | None) -> TimelineDataset:
    """Return the episodes of such a file as a dataset of this package."""
    source = Hdf5Trajectories(path, roles={stream.name: stream.role for stream in STREAMS})
    return TimelineDataset(source, window=window, modalities=("proprio",))


# The baseline: torch's DataLoader with np.interp in its workers, as it is commonly written.


class InterpolatingDataset(Dataset[dict[str, Tensor]]):
    """Windows of the synthetic episodes, interpolated at 50 Hz column by column.

    Args:
        path: of the episodes.
        window: the ticks of a sample; past the ends of an episode they repeat.
        keep_open: keep the file open and blend whole arrays, which a careful engineer does; else open the file for each
            sample and call np.interp for each column.
    """

    def __init__(self, path: Path, window: Window, *, keep_open: bool) -> None:
        self.path, self.window, self.keep_open = path, window, keep_open
        self._file: Any = None
        with need("h5py", "hdf5").File(path, "r") as file:
            ends = [
                max(float(file[f"episode_{k}/{s.name}/stamps_ns"][-1]) for s in STREAMS) / 1e9 for k in range(len(file))
            ]
        self.places = [(k, tick) for k, end in enumerate(ends) for tick in range(int(end * 50) + 1)]
        self.ticks = [int(end * 50) for end in ends]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        episode, tick = self.places[index]
        if self.keep_open:
            self._file = self._file or need("h5py", "hdf5").File(self.path, "r")
            return self._sample(self._file[f"episode_{episode}"], tick, self.ticks[episode])
        with need("h5py", "hdf5").File(self.path, "r") as file:
            return self._sample(file[f"episode_{episode}"], tick, self.ticks[episode])

    def _sample(self, group: Any, tick: int, last: int) -> dict[str, Tensor]:
        observed = np.clip(tick + np.arange(1 - self.window.n_obs, 1), 0, last) / 50
        rows = tick + self.window.action_offset + np.arange(self.window.horizon)
        acted = np.clip(rows, 0, last) / 50
        blend = _whole_array if self.keep_open else _by_column
        parts: dict[str, list[Any]] = {"observation": [], "action": []}
        for stream in STREAMS:
            stamps = group[f"{stream.name}/stamps_ns"][:] / 1e9
            values = group[f"{stream.name}/values"][:]
            times = observed if stream.role == "observation" else acted
            parts[stream.role].append(blend(times, stamps, values))
        proprio, actions = (np.concatenate(parts[role], axis=1).astype(np.float32) for role in parts)
        return {
            "proprio": torch.from_numpy(proprio),
            "actions": torch.from_numpy(actions),
            "action_is_pad": torch.from_numpy(rows > last),
        }


class OnDevice:
    """Batches of a DataLoader on the device of the training, epoch after epoch."""

    def __init__(self, loader: DataLoader[dict[str, Tensor]], device: torch.device) -> None:
        self._loader, self._device = loader, device

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for batch in self._loader:
            yield {key: value.to(self._device, non_blocking=True) for key, value in batch.items()}


def data_loader(dataset: InterpolatingDataset, batch_size: int, workers: int, device: torch.device) -> OnDevice:
    """Return the batches of the baseline: pinned memory, two batches per worker, workers that stay."""
    options: dict[str, Any] = {"prefetch_factor": 2, "persistent_workers": True} if workers else {}
    loader = DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        drop_last=True,
        generator=torch.Generator().manual_seed(0),
        **options,
    )
    return OnDevice(loader, device)


def _by_column(times: Any, stamps: Any, values: Any) -> Any:
    return np.stack([np.interp(times, stamps, values[:, k]) for k in range(values.shape[1])], axis=1)


def _whole_array(times: Any, stamps: Any, values: Any) -> Any:
    upper = np.clip(np.searchsorted(stamps, times), 1, len(stamps) - 1)
    lower = upper - 1
    share = np.clip((times - stamps[lower]) / (stamps[upper] - stamps[lower]), 0, 1)[:, None].astype(np.float32)
    return values[lower] + share * (values[upper] - values[lower])
