"""Writes the images and voxels of a recording into its piece, once per encoding."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.reader import Bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.export.media.blobs import BlobWriter
from robocache_ros.export.media.copied_video import copy_video
from robocache_ros.export.media.video import CODECS, COPY, VideoFile, VideoSettings
from robocache_ros.export.statistics import Histogram
from robocache_ros.extras import need
from robocache_ros.spec import StreamSpec

VIDEO = (*CODECS, COPY)
ENCODINGS = (*VIDEO, "png", "jpeg", "raw")
JPEG_QUALITY = 95
STATS_ROWS = 64  # statistics are of as many evenly spaced rows of an image, or up to twice as many
ARRAY_BYTES = 1 << 30  # maximum size of one array; parquet row groups above 2 GiB cannot be read

Used = NDArray[np.int64]  # (T,) stamp of the sample that a tick used, -1 if there is none


def stats_rows(height: int) -> slice:
    """Return the rows of an image that its statistics are computed from: all rows of a small image."""
    return slice(None, None, max(1, height // STATS_ROWS))


def video_path(folder: Path, stream: str, codec: str, episode: int) -> Path:
    """Return the file of an episode's video in a piece."""
    return folder / "pictures" / stream / codec / f"episode-{episode:06d}.mp4"


def blobs_path(folder: Path, stream: str, encoding: str) -> Path:
    """Return the file of a stream's distinct images or arrays in a piece."""
    return folder / "pictures" / stream / encoding


def samples_path(folder: Path, stream: str) -> Path:
    """Return the file with the index of the distinct image of each row, -1 if there is none."""
    return folder / "pictures" / stream / "samples"


class _SampleNumbers:
    """Numbers the distinct samples of a stream, and writes the number of each row."""

    def __init__(self, folder: Path, stream: str) -> None:
        path = samples_path(folder, stream)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")
        self._last = -2
        self.count = 0

    def begin_episode(self) -> None:
        """Start an episode, whose first sample is always new."""
        self._last = -2

    def is_new(self, used: int) -> bool:
        """Return whether a row uses another sample than the row before it."""
        new, self._last = used != self._last, used
        return new

    def write(self, numbers: Sequence[int]) -> None:
        """Write the numbers of the next rows."""
        self._file.write(np.array(numbers, "<i8").tobytes())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class PictureWriter:
    """Writes the 8-bit images of one stream, in one or more encodings. A video has one frame per row.

    Args:
        folder: the folder of the piece.
        stream: the stream.
        encodings: some of `ENCODINGS`.
        rate_hz: frames per second of videos.
        settings: of the encoders of videos.
    """

    def __init__(
        self, folder: Path, stream: StreamSpec, encodings: Sequence[str], rate_hz: int, settings: VideoSettings
    ) -> None:
        self._folder, self._name, self._rate_hz, self._settings = folder, stream.name, rate_hz, settings
        self._stream = stream
        self._codecs = [encoding for encoding in encodings if encoding in CODECS]
        self._copies = COPY in encodings
        self._used: list[list[int]] = []  # by episode, the stamps of the messages that its rows used
        self._images = {e: BlobWriter(blobs_path(folder, stream.name, e)) for e in encodings if e not in VIDEO}
        self._numbers = _SampleNumbers(folder, stream.name)
        self._videos: list[VideoFile] = []
        self._shape = (0, 0)
        self._codec_names: dict[str, str] = {}
        self._pixel_formats: dict[str, str] = {}
        self._episodes: list[Histogram] = []

    def begin_episode(self) -> None:
        """Start an episode."""
        self._episodes.append(Histogram())
        self._used.append([])
        self._numbers.begin_episode()

    def write(self, images: NDArray[np.uint8], used: Used) -> None:
        """Write the (T, C, H, W) images of the next T rows."""
        self._shape = images.shape[2:]
        if 0 in self._shape:
            raise RoboCacheError(f"{self._name}: no image has come, so its size is not known; give it an image size")
        if images.shape[1] == 1:  # readers expect three channels
            images = np.broadcast_to(images, (len(images), 3, *self._shape))
        if not self._videos:
            self._open_videos()
        if self._copies:
            self._used[-1] += used.tolist()
        numbers, rows = [], stats_rows(self._shape[0])
        for image, stamp in zip(images, used.tolist(), strict=True):
            if self._numbers.is_new(stamp):
                if stamp >= 0:
                    self._episodes[-1].add(image[:, rows])
                self._numbers.count += 1
                for encoding, blobs in self._images.items():
                    blobs.append(ENCODE[encoding](image))
            for video in self._videos:
                video.write(image)
            numbers.append(self._numbers.count - 1)
        self._numbers.write(numbers)

    def end_episode(self) -> None:
        """Close the episode."""
        self._close_videos(complete=True)
        if not self._episodes[-1].images:  # no image in the episode: the stored images are black
            self._episodes[-1].add(np.zeros((3, *self._shape), np.uint8))

    def copy_video(self, bag: Bag) -> None:
        """Write the videos that are copied from the recording, after its last row."""
        if self._copies:
            files = [video_path(self._folder, self._name, COPY, number) for number in range(len(self._used))]
            stamps = [np.array(used, np.int64) for used in self._used]
            copied = copy_video(bag, self._stream, stamps, files, (self._shape[0], self._shape[1]), self._rate_hz)
            self._codec_names[COPY], self._pixel_formats[COPY] = copied

    def summary(self) -> dict[str, Any]:
        """Return the constructor arguments of a `PictureInfo`."""
        return {
            "shape": list(self._shape),
            "codecs": self._codec_names,
            "pixel_formats": self._pixel_formats,
            "episodes": [histogram.to_dict() for histogram in self._episodes],
        }

    def close(self, *, complete: bool) -> None:
        """Close the files."""
        with ExitStack() as stack:  # closes each file, even if another raises
            stack.callback(self._numbers.close)
            for blobs in self._images.values():
                stack.callback(blobs.close, complete=complete)
            stack.callback(self._close_videos, complete=complete)

    def _open_videos(self) -> None:
        for codec in self._codecs:
            path = video_path(self._folder, self._name, codec, len(self._episodes) - 1)
            video = VideoFile(path, (self._shape[0], self._shape[1]), self._rate_hz, codec, self._settings)
            self._codec_names[codec] = video.encoder.codec
            self._pixel_formats[codec] = video.encoder.pixel_format
            self._videos.append(video)

    def _close_videos(self, *, complete: bool) -> None:
        videos, self._videos = self._videos, []
        with ExitStack() as stack:
            for video in videos:
                stack.callback(video.close, complete=complete)


class ArrayWriter:
    """Writes voxels and images that are not 8-bit (depth). Each distinct array is stored once.

    An array is stored as its bytes in C order, little endian; occupancy as bits, least significant bit first.

    Args:
        folder: the folder of the piece.
        stream: the stream.
    """

    def __init__(self, folder: Path, stream: StreamSpec) -> None:
        self._name = stream.name
        self._blobs = BlobWriter(blobs_path(folder, stream.name, "arrays"))
        self._numbers = _SampleNumbers(folder, stream.name)
        self._bits = stream.voxels is not None and stream.voxels.reduction.is_flag
        self._shape: list[int] = []
        self._dtype = ""

    def begin_episode(self) -> None:
        """Start an episode."""
        self._numbers.begin_episode()

    def write(self, arrays: NDArray[Any], used: Used) -> None:
        """Write the (T, ...) arrays of the next T rows."""
        self._shape, self._dtype = list(arrays.shape[1:]), arrays.dtype.name
        numbers = []
        for array, stamp in zip(arrays, used.tolist(), strict=True):
            if self._numbers.is_new(stamp) and stamp >= 0:
                self._blobs.append(self._packed(array))
                self._numbers.count += 1
            numbers.append(self._numbers.count - 1 if stamp >= 0 else -1)
        self._numbers.write(numbers)

    def end_episode(self) -> None:
        """Do nothing; arrays of all episodes are in one file."""

    def summary(self) -> dict[str, Any]:
        """Return the constructor arguments of an `ArrayInfo`."""
        return {"shape": self._shape, "dtype": "bits" if self._bits else self._dtype}

    def close(self, *, complete: bool) -> None:
        """Close the files."""
        with ExitStack() as stack:
            stack.callback(self._numbers.close)
            stack.callback(self._blobs.close, complete=complete)

    def _packed(self, array: NDArray[Any]) -> bytes:
        packed = np.packbits(array, bitorder="little") if self._bits else np.ascontiguousarray(array)
        if packed.nbytes > ARRAY_BYTES:
            raise RoboCacheError(f"{self._name}: an array of {packed.nbytes:,} bytes; make its grid or image smaller")
        return packed.tobytes()


def _pillow(image: NDArray[np.uint8], kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture = need("PIL.Image", "export").fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    picture.save(file, kind, **options)
    return file.getvalue()


# Encoding -> function of a (3, H, W) image.
ENCODE: dict[str, Callable[[NDArray[np.uint8]], bytes | memoryview]] = {
    # The next level of compression takes twice the time for a tenth less size.
    "png": lambda image: _pillow(image, "PNG", compress_level=1),
    "jpeg": lambda image: _pillow(image, "JPEG", quality=JPEG_QUALITY, subsampling=0),
    "raw": lambda image: np.ascontiguousarray(image.transpose(1, 2, 0)).reshape(-1).data,
}
