"""Frames of a video file, read in runs: a seek, and then frame after frame."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.episode_source import DatasetError, check_image_bytes
from robocache_ros.decode.limits import IMAGE_LIMITS
from robocache_ros.errors import printable
from robocache_ros.extras import need

SKIP_FRAMES = 32  # frames that are decoded without need rather than sought over
TOLERANCE = 0.25  # of a frame's time, in frames


@dataclass(frozen=True)
class VideoFrames:
    """The frames of an episode in a video.

    Args:
        path: the file.
        start_s: time of the first frame of the episode in the file.
        fps: frames per second.
        count: number of frames of the episode.
    """

    path: Path
    start_s: float
    fps: float
    count: int

    def __len__(self) -> int:
        return self.count

    def frames(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the (n, H, W, 3) uint8 images of rising rows.

        Errors:
            DatasetError: the file is missing or damaged, or has no frame at the time of a row.
        """
        av = need("av", "datasets")
        if not self.path.is_file():
            raise DatasetError(f"{printable(self.path)}: not there; get the file")
        try:
            with av.open(str(self.path)) as container:
                if not container.streams.video:
                    raise DatasetError(f"{printable(self.path)}: no video in it; get the file again")
                stream = container.streams.video[0]
                if stream.codec_context is None:
                    raise DatasetError(f"{printable(self.path)}: its codec is unknown; get the file again")
                size = (stream.codec_context.height, stream.codec_context.width)
                if not 0 < size[0] * size[1] <= IMAGE_LIMITS.pixels:
                    raise DatasetError(f"{printable(self.path)}: frames of {size[0]}x{size[1]}; check the file")
                check_image_bytes(len(rows), (*size, 4), printable(self.path))
                found = self._empty(len(rows), size)
                for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) > SKIP_FRAMES) + 1):
                    self._read_run(container, stream, rows[run], found[run[0] : run[-1] + 1])
        except (av.FFmpegError, ValueError) as error:
            if isinstance(error, DatasetError):
                raise
            raise DatasetError(
                f"{printable(self.path)}: damaged ({printable(error, 60)}); get the file again"
            ) from None
        return found

    def _empty(self, count: int, size: tuple[int, int]) -> NDArray[Any]:
        return np.empty((count, *size, 3), np.uint8)

    def _pixels(self, frame: Any) -> NDArray[Any]:
        pixels: NDArray[np.uint8] = frame.to_ndarray(format="rgb24")
        return pixels

    def _read_run(self, container: Any, stream: Any, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Read rows from the key frame before the first of them on."""
        times = self.start_s + rows / self.fps
        container.seek(max(0, int((times[0] - TOLERANCE / self.fps) / stream.time_base)), stream=stream, backward=True)
        place, damaged = 0, False
        for frame in container.decode(stream):
            # The decoder conceals damage that it finds; frames up to the next key frame are computed from it.
            damaged = frame.is_corrupt or (damaged and not frame.key_frame)
            if frame.pts is None:
                continue
            time = float(frame.pts * stream.time_base)
            if time < times[place] - TOLERANCE / self.fps:
                continue
            if time > times[place] + TOLERANCE / self.fps:
                break
            if damaged:
                raise DatasetError(
                    f"{printable(self.path)}: damaged at {time:.3f} s, row {rows[place]}; get the file again"
                )
            image = self._pixels(frame)
            if image.shape != out.shape[1:]:
                raise DatasetError(f"{printable(self.path)}: its frames differ in size; get the file again")
            out[place] = image
            place += 1
            if place == len(rows):
                return
        raise DatasetError(
            f"{printable(self.path)}: no frame at {times[place]:.3f} s, row {rows[place]}; get the file again"
        )
