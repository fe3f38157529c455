"""Video files of uint8 frames, written as LeRobot writes its own."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need


class Encoder(NamedTuple):
    """An encoder and its settings."""

    codec: str  # as info.json names it
    name: str  # as FFmpeg names it
    pixel_format: str
    options: dict[str, str]


# LeRobot's own settings: a key frame every second frame, so that a random access decodes two frames at most. The number
# of threads is fixed, because it may change the bytes. There are no B-frames, so that videos can be joined: decoding
# times are those of the frames.
_AV1 = Encoder("av1", "libsvtav1", "yuv420p", {"g": "2", "crf": "30", "preset": "12", "svtav1-params": "lp=2"})
_H264 = Encoder("h264", "libx264", "yuv420p", {"g": "2", "crf": "23", "preset": "veryfast", "bf": "0", "threads": "2"})
_H264_ANY_SIZE = _H264._replace(pixel_format="yuv444p")
MIN_SIDE = 64  # SVT-AV1 refuses frames below 4 pixels, and never ends some that are narrow, such as 16x640 and 4000x4


def encoder_of(size: tuple[int, int]) -> Encoder:
    """The encoder for frames of a height and width, each of 1 pixel or more.

    AV1, or h264 where this PyAV lacks it. Both halve the colour's resolution, which takes even sizes. Frames of odd
    or small sizes are h264 with colour in full resolution, which takes any.

    Errors:
        RoboCacheError: this PyAV has neither.
    """
    available = need("av", "export").codecs_available
    usual = min(size) >= MIN_SIDE and not any(side % 2 for side in size)
    for encoder in (_AV1, _H264) if usual else (_H264_ANY_SIZE,):
        if encoder.name in available:
            return encoder
    raise RoboCacheError(
        f"video: this PyAV has no encoder for {size[0]}x{size[1]} frames; use its wheel, or export with media image"
    )


class VideoFile:
    """One mp4 file, frame after frame at a fixed rate.

    Args:
        path: the file, new.
        size: height and width of the frames.
        rate_hz: frames a second.
    """

    def __init__(self, path: Path, size: tuple[int, int], rate_hz: int) -> None:
        height, width = size
        av = need("av", "export")
        av.logging.set_level(av.logging.ERROR)
        os.environ.setdefault("SVT_LOG", "0")  # fatal errors alone: PyAV raises the others, with what the user can do
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.frames = 0
        self.encoder = encoder_of(size)
        self._container = av.open(str(path), "w")
        self._stream: Any = self._container.add_stream(self.encoder.name, rate_hz, options=self.encoder.options)
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = self.encoder.pixel_format
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


class JoinedVideo:
    """Video files of one feature in a few large ones: their packets are copied, not encoded again.

    Args:
        folder: the dataset's.
        path: the files' names, with {chunk_index} and {file_index}.
        rate_hz: frames a second.
        file_mb: size from which on the next part goes into a new file.
        chunk_files: files in a folder.
    """

    def __init__(self, folder: Path, path: str, rate_hz: int, file_mb: float, chunk_files: int) -> None:
        self._folder, self._path, self._rate_hz = folder, path, rate_hz
        self._file_bytes = file_mb * 1_000_000
        self._chunk_files = chunk_files
        self._container: Any = None
        self._stream: Any = None
        self._settings = b""  # of the codec, which one file has once
        self._files = self._frames = self._bytes = 0

    def append(self, part: Path, frames: int) -> tuple[int, int, int]:
        """Add a file of some frames; returns the chunk, the file and the frame in it at which they begin."""
        with need("av", "export").open(str(part)) as source:
            stream = source.streams.video[0]
            settings = bytes(stream.codec_context.extradata or b"")
            if self._bytes >= self._file_bytes or settings != self._settings:
                self.close()
            if self._container is None:
                self._open(stream)
                self._settings = settings
            first = self._frames
            shift = int(Fraction(first, self._rate_hz) / stream.time_base)
            for packet in source.demux(stream):
                if packet.dts is not None:  # the last one is empty
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    packet.stream = self._stream
                    self._bytes += packet.size
                    self._container.mux(packet)
        self._frames += frames
        return *divmod(self._files - 1, self._chunk_files), first

    def close(self) -> None:
        """Write the index of the open file."""
        container, self._container = self._container, None
        self._frames = self._bytes = 0
        if container is not None:
            container.close()

    def _open(self, stream: Any) -> None:
        chunk, file = divmod(self._files, self._chunk_files)
        path = self._folder / self._path.format(chunk_index=chunk, file_index=file)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._container = need("av", "export").open(str(path), "w")
        if hasattr(self._container, "add_stream_from_template"):
            self._stream = self._container.add_stream_from_template(stream, opaque=True)
        else:  # PyAV before 14
            self._stream = self._container.add_stream(template=stream)
        self._files += 1
