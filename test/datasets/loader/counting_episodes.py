"""A small dataset in memory, whose values tell which sample they are from."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np


class Counting:
    """`count` episodes of different lengths; the values of episode i are i + tick / 100."""

    def __init__(self, count: int = 13, *, broken: tuple[int, ...] = (), nan: tuple[int, ...] = ()) -> None:
        self.count, self.broken, self.nan = count, broken, nan

    @property
    def lengths(self) -> list[int]:
        return [1 + index % 5 for index in range(self.count)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.broken:
            raise OSError(f"shard-{index}.tfrecord: record 3 is damaged")
        ticks = self.lengths[index]
        values = (index + np.arange(ticks)[:, None] / 100 + np.zeros((1, 3))).astype(np.float32)
        if index in self.nan:
            values[-1, 1] = np.nan
        return {
            "proprio": values,
            "vision": np.full((ticks, 2, 8, 6, 3), index % 200, np.uint8) + np.arange(8, dtype=np.uint8)[:, None, None],
            "valid": np.ones((ticks, 1), np.uint8),
            "tick_ns": np.arange(ticks, dtype=np.int64) * 20_000_000,
            "measured": np.ones(1, bool),
            "length": ticks,
            "language": f"task {index}",
        }


class KillsItsWorker(Counting):
    """Kills the process that reads an episode, as often as there are files in a folder."""

    def __init__(self, folder: Path, victims: tuple[int, ...], times: int = 1) -> None:
        super().__init__()
        self.folder, self.victims = folder, victims
        for victim in victims:
            for life in range(times):
                (folder / f"{victim}-{life}").touch()

    def __getitem__(self, index: int) -> dict[str, Any]:
        for life in self.folder.glob(f"{index}-*"):
            life.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Surroundings(Counting):
    """Items with what a worker has of its own."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = super().__getitem__(index)
        return {**item, "random": np.random.rand(1), "environment": os.environ.get("COUNTED", "")}  # noqa: NPY002


def same(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> bool:
    """Whether two sequences of batches are the same, bit for bit."""
    return len(first) == len(second) and all(
        a.keys() == b.keys()
        and all(a[key] == b[key] if isinstance(a[key], list) else a[key].equal(b[key]) for key in a)
        for a, b in zip(first, second, strict=True)
    )


def order_of(batches: list[dict[str, Any]]) -> list[list[int]]:
    """The numbers of the samples of each batch."""
    return [batch["index"].tolist() for batch in batches]
