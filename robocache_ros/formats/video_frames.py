"""Frames of video files by number; a few files stay open."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.decode.payloads import IMAGE_LIMITS
from robocache_ros.errors import printable
from robocache_ros.extras import need
from robocache_ros.fork import cached_until_fork
from robocache_ros.formats.read import DatasetError, check_image_bytes, refusing
from robocache_ros.storage.paths import AnyPath, keep_for
from robocache_ros.untrusted_files import DatasetFile, file_below, open_container

OPEN_VIDEOS = 8  # of a process; each has the frames that its decoder refers to in memory
SKIP_S = 1.0  # of video that is decoded without need rather than sought over
RECENT_BYTES = 16 << 20  # of images that stay in memory, because overlapping windows ask for them again


class OpenVideo:
    """Reads pictures of a video by their time.

    Args:
        path: the file.

    Errors:
        DatasetError: the file has no video, or its frames are too large. Others are those of PyAV.
    """

    def __init__(self, path: DatasetFile) -> None:
        self._where = printable(path)
        self._container = open_container(path)
        keep_for(path, self)
        if not self._container.streams.video:
            raise DatasetError(f"{self._where}: no video in it; get the file again")
        self._stream = self._container.streams.video[0]
        context = self._stream.codec_context
        if context is None:
            raise DatasetError(f"{self._where}: its codec is unknown; get the file again")
        self.size = (int(context.height), int(context.width))
        if not 0 < self.size[0] * self.size[1] <= IMAGE_LIMITS.pixels:
            raise DatasetError(f"{self._where}: frames of {self.size[0]}x{self.size[1]}; check the file")
        context.thread_count = 1  # workers decode in parallel; threads of FFmpeg would not survive a fork
        self._frames: Any = None  # of the decoder, from the last seek on
        self._frame: Any = None  # the last that was decoded
        self._time_s = 0.0
        self._damaged = False
        self._recent: OrderedDict[Hashable, NDArray[Any]] = OrderedDict()

    def picture(
        self, time_s: float, tolerance_s: float, row: int, pixels: Callable[[Any], NDArray[Any]]
    ) -> NDArray[Any] | None:
        """Return the picture at a time, not to be changed; None if there is none.

        Args:
            time_s: of the frame.
            tolerance_s: by which the time of the frame may differ.
            row: of the episode, for errors.
            pixels: makes an array of a frame.

        Errors:
            DatasetError: the frame is damaged. Others are those of PyAV.
        """
        wanted = (time_s, type(getattr(pixels, "__self__", pixels)))
        if wanted in self._recent:
            self._recent.move_to_end(wanted)
            return self._recent[wanted]
        try:
            if not self._decode(time_s, tolerance_s):
                return None
            if self._damaged:
                raise DatasetError(f"{self._where}: damaged at {self._time_s:.3f} s, row {row}; get the file again")
            picture = pixels(self._frame)
        except Exception:
            self._frame = None  # the next read seeks
            raise
        self._recent[wanted] = picture
        while len(self._recent) > max(1, RECENT_BYTES // max(1, picture.nbytes)):
            self._recent.popitem(last=False)
        return picture

    def _decode(self, time_s: float, tolerance_s: float) -> bool:
        """Decode up to the frame at a time. Return whether there is one."""
        early, late = time_s - tolerance_s, time_s + tolerance_s
        if self._frame is None or not self._time_s - tolerance_s <= late <= self._time_s + SKIP_S:
            self._seek(early)
        while self._frame is None or self._time_s < early:
            frame = next(self._frames, None)
            if frame is None:
                self._frame = None
                return False
            # The decoder conceals damage that it finds; frames up to the next key frame are computed from it.
            self._damaged = frame.is_corrupt or (self._damaged and not frame.key_frame)
            if frame.pts is not None:
                self._frame, self._time_s = frame, float(frame.pts * self._stream.time_base)
        return self._time_s <= late

    def _seek(self, time_s: float) -> None:
        """Continue at the key frame before a time."""
        self._container.seek(max(0, int(time_s / self._stream.time_base)), stream=self._stream, backward=True)
        self._frames, self._frame, self._damaged = self._container.decode(self._stream), None, False


def open_video(path: DatasetFile) -> OpenVideo:
    """Return a video, which this thread may have open already.

    Errors:
        DatasetError: the file has no video, or its frames are too large. OSError: it is not there. Others are those of
            PyAV.
    """
    stat = path.stat()
    return _opened(path, (stat.st_mtime_ns, stat.st_size), (os.getpid(), threading.get_ident()))


@cached_until_fork(OPEN_VIDEOS)
def _opened(path: DatasetFile, version: tuple[int, int], user: tuple[int, int]) -> OpenVideo:
    return OpenVideo(path)


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

    root: AnyPath
    name: str
    start_s: float
    fps: float
    count: int

    def __len__(self) -> int:
        return self.count

    @property
    def path(self) -> AnyPath:
        """The file, which may not be there."""
        return self.root / self.name

    def frames(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the (n, H, W, 3) uint8 images of rising rows.

        Errors:
            DatasetError: the file is missing or damaged, or has no frame at the time of a row.
        """
        with refusing(
            printable(self.path), "damaged", errors=(need("av", "datasets").FFmpegError, OSError, ValueError)
        ):
            video = open_video(file_below(self.root, self.name))
            check_image_bytes(len(rows), (*video.size, 4), printable(self.path))
            found = self._empty(len(rows), video.size)
            for place, row in enumerate(rows.tolist()):
                found[place] = self._picture(video, row, found.shape[1:])
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
