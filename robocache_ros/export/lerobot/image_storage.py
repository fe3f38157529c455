"""Where the images of a dataset go: video files, or PNGs in the table."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.export.lerobot.statistics import Histogram, Stats
from robocache_ros.export.lerobot.video import Encoder, VideoFile, encoder_of
from robocache_ros.extras import need

STATS_STRIDE = 4  # every so many distinct images count into the statistics: neighbours are much alike
CHUNK_FILES = 1000

Used = NDArray[np.int64]  # (T,) stamp of the sample that a tick used, -1 where it has none


class MediaColumn(Protocol):
    """One stream of images or voxels in a dataset."""

    @property
    def stored(self) -> str:
        """How its values are stored, in words."""

    def begin_episode(self) -> None:
        """Start an episode."""

    def write(self, values: Tensor, used: Used) -> dict[str, Any]:
        """Store the values of the next T ticks, (T, ...), given which sample each is; its columns of the data table."""

    def end_episode(self) -> dict[str, Any]:
        """Close the episode; what its row in the table of episodes says of this stream."""

    def features(self) -> dict[str, Any]:
        """Its features in info.json."""

    def stats(self) -> dict[str, Stats]:
        """Statistics over the dataset."""

    def episode_stats(self) -> dict[str, Stats]:
        """Statistics of the episode that ended."""

    def described(self) -> dict[str, Any]:
        """What meta/robocache.json says of it."""

    def close(self, *, complete: bool) -> None:
        """Release its files."""


class _Pictures:
    """What videos and images share: distinct frames, and their statistics."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.shape = (0, 0)
        self._total = Histogram()
        self._episode = Histogram()
        self._last = -2
        self._distinct = 0

    def begin_episode(self) -> None:
        self._episode = Histogram()
        self._last, self._distinct = -2, 0

    def is_new(self, image: NDArray[np.uint8], used: int) -> bool:
        """Whether a tick shows another image than the one before; counts it into the statistics."""
        if used == self._last:
            return False
        self._last = used
        if used >= 0:
            if self._distinct % STATS_STRIDE == 0:
                self._episode.add(image)
            self._distinct += 1
        return True

    def rgb(self, values: Tensor) -> NDArray[np.uint8]:
        """(T, 3, H, W): grey becomes three equal channels, as LeRobot wants them."""
        images: NDArray[np.uint8] = values.cpu().numpy()
        self.shape = images.shape[2:]
        if 0 in self.shape:
            raise RoboCacheError(f"{self.key}: no image has come yet, so its size is not known; give it an image size")
        return np.broadcast_to(images, (len(images), 3, *self.shape)) if images.shape[1] == 1 else images

    def sum_up(self) -> None:
        if not self._episode.images:  # no image in the episode: the stored ones are black
            self._episode.add(np.zeros((3, *self.shape), np.uint8))
        self._total = self._total + self._episode

    def feature(self, dtype: str) -> dict[str, Any]:
        return {"dtype": dtype, "shape": [*self.shape, 3], "names": ["height", "width", "channels"]}

    def stats(self) -> dict[str, Stats]:
        return {self.key: self._total.stats()}

    def episode_stats(self) -> dict[str, Stats]:
        return {self.key: self._episode.stats()}

    def described(self) -> dict[str, Any]:
        return {}


class VideoColumn(_Pictures):
    """8-bit images as video; episodes follow each other in a file until it is large."""

    def __init__(self, folder: Path, key: str, rate_hz: int, path: str, file_mb: int) -> None:
        super().__init__(key)
        self._folder, self._path, self._rate_hz = folder, path, rate_hz
        self._file_bytes = file_mb * 1_000_000
        self._video: VideoFile | None = None
        self._files = 0
        self._from = 0

    @property
    def stored(self) -> str:
        """How the images are stored, in words."""
        encoder = self._encoder
        return f"8-bit RGB as {encoder.codec} video ({encoder.pixel_format}), lossy"

    @property
    def _encoder(self) -> Encoder:
        return encoder_of((self.shape[0], self.shape[1]))

    def begin_episode(self) -> None:
        """Start an episode, in a new file where the last one is large."""
        super().begin_episode()
        if self._video and self._video.path.stat().st_size >= self._file_bytes:
            self.close(complete=True)
        self._from = self._video.frames if self._video else 0

    def write(self, values: Tensor, used: Used) -> dict[str, Any]:
        """Encode every tick's image: the video has one frame a tick."""
        for image, stamp in zip(self.rgb(values), used.tolist(), strict=True):
            if self._video is None:
                self._video = self._open()
            self.is_new(image, stamp)
            self._video.write(image)
        return {}

    def end_episode(self) -> dict[str, Any]:
        """Its file, and from when to when in it the episode lasts."""
        assert self._video
        self.sum_up()
        chunk, file = divmod(self._files - 1, CHUNK_FILES)
        return {
            f"videos/{self.key}/chunk_index": chunk,
            f"videos/{self.key}/file_index": file,
            f"videos/{self.key}/from_timestamp": self._from / self._rate_hz,
            f"videos/{self.key}/to_timestamp": self._video.frames / self._rate_hz,
        }

    def features(self) -> dict[str, Any]:
        """A video, with what LeRobot wants to know of it."""
        info = {
            "video.height": self.shape[0],
            "video.width": self.shape[1],
            "video.codec": self._encoder.codec,
            "video.pix_fmt": self._encoder.pixel_format,
            "video.is_depth_map": False,
            "video.fps": self._rate_hz,
            "video.channels": 3,
            "has_audio": False,
        }
        return {self.key: {**self.feature("video"), "info": info}}

    def close(self, *, complete: bool) -> None:
        """Finish the open file."""
        video, self._video = self._video, None
        if video:
            video.close(complete=complete)

    def _open(self) -> VideoFile:
        chunk, file = divmod(self._files, CHUNK_FILES)
        path = self._path.format(video_key=self.key, chunk_index=chunk, file_index=file)
        video = VideoFile(self._folder / path, self.shape, self._rate_hz)
        self._files += 1
        return video


class ImageColumn(_Pictures):
    """8-bit images as PNG files in the data table: every bit is kept."""

    stored = "8-bit RGB as PNG, lossless"

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self._png = b""  # of the tick before

    def write(self, values: Tensor, used: Used) -> dict[str, Any]:
        """Encode each distinct image once; ticks that hold it repeat its bytes. `datasets.Image` reads the column."""
        files = []
        for image, stamp in zip(self.rgb(values), used.tolist(), strict=True):
            if self.is_new(image, stamp):
                self._png = _png(image)
            files.append({"bytes": self._png, "path": None})
        pyarrow = need("pyarrow", "export")
        kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        return {self.key: pyarrow.array(files, kind)}

    def end_episode(self) -> dict[str, Any]:
        """Nothing: the images are in the table."""
        self.sum_up()
        return {}

    def features(self) -> dict[str, Any]:
        """An image."""
        return {self.key: self.feature("image")}

    def close(self, *, complete: bool) -> None:
        """Nothing is open."""


def _png(image: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    picture = need("PIL.Image", "export").fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    picture.save(file, "PNG", compress_level=1)  # a level more costs twice the time for a tenth of the size
    return file.getvalue()
