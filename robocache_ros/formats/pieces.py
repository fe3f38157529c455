"""What a piece contains: rows in a file per column, their features, and contents.json."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine.frames import Frames
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.columns import MAX_BYTES
from robocache_ros.formats.read import ACTION, AGE, AGES, MASK, STAMP, STATE, TICK, VALID, WINDOW
from robocache_ros.formats.statistics import Histogram, Stats
from robocache_ros.formats.video import VideoPart
from robocache_ros.spec import StreamSpec
from robocache_ros.spec.layout import Layout
from robocache_ros.storage.paths import AnyPath


@dataclass(frozen=True)
class EpisodeInfo:
    """An episode: its rows are the ticks start <= tick < stop, counted from the recording's first tick."""

    start: int
    stop: int
    task: str | None = None  # as the recording states it; None: the task of the export
    success: bool | None = None  # None: unknown


FOLDER = "columns"
Rows = dict[str, NDArray[Any]]  # column -> (T,) or (T, K) values


def shapes(layout: Layout) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the dtype and the shape of a row of each column."""
    streams = len(layout.spec.streams)
    return {
        "ticks_ns": ("<i8", ()),
        "stamps_ns": ("<i8", (streams,)),  # as in the message, for lookups in the recording; 0 if there is none
        "valid": ("|u1", (streams,)),
        "age_ns": ("<i8", (streams,)),
        "fused": ("<f4", (layout.width,)),
        "sample_age_ms": ("<f4", (layout.ages,)),
    }


def rows_of(layout: Layout, frames: Frames) -> Rows:
    """Return the columns of frames."""
    latency = np.array([s.latency_ns for s in layout.spec.streams])
    ages = frames.sample_age_ms
    return {
        "ticks_ns": frames.ticks_ns,
        "stamps_ns": np.where(frames.valid > 0, frames.stamps_ns + latency, 0),
        "valid": frames.valid,
        "age_ns": frames.age_ns,
        "fused": frames.fused.numpy(),
        "sample_age_ms": np.zeros((len(frames), 0), np.float32) if ages is None else ages,
    }


class RowColumnsWriter:
    """Writes the columns of a piece."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._layout = layout
        (folder / FOLDER).mkdir()
        self._shapes = shapes(layout)
        self._files: dict[str, BinaryIO] = {name: (folder / FOLDER / name).open("wb") for name in self._shapes}

    def append(self, frames: Frames) -> None:
        """Write the next rows."""
        for name, values in rows_of(self._layout, frames).items():
            self._files[name].write(np.ascontiguousarray(values, self._shapes[name][0]).data)

    def flush(self) -> None:
        """Make all rows readable."""
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Close the files."""
        with ExitStack() as stack:
            for file in self._files.values():
                stack.callback(file.close)


def load(folder: AnyPath, layout: Layout) -> Rows:
    """Return the columns of a piece as memory-mapped arrays."""
    count, found = (folder / FOLDER / "ticks_ns").stat().st_size // 8, {}
    for name, (dtype, shape) in shapes(layout).items():
        path, whole = folder / FOLDER / name, (count, *shape)
        mapped = path.stat().st_size > 0  # an empty file, of no columns, cannot be mapped
        found[name] = np.memmap(os.fspath(path), dtype, "r", shape=whole) if mapped else np.zeros(whole, dtype)
    return found


def runs(states: NDArray[np.integer | np.bool_]) -> list[tuple[int, int, int]]:
    """Return (start, stop, state) of each run of equal values in the (T,) states."""
    if not len(states):
        return []
    edges = [0, *(np.flatnonzero(np.diff(states)) + 1).tolist(), len(states)]
    return [(start, stop, int(states[start])) for start, stop in pairwise(edges)]


@dataclass(frozen=True)
class Feature:
    """A numeric feature: K numbers per row in a shape."""

    name: str
    dtype: str  # float32 or int64
    shape: tuple[int, ...]
    names: tuple[str, ...]  # a label for each number or, for windows, for each value of a sample; empty: no labels
    columns: tuple[int, ...]  # of the column `source`
    source: str  # a column of the piece
    present: Callable[[Rows, int], NDArray[np.bool_]] | None = None  # of number k: (T,) whether it is a value

    def values(self, rows: Rows) -> NDArray[Any]:
        """Return the (T, *shape) values; missing ones are zero."""
        table = rows[self.source].reshape(len(rows[self.source]), -1)
        first, last = self.columns[0], self.columns[-1]
        adjacent = last - first == len(self.columns) - 1
        chosen = table[:, first : last + 1] if adjacent else table[:, self.columns]
        return self._converted(chosen).reshape(len(table), *self.shape)

    def column(self, rows: Rows, k: int) -> NDArray[Any]:
        """Return the (T,) values of number k for statistics, with NaN for missing ones."""
        table = rows[self.source].reshape(len(rows[self.source]), -1)
        values = self._converted(table[:, self.columns[k]])
        return values if self.present is None else np.where(self.present(rows, k), values, np.float32(np.nan))

    def _converted(self, values: NDArray[Any]) -> NDArray[Any]:
        if self.name.startswith(MASK):  # the age of a sample is negative where there is none
            return (values >= 0).astype(np.int64)
        return values.astype(self.dtype, copy=False)


def features_of(layout: Layout) -> dict[str, Feature]:
    """Return all numeric features by name."""
    features = []
    for name, role in ((STATE, "observation"), (ACTION, "action")):
        if streams := layout.vectors_of(role):
            features.append(_vector(name, layout, streams))
    for stream in layout.spec.vectors:
        if stream.rows:
            features += _window(layout, stream)
    names = layout.names
    features.append(Feature(TICK, "int64", (1,), (), (0,), "ticks_ns"))
    for name, source in ((STAMP, "stamps_ns"), (VALID, "valid"), (AGE, "age_ns")):
        features.append(Feature(name, "int64", (len(names),), names, tuple(range(len(names))), source))
    return {feature.name: feature for feature in features}


def _vector(name: str, layout: Layout, streams: Sequence[StreamSpec]) -> Feature:
    labels = tuple(f"{s.name}.{component}" for s in streams for component in s.components)
    columns = tuple(k for s in streams for k in range(layout.slots[s.name].start, layout.slots[s.name].stop))
    row = [layout.names.index(s.name) for s in streams for _ in range(s.width)]
    return Feature(
        name, "float32", (len(columns),), labels, columns, "fused", lambda rows, k: rows["valid"][:, row[k]] > 0
    )


def _window(layout: Layout, stream: StreamSpec) -> list[Feature]:
    values, ages = layout.slots[stream.name], layout.sample_ages[stream.name]
    columns, rows = tuple(range(values.start, values.stop)), tuple(range(ages.start, ages.stop))

    def present(table: Rows, k: int) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = table["sample_age_ms"][:, ages.start + k // stream.dim] >= 0
        return found

    name, n = stream.name, stream.rows
    return [
        Feature(WINDOW + name, "float32", stream.shape, stream.components, columns, "fused", present),
        Feature(MASK + name, "int64", (n,), (), rows, "sample_age_ms"),
        Feature(AGES + name, "float32", (n,), (), rows, "sample_age_ms"),
    ]


STATS_BYTES = 128 << 20  # bytes of columns that statistics are computed from at once


def feature_columns(feature: Feature, pieces: Sequence[AnyPath], layout: Layout, rows: int) -> Iterator[NDArray[Any]]:
    """Yield the values of each number of a feature in all rows of all pieces, NaN where there is none.

    Several numbers are read at a time, in bounded memory, and one piece: the number of mapped files is limited.
    """
    step = max(1, STATS_BYTES // (8 * rows))
    for first in range(0, len(feature.columns), step):
        numbers = range(first, min(first + step, len(feature.columns)))
        loaded = (load(piece, layout) for piece in pieces)
        yield from np.concatenate([np.stack([feature.column(of, k) for k in numbers]) for of in loaded], axis=1)


CONTENTS = "contents.json"


@dataclass(frozen=True)
class PictureInfo:
    """What is known of a stream of 8-bit RGB images in a piece."""

    shape: tuple[int, int]  # height and width
    codecs: dict[str, str]  # requested video codec -> the codec used
    pixel_formats: dict[str, str]  # requested video codec -> pixel format
    episodes: tuple[Histogram, ...] = ()

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> PictureInfo:
        """Restore from the summary of a `PictureWriter`."""
        height, width = raw["shape"]
        histograms = tuple(Histogram(**stated) for stated in raw["episodes"])
        return cls((height, width), raw["codecs"], raw["pixel_formats"], histograms)


@dataclass(frozen=True)
class ArrayInfo:
    """What is known of a stream of arrays (voxels, images that are not 8-bit) in a piece, or in a dataset."""

    shape: tuple[int, ...]
    dtype: str  # of NumPy, or bits: 0 and 1, read as uint8
    depth_unit: str = ""  # of depth images that are also in videos; empty: there are none
    depth_episodes: tuple[Histogram, ...] = ()  # of the codes in the videos

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> ArrayInfo:
        """Restore from the summary of an `ArrayWriter`."""
        histograms = tuple(Histogram(**stated) for stated in raw.get("depth_episodes", ()))
        return cls(tuple(raw["shape"]), raw["dtype"], raw.get("depth_unit", ""), histograms)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of the arrays that are read."""
        found: np.dtype[Any] = np.dtype("u1" if self.dtype == "bits" else self.dtype).newbyteorder("<")
        return found

    @property
    def nbytes(self) -> int:
        """Number of bytes of an array as it is stored."""
        count = math.prod(self.shape)
        return -(-count // 8) if self.dtype == "bits" else count * self.numpy_dtype.itemsize

    def array(self, data: bytes | NDArray[np.uint8]) -> NDArray[Any]:
        """Return an array from its bytes.

        Errors:
            ValueError: the bytes are too few, too many or too large.
        """
        if not 0 < self.nbytes == len(data) <= MAX_BYTES:
            raise ValueError(f"{len(data):,} bytes for {self.shape}")
        if self.dtype != "bits":
            return np.frombuffer(data, self.numpy_dtype).reshape(self.shape)
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=math.prod(self.shape), bitorder="little")
        return bits.reshape(self.shape)


@dataclass(frozen=True)
class PieceContents:
    """What is known of a piece."""

    lengths: tuple[int, ...]  # number of rows of each episode
    stats: tuple[dict[str, Stats], ...]  # of the numeric features, for each episode
    pictures: dict[str, PictureInfo]  # the streams of 8-bit images
    arrays: dict[str, ArrayInfo]  # the streams of voxels and of images that are not 8-bit
    videos: dict[str, VideoPart]  # by the names of their files

    @classmethod
    def load(cls, piece: AnyPath) -> PieceContents:
        """Read the contents of the piece in a folder."""
        stated = json.loads((piece / CONTENTS).read_text(encoding="utf-8"))
        return cls(
            tuple(episode["length"] for episode in stated["episodes"]),
            tuple(episode["stats"] for episode in stated["episodes"]),
            {name: PictureInfo.from_dict(raw) for name, raw in stated["pictures"].items()},
            {name: ArrayInfo.from_dict(raw) for name, raw in stated["arrays"].items()},
            {name: VideoPart(*part) for name, part in stated["videos"].items()},
        )


def common(parts: Sequence[Mapping[str, Any]], recordings: Sequence[str]) -> dict[str, Any]:
    """Return what is known of each stream, which must be equal in all pieces where an image has come."""
    return {name: _common_of(name, [part[name] for part in parts], recordings) for name in parts[0]}


def _common_of(name: str, parts: Sequence[Any], recordings: Sequence[str]) -> Any:
    known = [index for index, part in enumerate(parts) if 0 not in part.shape] or [0]
    first = parts[known[0]]
    for index in known:
        part = parts[index]
        if _described(part) != _described(first):
            raise RoboCacheError(
                f"streams.{name}: {_described(first)} in {recordings[known[0]]}, {_described(part)} in "
                f"{recordings[index]}; give it one size, or make two datasets"
            )
    return first


def _described(part: PictureInfo | ArrayInfo) -> str:
    dtype = part.dtype if isinstance(part, ArrayInfo) else "uint8"
    return f"{'x'.join(map(str, part.shape))} {dtype}"
