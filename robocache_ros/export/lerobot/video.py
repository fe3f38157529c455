"""Video files of uint8 frames, written as LeRobot writes its own."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need

# LeRobot's own settings: a key frame every second frame, so that a random access decodes two frames at most.
ENCODERS: dict[str, tuple[str, dict[str, str]]] = {
    "libsvtav1": ("av1", {"g": "2", "crf": "30", "preset": "12", "svtav1-params": "lp=2"}),
    "libx264": ("h264", {"g": "2", "crf": "23", "preset": "veryfast"}),
}
PIXEL_FORMAT = "yuv420p"


class VideoFile:
    """One mp4 file, frame after frame at a fixed rate.

    Args:
        path: the file, new.
        size: height and width of the frames, both even (yuv420p halves the colour's).
        rate_hz: frames a second.
    """

    def __init__(self, path: Path, size: tuple[int, int], rate_hz: int) -> None:
        height, width = size
        if height % 2 or width % 2:
            raise RoboCacheError(
                f"{path.parent.parent.name}: {height}x{width} frames; video needs even sizes: "
                "give the stream an image size, or export with media image"
            )
        av = need("av", "export")
        av.logging.set_level(av.logging.ERROR)
        os.environ.setdefault("SVT_LOG", "0")  # fatal errors alone: PyAV raises the others, with what the user can do
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.frames = 0
        self.codec, encoder, options = _encoder(av)
        self._container = av.open(str(path), "w")
        self._stream: Any = self._container.add_stream(encoder, rate_hz, options=options)
        self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, PIXEL_FORMAT
        self._time_base = Fraction(1, rate_hz)
        self._make_frame = av.VideoFrame.from_ndarray

    def write(self, image: NDArray[np.uint8]) -> None:
        """Encode a (3, H, W) RGB image as the next frame."""
        frame = self._make_frame(np.ascontiguousarray(image.transpose(1, 2, 0)), format="rgb24")
        frame.pts = self.frames
        frame.time_base = self._time_base  # the stream's own becomes the file's once its header is written
        self._container.mux(self._stream.encode(frame))
        self.frames += 1

    def close(self, *, complete: bool = True) -> None:
        """Write what the encoder holds back, and the index; with `complete=False` only release the file."""
        if complete:
            self._container.mux(self._stream.encode())
        self._container.close()


def _encoder(av: Any) -> tuple[str, str, dict[str, str]]:
    for encoder, (codec, options) in ENCODERS.items():
        if encoder in av.codecs_available:
            return codec, encoder, options
    raise RoboCacheError(
        f"video: this PyAV has none of {', '.join(ENCODERS)}; use its wheel, or export with media image"
    )
