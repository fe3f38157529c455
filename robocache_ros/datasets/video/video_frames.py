"""The frames of an episode in a video file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.episode_source import DatasetError, check_image_bytes
from robocache_ros.datasets.video.open_video import OpenVideo, open_video
from robocache_ros.errors import printable
from robocache_ros.extras import need
from robocache_ros.fork import cached_until_fork
from robocache_ros.untrusted_files import file_below

TOLERANCE = 0.25  # of a frame's time, in frames


@dataclass(frozen=True)
class VideoFrames:
    """The frames of an episode in a video.

    Args:
        root: the folder of the dataset.
        name: of the file in it.
        start_s: time of the first frame of the episode in the file.
        fps: frames per second.
        count: number of frames of the episode.
    """

    root: Path
    name: str
    start_s: float
    fps: float
    count: int

    def __len__(self) -> int:
        return self.count

    @property
    def path(self) -> Path:
        """The file, which may not be there."""
        return self.root / self.name

    def frames(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the (n, H, W, 3) uint8 images of rising rows.

        Errors:
            DatasetError: the file is missing or damaged, or has no frame at the time of a row.
        """
        av = need("av", "datasets")
        try:
            video = open_video(file_below(self.root, self.name))
            check_image_bytes(len(rows), (*video.size, 4), printable(self.path))
            found = self._empty(len(rows), video.size)
            for place, row in enumerate(rows.tolist()):
                found[place] = self._picture(video, row, found.shape[1:])
        except (av.FFmpegError, OSError, ValueError) as error:
            if isinstance(error, DatasetError):
                raise
            raise DatasetError(
                f"{printable(self.path)}: damaged ({printable(error, 60)}); get the file again"
            ) from None
        return found

    def _picture(self, video: OpenVideo, row: int, shape: tuple[int, ...]) -> NDArray[Any]:
        time_s = self.start_s + row / self.fps
        picture = video.picture(time_s, TOLERANCE / self.fps, row, self._pixels)
        if picture is None:
            raise DatasetError(f"{printable(self.path)}: no frame at {time_s:.3f} s, row {row}; get the file again")
        if picture.shape != shape:
            raise DatasetError(f"{printable(self.path)}: its frames differ in size; get the file again")
        return picture

    def _empty(self, count: int, size: tuple[int, int]) -> NDArray[Any]:
        return np.empty((count, *size, 3), np.uint8)

    def _pixels(self, frame: Any) -> NDArray[Any]:
        pixels: NDArray[np.uint8] = _reformatter(get_ident()).reformat(frame, format="rgb24").to_ndarray()
        return pixels


@cached_until_fork(8)
def _reformatter(thread: int) -> Any:
    """Converts frames of a thread. It keeps its tables, which `frame.to_ndarray` would compute for each frame."""
    return need("av.video.reformatter", "datasets").VideoReformatter()
