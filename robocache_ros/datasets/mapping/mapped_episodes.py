"""The episodes of a dataset in the layout of a mixture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.episode_source import DatasetError, EpisodeSource, SourceEpisode, Stream
from robocache_ros.datasets.mapping.common_layout import CommonStream, Origin
from robocache_ros.datasets.mapping.resized_frames import resized
from robocache_ros.errors import printable


class MappedEpisodes:
    """The episodes of a source with the streams of a layout, in its order.

    A stream that the dataset does not have is absent at every tick: `valid` is 0 and its values are 0.

    Args:
        source: the episodes.
        streams: of the layout.
        origins: by the name of a stream, where it comes from in this dataset.
    """

    def __init__(self, source: EpisodeSource, streams: tuple[CommonStream, ...], origins: Mapping[str, Origin]) -> None:
        self.source, self._streams, self._origins = source, streams, dict(origins)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files by which a change of the dataset is noticed."""
        return tuple(getattr(self.source, "files", ()))

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> SourceEpisode:
        """Return an episode.

        Errors:
            DatasetError: the dataset has no such stream or column, or its episode cannot be read.
        """
        episode = self.source.read(index)
        span = np.unique(np.array(episode.span_ns(), np.int64))
        found = {}
        for stream in self._streams:
            origin = self._origins.get(stream.name)
            made = _absent(stream, span) if origin is None else _mapped(stream, origin, episode)
            found[made.name] = made
        return replace(episode, streams=found)

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        return self.source.span_ns(index)


@dataclass(frozen=True)
class BlackFrames:
    """Images of a camera that a dataset does not have."""

    count: int
    size: tuple[int, int]

    def __len__(self) -> int:
        return self.count

    def frames(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return (n, H, W, 3) zeros."""
        return np.zeros((len(rows), *self.size, 3), np.uint8)


def _label(stream: CommonStream) -> str:
    if stream.image_size is not None:
        return f"vision/{stream.name}"
    return "rewards" if stream.role == "reward" else stream.name


def _absent(stream: CommonStream, stamps: NDArray[np.int64]) -> Stream:
    values: Any = np.zeros((len(stamps), stream.dim), np.float32)
    if stream.image_size is not None:
        values = BlackFrames(len(stamps), stream.image_size)
    none = np.zeros(len(stamps), np.uint8)
    return Stream(
        _label(stream), stamps, values, False, stream.role, stream.align, valid=none, age_ns=none.astype(np.int64)
    )


def _mapped(stream: CommonStream, origin: Origin, episode: SourceEpisode) -> Stream:
    where = f"{episode.source}: {printable(origin.stream, 40)}"
    given = episode.streams.get(origin.stream)
    if given is None:
        known = printable(", ".join(episode.streams), 80)
        raise DatasetError(f"{where}: no such stream; there are {known}; correct the layout")
    align = stream.align or given.align
    if stream.image_size is not None:
        if not given.is_image or given.modality != "vision":
            raise DatasetError(f"{where}: not a camera; correct the layout")
        made = resized(given, stream.image_size, stream.resize, episode.source)
        return replace(made, name=_label(stream), role=stream.role, align=align)
    if given.is_image:
        raise DatasetError(f"{where}: images, and the layout has {stream.dim} columns; correct the layout")
    assert isinstance(given.values, np.ndarray)
    columns = _columns(origin, given, stream.dim, where)
    scale, offset = np.array(origin.scale, np.float32), np.array(origin.offset, np.float32)
    values = given.values[:, columns] * scale + offset
    return replace(given, name=_label(stream), values=np.ascontiguousarray(values), role=stream.role, align=align)


def _columns(origin: Origin, given: Stream, dim: int, where: str) -> list[int]:
    """Return the indices of the columns of a stream of numbers."""
    assert isinstance(given.values, np.ndarray)
    width = given.values.shape[1]
    if origin.columns is None and width != dim:
        raise DatasetError(f"{where}: {width} columns, and the layout has {dim}; give columns in the layout")
    found = []
    for column in range(width) if origin.columns is None else origin.columns:
        index = column
        if isinstance(column, str):
            if column not in given.columns:
                known = printable(", ".join(given.columns), 60) or "none"
                raise DatasetError(f"{where}: no column {printable(column, 40)}; its names are {known}; use an index")
            index = given.columns.index(column)
        if not isinstance(index, int) or index >= width:
            raise DatasetError(f"{where}: no column {index}, it has {width}; correct the layout")
        found.append(index)
    return found
