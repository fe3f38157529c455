"""What contents.json of a piece tells: its episodes with their statistics, and its images and arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError
from robocache_ros.export.media.joined_video import VideoPart
from robocache_ros.export.statistics import Histogram, Stats

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
        histograms = tuple(Histogram(**told) for told in raw["episodes"])
        return cls((height, width), raw["codecs"], raw["pixel_formats"], histograms)


@dataclass(frozen=True)
class ArrayInfo:
    """What is known of a stream of arrays (voxels, images that are not 8-bit) in a piece."""

    shape: tuple[int, ...]
    dtype: str  # of NumPy, or bits: 0 and 1, read as uint8
    depth_unit: str = ""  # of depth images that are also in videos; empty: there are none
    depth_episodes: tuple[Histogram, ...] = ()  # of the codes in the videos

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> ArrayInfo:
        """Restore from the summary of an `ArrayWriter`."""
        histograms = tuple(Histogram(**told) for told in raw.get("depth_episodes", ()))
        return cls(tuple(raw["shape"]), raw["dtype"], raw.get("depth_unit", ""), histograms)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of the arrays that are read."""
        return np.dtype(np.uint8) if self.dtype == "bits" else np.dtype(self.dtype).newbyteorder("<")

    def array(self, data: bytes) -> NDArray[Any]:
        """Return an array from its bytes in the piece."""
        if self.dtype != "bits":
            return np.frombuffer(data, self.numpy_dtype).reshape(self.shape)
        count = int(np.prod(self.shape))
        return np.unpackbits(np.frombuffer(data, np.uint8), count=count, bitorder="little").reshape(self.shape)


@dataclass(frozen=True)
class PieceContents:
    """What is known of a piece.

    Attributes:
        lengths: number of rows of each episode.
        stats: of the numeric features, for each episode.
        pictures: the streams of 8-bit images.
        arrays: the streams of voxels and of images that are not 8-bit.
        videos: by the names of their files.
    """

    lengths: tuple[int, ...]
    stats: tuple[dict[str, Stats], ...]
    pictures: dict[str, PictureInfo]
    arrays: dict[str, ArrayInfo]
    videos: dict[str, VideoPart]

    @classmethod
    def load(cls, piece: Path) -> PieceContents:
        """Read the contents of the piece in a folder."""
        told = json.loads((piece / CONTENTS).read_text(encoding="utf-8"))
        return cls(
            tuple(episode["length"] for episode in told["episodes"]),
            tuple(episode["stats"] for episode in told["episodes"]),
            {name: PictureInfo.from_dict(raw) for name, raw in told["pictures"].items()},
            {name: ArrayInfo.from_dict(raw) for name, raw in told["arrays"].items()},
            {name: VideoPart(*part) for name, part in told["videos"].items()},
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
