"""Writes depth images into a piece: each distinct image as an array, and a video of 12-bit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.media.depth_codes import CODES, UNITS, depth_codes
from robocache_ros.export.media.picture_writer import ArrayWriter, Used, stats_rows, video_path
from robocache_ros.export.media.video import DEPTH_VIDEO, VideoFile
from robocache_ros.export.statistics import Histogram
from robocache_ros.spec import StreamSpec

LEAST_SIDE = 16  # pixels of an image, of x265


class DepthWriter(ArrayWriter):
    """Writes the depth images of one stream as arrays, and as a video with one frame per row.

    Args:
        folder: the folder of the piece.
        stream: the stream; its `unit` is m or mm.
        rate_hz: frames per second of the videos.

    Errors:
        RoboCacheError: the unit is not known.
    """

    def __init__(self, folder: Path, stream: StreamSpec, rate_hz: int) -> None:
        if stream.unit not in UNITS:
            raise RoboCacheError(
                f"streams.{stream.name}.unit: {printable(stream.unit, 20)!r} is not one of {', '.join(UNITS)}, "
                "which depth video needs; give mm for 16UC1, m for 32FC1"
            )
        super().__init__(folder, stream)
        self._folder, self._unit, self._rate_hz = folder, stream.unit, rate_hz
        self._video: VideoFile | None = None
        self._codes: NDArray[np.uint16] = np.zeros((0, 0), np.uint16)
        self._written = -2  # the sample that the codes are of
        self._episodes: list[Histogram] = []

    def begin_episode(self) -> None:
        """Start an episode."""
        super().begin_episode()
        self._episodes.append(Histogram([[0] * CODES]))
        self._written = -2

    def write(self, arrays: NDArray[Any], used: Used) -> None:
        """Write the (T, 1, H, W) float32 images of the next T rows."""
        super().write(arrays, used)
        size = (arrays.shape[2], arrays.shape[3])
        if 0 in size:
            raise RoboCacheError(f"{self._name}: no image has come, so its size is not known; give it an image size")
        if min(size) < LEAST_SIDE:
            raise RoboCacheError(
                f"{self._name}: depth video needs {LEAST_SIDE}x{LEAST_SIDE} pixels at least, images have "
                f"{size[0]}x{size[1]} (height x width); use depth arrays"
            )
        if self._video is None:
            path = video_path(self._folder, self._name, DEPTH_VIDEO, len(self._episodes) - 1)
            self._video = VideoFile(path, size, self._rate_hz, DEPTH_VIDEO)
        for (image,), stamp in zip(arrays, used.tolist(), strict=True):
            if stamp != self._written:
                self._codes, self._written = depth_codes(image, self._unit), stamp
                if stamp >= 0:
                    self._episodes[-1].add_values(self._codes[stats_rows(size[0])])
            self._video.write(self._codes)

    def end_episode(self) -> None:
        """Close the episode's video."""
        self._close_video(complete=True)

    def summary(self) -> dict[str, Any]:
        """Return the constructor arguments of an `ArrayInfo`."""
        episodes = [histogram.to_dict() for histogram in self._episodes]
        return {**super().summary(), "depth_unit": self._unit, "depth_episodes": episodes}

    def close(self, *, complete: bool) -> None:
        """Close the files."""
        self._close_video(complete=complete)
        super().close(complete=complete)

    def _close_video(self, *, complete: bool) -> None:
        video, self._video = self._video, None
        if video is not None:
            video.close(complete=complete)
