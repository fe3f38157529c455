"""A dataset format of another package: an episode of steps at 10 Hz."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from robocache_ros.datasets import SourceEpisode, Stream


class OneEpisode:
    def __init__(self, path: str | Path, *, steps: int = 5) -> None:
        self.path, self.steps = path, steps

    def __len__(self) -> int:
        return 1

    def read(self, index: int) -> SourceEpisode:
        values = np.arange(self.steps, dtype=np.float32)[:, None]
        proprio = Stream("proprio", np.arange(self.steps) * 100_000_000, values, measured=False)
        return SourceEpisode({"proprio": proprio}, task="lift", dataset="one", source=f"{self.path}: {index}")

    def span_ns(self, index: int) -> tuple[int, int]:
        return 0, (self.steps - 1) * 100_000_000


WRITTEN = SimpleNamespace(reader=OneEpisode)  # as a `DatasetFormat` with a reader
