"""Synthetic episodes of streams of different rates and of variable length, in one HDF5 file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robocache_ros.datasets import Hdf5Trajectories, TimelineDataset, Window
from robocache_ros.extras import need


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


def write_episodes(path: Path, count: int, seconds: tuple[float, float] = (5.5, 9.0), seed: int = 0) -> int:
    """Write episodes of random length; stamps have jitter. Returns the size of the file in bytes.

    The action is a function of the observations, so that a policy can learn it.
    """
    h5py = need("h5py", "hdf5")
    random = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        for episode in range(count):
            length_s = random.uniform(*seconds)
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
