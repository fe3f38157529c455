"""Synthetic episodes of streams of different rates and of variable length, in one HDF5 file, and their reader."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets import SourceEpisode, Stream
from robocache_ros.extras import need


@dataclass(frozen=True)
class RawStream:
    """A stream of the synthetic episodes."""

    name: str
    rate_hz: float
    width: int
    role: str = "observation"


# 270 observed columns, as in the published training step, and 7 actions.
STREAMS = (
    RawStream("vision_features", 30, 256),
    RawStream("joints", 333, 7),
    RawStream("wrench", 100, 7),
    RawStream("command", 50, 7, "action"),
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


@dataclass
class MixedRateEpisodes:
    """The episodes of such a file. It is opened once in each process."""

    path: Path
    _file: Any = field(default=None, repr=False)
    _process: int = -1
    _spans: dict[int, tuple[int, int]] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_file": None, "_process": -1}

    @property
    def file(self) -> Any:
        """The file, opened by this process."""
        if self._process != os.getpid():
            self._file, self._process = need("h5py", "hdf5").File(self.path, "r"), os.getpid()
        return self._file

    def __len__(self) -> int:
        return len(self.file)

    def read(self, index: int) -> SourceEpisode:
        """Return an episode."""
        group = self.file[f"episode_{index}"]
        streams = {
            about.name: Stream(
                about.name,
                group[f"{about.name}/stamps_ns"][:],
                group[f"{about.name}/values"][:],
                measured=True,
                role=about.role,
            )
            for about in STREAMS
        }
        return SourceEpisode(streams, "reach", "mixed rates", f"{self.path}: episode_{index}")

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        if index not in self._spans:
            group = self.file[f"episode_{index}"]
            stamps: list[NDArray[np.int64]] = [group[f"{about.name}/stamps_ns"] for about in STREAMS]
            self._spans[index] = min(int(each[0]) for each in stamps), max(int(each[-1]) for each in stamps)
        return self._spans[index]
