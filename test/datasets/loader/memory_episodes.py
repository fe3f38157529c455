"""Small datasets in memory, whose values tell which sample they are from, and episodes with streams of every kind."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from robocache_ros.datasets import Augmentation, SourceEpisode, Stream

CHANGES = Augmentation(
    {"proprio": 0.1}, dropout=0.3, crop=(5, 4), shift=2, brightness=0.2, contrast=0.2, saturation=0.5
)
STATISTICS = {"mean": [1.0, 2.0, 3.0], "std": [0.5, 0.0, 3.0]}
CHANGED = {"augmentation": CHANGES, "statistics": {"actions": STATISTICS}}


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


def order_of(batches: list[dict[str, Any]]) -> list[list[int]]:
    """The numbers of the samples of each batch."""
    return [batch["index"].tolist() for batch in batches]


# Episodes in memory with streams of every kind: several rates and alignments, images, and marks of an export.


class MovingStreams:
    """`count` episodes of different lengths.

    Args:
        count: of the episodes.
        images: of two cameras: `arrays`, `png` or `jpeg` files; empty: none.
        marks: streams as of an export, some of whose samples are absent or held.
        limits: a stream has one of so many limits in turn.
    """

    def __init__(self, count: int = 5, images: str = "arrays", *, marks: bool = False, limits: int = 1) -> None:
        self.count, self.images, self.marks, self.limits = count, images, marks, limits
        self.broken: tuple[int, ...] = ()  # episodes with an image that ends in the middle

    def __len__(self) -> int:
        return self.count

    def span_ns(self, index: int) -> tuple[int, int]:
        return 0, 150_000_000 + 50_000_000 * index

    def read(self, index: int) -> SourceEpisode:
        random = np.random.default_rng(index)
        end = self.span_ns(index)[1]

        def stamps(period_ms: float, start_ms: float = 0) -> np.ndarray:
            found = np.arange(start_ms * 1e6, end, period_ms * 1e6).astype(np.int64)
            return np.append(found[:-1] + random.integers(0, 300_000, len(found) - 1) * (found[:-1] > 0), end)

        def vector(name: str, period_ms: float, width: int, start_ms: float = 0, **about: object) -> Stream:
            at = stamps(period_ms, start_ms)
            values = random.standard_normal((len(at), width)).astype(np.float32)
            if about.get("align") == "slerp":
                values /= np.linalg.norm(values, axis=1, keepdims=True)
            if self.marks:
                valid = random.integers(0, 3, len(at)).astype(np.uint8)
                valid[0] = 1
                about |= {"valid": valid, "age_ns": random.integers(0, 9_000_000, len(at))}
            return Stream(name, at, values, period_ms < 20, **about)  # type: ignore[arg-type]

        periods = {"a": 33, "b": 100} if self.images else {}
        cameras = [self._camera(f"vision/{name}", stamps(period), index) for name, period in periods.items()]
        streams = [
            vector("actions", 50, 3, 60, role="action"),
            vector("joints", 3, 2, max_gap_ns=20_000_000, max_age_ns=30_000_000),
            *cameras,
            vector("quaternion", 10, 4, 20, align="slerp"),
            vector("rewards", 50, 1, role="reward"),
            vector("gripper", 20, 1, align="nearest", max_age_ns=4_000_000 + index % self.limits),
        ]
        return SourceEpisode({stream.name: stream for stream in streams}, f"task {index}", "moving", f"moving/{index}")

    def _camera(self, name: str, stamps: np.ndarray, index: int) -> Stream:
        random = np.random.default_rng(len(stamps))
        pictures = random.integers(0, 255, (len(stamps), 1, 1, 3)) + np.arange(16)[:, None, None] * np.ones((16, 16, 1))
        arrays = np.clip(pictures, 0, 255).astype(np.uint8)
        if self.images == "arrays":
            return Stream(name, stamps, arrays, True)
        files = [_file(array, self.images) for array in arrays]
        if index in self.broken:
            files[1] = files[1][:-40]
        return Stream(name, stamps, files, True)


def _file(array: np.ndarray, kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind)
    return file.getvalue()
