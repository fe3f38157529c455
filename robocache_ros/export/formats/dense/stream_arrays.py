"""The streams of a dataset as dense arrays with one row per tick."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.export.dataset.episode import Episode, StoredArrays
from robocache_ros.export.dataset.exported_dataset import ExportedDataset
from robocache_ros.export.dataset.row_columns import runs
from robocache_ros.spec import StreamSpec


@dataclass(frozen=True)
class VectorArray:
    """An array of numbers, small enough to read a whole episode at once."""

    name: str
    shape: tuple[int, ...]  # of a row
    dtype: str
    read: Callable[[Episode], NDArray[Any]]  # (T, *shape)


@dataclass(frozen=True)
class MediaArray:
    """An array of images or voxels, read row by row."""

    name: str
    shape: tuple[int, ...]  # of a row; images: (H, W, C)
    dtype: str
    is_image: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def runs(self, episode: Episode) -> Iterator[tuple[int, int, NDArray[Any] | None]]:
        """Yield (start, stop, value) for the ticks of an episode. Adjacent ticks may share a value; None: no value."""
        has, name = episode.has(self.name), self.name
        stored = episode.arrays(name) if name in episode.array_streams else episode.images(name, "raw")
        samples = np.where(has, stored.samples, -1)
        for start, stop, sample in runs(samples):
            if sample < 0:
                yield start, stop, None
            elif isinstance(stored, StoredArrays):
                value = stored[start]
                yield start, stop, np.moveaxis(value, 0, -1) if self.is_image and value is not None else value
            else:
                yield start, stop, stored.array(start)


def vectors(dataset: ExportedDataset, role: str) -> list[VectorArray]:
    """Return the vector streams of a role, each with its own shape: (dim,), of a window (samples, dim)."""
    return [_vector(stream) for stream in dataset.spec.vectors if stream.role == role]


def media(dataset: ExportedDataset) -> list[MediaArray]:
    """Return the images and voxels that the pieces store, in the order of the spec."""
    found = []
    for stream in dataset.spec.media:
        if stream.name in dataset.pictures:
            height, width = dataset.pictures[stream.name].shape
            found.append(MediaArray(stream.name, (height, width, 3), "uint8", True))
        elif stream.name in dataset.arrays:
            info, image = dataset.arrays[stream.name], stream.kind == "image"
            shape = (*info.shape[1:], info.shape[0]) if image else info.shape
            found.append(MediaArray(stream.name, shape, "uint8" if info.dtype == "bits" else info.dtype, image))
    return found


def tick_columns(dataset: ExportedDataset) -> list[VectorArray]:
    """Return what is known of each tick beside its values: times, validity and ages. N streams in the spec's order."""
    n = len(dataset.spec.streams)
    columns = [
        VectorArray("tick_ns", (), "int64", lambda episode: episode.ticks_ns),
        VectorArray("stamp_ns", (n,), "int64", lambda episode: episode.stamps_ns),
        VectorArray("valid", (n,), "uint8", lambda episode: episode.valid),
        VectorArray("age_ns", (n,), "int64", lambda episode: episode.age_ns),
    ]
    return columns + [column for s in dataset.spec.vectors if s.rows for column in _window_columns(s)]


def _vector(stream: StreamSpec) -> VectorArray:
    return VectorArray(stream.name, stream.shape, "float32", lambda episode: episode.vector(stream.name))


def _window_columns(stream: StreamSpec) -> tuple[VectorArray, VectorArray]:
    name = stream.name
    return (
        VectorArray(f"mask.{name}", (stream.rows,), "uint8", lambda e: (e.window_ages_ms(name) >= 0).astype(np.uint8)),
        VectorArray(f"sample_age_ms.{name}", (stream.rows,), "float32", lambda e: e.window_ages_ms(name)),
    )
