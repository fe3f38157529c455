"""Metadata of a stream of images or voxels in a dataset, merged from its pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from robocache_ros.errors import RoboCacheError
from robocache_ros.export.lerobot.statistics import Histogram, Stats
from robocache_ros.export.lerobot.video import Encoder, encoder_of


@dataclass(frozen=True)
class MediaSummary:
    """One stream of images or voxels, in a piece or in a dataset."""

    kind: str  # video, image or arrays
    key: str  # the feature; for arrays, which are not a feature, the stream
    shape: tuple[int, ...]  # image: height and width; array: the full shape
    dtype: str = "uint8"  # or bits
    histogram: Histogram = field(default_factory=Histogram)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a JSON file."""
        return vars(self) | {"histogram": self.histogram.to_dict()}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> MediaSummary:
        """Restore a summary from the result of `to_dict`."""
        return cls(**{**raw, "shape": tuple(raw["shape"]), "histogram": Histogram(**raw["histogram"])})

    @property
    def stored(self) -> str:
        """Describe how the images or voxels are stored."""
        if self.kind == "video":
            return f"8-bit RGB as {self._encoder.codec} video ({self._encoder.pixel_format}), lossy"
        return "8-bit RGB as PNG, lossless" if self.kind == "image" else "arrays, lossless"

    def features(self, rate_hz: int) -> dict[str, Any]:
        """Return the features in info.json; none for arrays, which LeRobot does not support."""
        if self.kind == "arrays":
            return {}
        feature: dict[str, Any] = {
            "dtype": self.kind,
            "shape": [*self.shape, 3],
            "names": ["height", "width", "channels"],
        }
        if self.kind == "video":
            feature["info"] = {
                "video.height": self.shape[0],
                "video.width": self.shape[1],
                "video.codec": self._encoder.codec,
                "video.pix_fmt": self._encoder.pixel_format,
                "video.is_depth_map": False,
                "video.fps": rate_hz,
                "video.channels": 3,
                "has_audio": False,
            }
        return {self.key: feature}

    def stats(self) -> dict[str, Stats]:
        """Return the statistics by feature."""
        return {} if self.kind == "arrays" else {self.key: self.histogram.stats()}

    @property
    def _encoder(self) -> Encoder:
        return encoder_of((self.shape[0], self.shape[1]))


def joined(name: str, parts: Sequence[MediaSummary], recordings: Sequence[str]) -> MediaSummary:
    """Merge the summaries of a stream from all pieces.

    Errors:
        RoboCacheError: two recordings have images or arrays of different sizes or types.
    """
    known = [index for index, part in enumerate(parts) if 0 not in part.shape] or [0]
    first = parts[known[0]]
    total = Histogram()
    for part in parts:
        total = total + part.histogram
    for index in known:
        part = parts[index]
        if (part.kind, part.shape, part.dtype) != (first.kind, first.shape, first.dtype):
            raise RoboCacheError(
                f"streams.{name}: {_described(first)} in {recordings[known[0]]}, {_described(part)} in "
                f"{recordings[index]}; give it one size, or make two datasets"
            )
    return MediaSummary(first.kind, first.key, first.shape, first.dtype, total)


def _described(part: MediaSummary) -> str:
    return f"{'x'.join(map(str, part.shape))} {part.dtype}"
