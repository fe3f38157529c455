"""Storage of the images of a piece: video files, or PNGs in the table."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.export.lerobot.media_summary import MediaSummary
from robocache_ros.export.lerobot.statistics import Histogram, Stats
from robocache_ros.export.lerobot.video import VideoFile
from robocache_ros.extras import need

STATS_STRIDE = 4  # stride of the distinct images used for statistics, because neighbors are similar

Used = NDArray[np.int64]  # (T,) stamp of the sample that a tick used, -1 if there is none


class MediaColumn(Protocol):
    """One stream of images or voxels in a piece."""

    def begin_episode(self) -> None:
        """Start an episode."""

    def write(self, values: Tensor, used: Used) -> dict[str, Any]:
        """Store the (T, ...) values of the next T ticks and their samples; return the columns of the data table."""

    def end_episode(self) -> None:
        """Close the episode."""

    def episode_stats(self) -> dict[str, Stats]:
        """Return the statistics of the last complete episode, by feature."""

    def summary(self) -> MediaSummary:
        """Return the summary for the dataset."""

    def close(self, *, complete: bool) -> None:
        """Close the files."""


class _Pictures:
    """Base class of video and image columns: distinct frames, and their statistics."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.shape = (0, 0)
        self.total = Histogram()
        self._episode = Histogram()
        self._last = -2
        self._distinct = 0

    def begin_episode(self) -> None:
        """Start an episode."""
        self._episode = Histogram()
        self._last, self._distinct = -2, 0

    def end_episode(self) -> None:
        """Close the episode."""
        if not self._episode.images:  # no image in the episode: the stored images are black
            self._episode.add(np.zeros((3, *self.shape), np.uint8))
        self.total = self.total + self._episode

    def episode_stats(self) -> dict[str, Stats]:
        """Return the statistics of the last complete episode, by feature."""
        return {self.key: self._episode.stats()}

    def is_new(self, image: NDArray[np.uint8], used: int) -> bool:
        """Return whether the image differs from that of the previous tick; add new images to the statistics."""
        if used == self._last:
            return False
        self._last = used
        if used >= 0:
            if self._distinct % STATS_STRIDE == 0:
                self._episode.add(image)
            self._distinct += 1
        return True

    def rgb(self, values: Tensor) -> NDArray[np.uint8]:
        """Return (T, 3, H, W) images; gray is expanded to three equal channels, as LeRobot requires."""
        images: NDArray[np.uint8] = values.cpu().numpy()
        self.shape = images.shape[2:]
        if 0 in self.shape:
            raise RoboCacheError(f"{self.key}: no image has come yet, so its size is not known; give it an image size")
        return np.broadcast_to(images, (len(images), 3, *self.shape)) if images.shape[1] == 1 else images


class VideoColumn(_Pictures):
    """8-bit images as a video file, with one frame per row of the data table."""

    def __init__(self, folder: Path, key: str, rate_hz: int) -> None:
        super().__init__(key)
        self._folder, self._rate_hz = folder, rate_hz
        self._video: VideoFile | None = None

    def write(self, values: Tensor, used: Used) -> dict[str, Any]:
        """Encode the image of every tick."""
        for image, stamp in zip(self.rgb(values), used.tolist(), strict=True):
            if self._video is None:
                self._video = VideoFile(self._folder / f"{self.key}.mp4", self.shape, self._rate_hz)
            self.is_new(image, stamp)
            self._video.write(image)
        return {}

    def summary(self) -> MediaSummary:
        """Return the summary for the dataset."""
        return MediaSummary("video", self.key, self.shape, histogram=self.total)

    def close(self, *, complete: bool) -> None:
        """Finish the file."""
        video, self._video = self._video, None
        if video:
            video.close(complete=complete)


class ImageColumn(_Pictures):
    """8-bit images as lossless PNG files in the data table."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self._png = b""  # PNG of the previous tick

    def write(self, values: Tensor, used: Used) -> dict[str, Any]:
        """Encode each distinct image once and repeat it for held ticks. `datasets.Image` reads the column."""
        files = []
        for image, stamp in zip(self.rgb(values), used.tolist(), strict=True):
            if self.is_new(image, stamp):
                self._png = _png(image)
            files.append({"bytes": self._png, "path": None})
        pyarrow = need("pyarrow", "export")
        kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        return {self.key: pyarrow.array(files, kind)}

    def summary(self) -> MediaSummary:
        """Return the summary for the dataset."""
        return MediaSummary("image", self.key, self.shape, histogram=self.total)

    def close(self, *, complete: bool) -> None:
        """Do nothing; no file is open."""


def _png(image: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    picture = need("PIL.Image", "export").fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    picture.save(file, "PNG", compress_level=1)  # the next level takes twice the time for a tenth less size
    return file.getvalue()
