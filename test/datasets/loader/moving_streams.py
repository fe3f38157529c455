"""Episodes in memory with streams of every kind: several rates and alignments, images, and marks of an export."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from robocache_ros.datasets import SourceEpisode, Stream


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
