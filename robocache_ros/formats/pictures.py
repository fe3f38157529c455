"""The images and arrays of a piece, once per encoding that a format requests."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.reader import Bag
from robocache_ros.decode.definitions import message_type
from robocache_ros.decode.payloads import DecodeError, ImagePayload
from robocache_ros.decode.video import PacketDecoder, is_key_frame
from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need
from robocache_ros.formats.statistics import Histogram
from robocache_ros.formats.video import VideoFile, VideoSettings, add_stream_like
from robocache_ros.spec import VIDEO_TYPES, FusionSpec, StreamSpec
from robocache_ros.spec.dataset import CODECS, COPY, DatasetOptions
from robocache_ros.storage.paths import AnyPath


def _ends(path: AnyPath) -> AnyPath:
    return path.with_name(f"{path.name}.ends")


class BlobWriter:
    """Writes byte strings one after the other, and where each ends to a second file, in a folder that is created."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = path.open("wb")
        self._ends: list[int] = []

    def append(self, data: bytes | memoryview) -> int:
        """Write a byte string; return its index."""
        self._file.write(data)
        self._ends.append((self._ends[-1] if self._ends else 0) + len(data))
        return len(self._ends) - 1

    def close(self, *, complete: bool) -> None:
        """Close the file; if `complete`, write the ends, which are required to read it."""
        self._file.close()
        if complete:
            np.array(self._ends, "<i8").tofile(_ends(self._path))


class Blobs:
    """The byte strings of a file that a `BlobWriter` wrote."""

    def __init__(self, path: AnyPath) -> None:
        self._ends: NDArray[np.int64] = np.fromfile(_ends(path), "<i8").astype(np.int64)
        self._data = np.memmap(os.fspath(path), np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(K,) number of bytes of each byte string."""
        return np.diff(self._ends, prepend=0)

    def __getitem__(self, index: int) -> bytes:
        data: bytes = self.view(index).tobytes()
        return data

    def view(self, index: int) -> NDArray[np.uint8]:
        """Return the bytes of a byte string in the file, which is mapped into memory, without a copy."""
        start = int(self._ends[index - 1]) if index else 0
        return self._data[start : int(self._ends[index])]


WAY_OUT = "use another --codec, which encodes the pictures again"


class CopiedVideo(NamedTuple):
    """What the copied videos of a stream are."""

    codec: str  # h264 or hevc
    pixel_format: str


def copied_or(stream: StreamSpec, options: DatasetOptions, codec: str) -> str:
    """Return that the video of a stream is copied, where this is asked for and possible, or else a codec."""
    return COPY if options.codec == COPY and stream.type in VIDEO_TYPES else codec


def video_or_png(stream: StreamSpec, options: DatasetOptions) -> str | None:
    """Return the encoding of images as LeRobot stores them: as video, AV1 by default, or as PNG; None to omit them."""
    video = options.codec if options.codec in CODECS else copied_or(stream, options, "av1")
    return {"video": video, "image": "png"}.get(options.media)


def check_copy(spec: FusionSpec, options: DatasetOptions) -> None:
    """Refuse to copy the video of a spec that has none."""
    if options.codec == COPY and not any(stream.type in VIDEO_TYPES for stream in spec.streams):
        raise RoboCacheError("codec: copy needs a video topic, and the spec has none; use auto, av1 or h264")


class _Packet(NamedTuple):
    stamp_ns: int
    codec: str
    data: bytes


def copy_video(
    bag: Bag,
    stream: StreamSpec,
    episodes: Sequence[NDArray[np.int64]],
    files: Sequence[Path],
    size: tuple[int, int],
    rate_hz: int,
) -> CopiedVideo:
    """Write a new mp4 file for each episode from the messages of a video topic.

    An episode is the (T,) stamps of the messages that its rows used, -1 for none. Each row must have used the message
    after that of the row before it, the first one a key frame: then the frames of the file are the rows, although no
    picture is decoded.

    Errors:
        RoboCacheError: the messages are not on the grid of the rows, or the images of the stream are resized.
    """
    packets = _packets(bag, stream)
    found = [
        _copy_episode(packets, stream.name, stamps, file, size, rate_hz)
        for stamps, file in zip(episodes, files, strict=True)
    ]
    if len(set(found)) != 1:
        raise RoboCacheError(f"{stream.name}: the codec of the recording changes; {WAY_OUT}")
    return found[0]


def _packets(bag: Bag, stream: StreamSpec) -> Iterator[_Packet]:
    """Yield the messages of a video topic that can be read, in the order of the log."""
    decoder = PacketDecoder(stream, message_type(stream.type, bag.definitions))
    for message in bag.messages([stream.topic]):
        try:
            sample = decoder.decode_cdr(message.data)
        except DecodeError:
            continue  # no row has used it
        assert isinstance(sample.value, ImagePayload)
        stamp_ns = message.log_ns if sample.stamp_ns is None or stream.stamp == "receive" else sample.stamp_ns
        yield _Packet(stamp_ns, sample.value.encoding, bytes(sample.value.data))


def _copy_episode(
    packets: Iterator[_Packet], name: str, stamps: NDArray[np.int64], file: Path, size: tuple[int, int], rate_hz: int
) -> CopiedVideo:
    file.parent.mkdir(parents=True, exist_ok=True)
    raw = file.with_suffix(".raw")
    with raw.open("wb") as target:
        codec = _write_packets(packets, name, stamps, target)
    try:
        return _remux(raw, codec, file, name, len(stamps), size, rate_hz)
    finally:
        raw.unlink()


def _write_packets(packets: Iterator[_Packet], name: str, stamps: NDArray[np.int64], target: IO[bytes]) -> str:
    """Write the packets of an episode one after the other; return their codec."""
    first = next((packet for packet in packets if packet.stamp_ns == stamps[0]), None)
    if first is None:
        raise RoboCacheError(f"{name}: the first row has no message of its own; {WAY_OUT}")
    if not is_key_frame(first.data, first.codec):
        raise RoboCacheError(f"{name}: an episode does not begin with a key frame; {WAY_OUT}")
    target.write(first.data)
    for row, stamp in enumerate(stamps[1:].tolist(), start=1):
        packet = next(packets, None)
        if packet is None or packet.stamp_ns != stamp or packet.codec != first.codec:
            raise RoboCacheError(
                f"{name}: row {row} of an episode does not use the message after that of row {row - 1}, as copying "
                f"video needs; choose the rate of the camera, or {WAY_OUT}"
            )
        target.write(packet.data)
    return first.codec


def _remux(raw: Path, codec: str, file: Path, name: str, rows: int, size: tuple[int, int], rate_hz: int) -> CopiedVideo:
    """Move packets from a file of Annex B units to an mp4 file, with a frame per row."""
    av: Any = need("av", "export")
    time_base, count = Fraction(1, rate_hz), 0
    with av.open(str(raw), format=codec) as source, av.open(str(file), "w") as target:
        pictures = source.streams.video[0]
        context = pictures.codec_context
        if (context.height, context.width) != size:
            raise RoboCacheError(
                f"{name}: images of {size[1]}x{size[0]} are resized from {context.width}x{context.height}; leave "
                f"image.size out of the spec, or {WAY_OUT}"
            )
        stream = add_stream_like(target, pictures)
        with warnings.catch_warnings():  # PyAV 12 takes the stream for one that is decoded
            warnings.simplefilter("ignore", DeprecationWarning)
            stream.time_base = time_base
        for packet in source.demux(pictures):
            if not packet.size:
                continue  # the end of the file
            packet.pts = packet.dts = count
            packet.time_base, packet.stream = time_base, stream
            packet.duration = 1
            count += 1
            target.mux(packet)
        found = CopiedVideo(codec, str(context.pix_fmt))
    if count != rows:
        raise RoboCacheError(f"{name}: {count} pictures in {rows} messages; {WAY_OUT}")
    return found


VIDEO = (*CODECS, COPY)
ENCODINGS = (*VIDEO, "png", "jpeg", "raw")
JPEG_QUALITY = 95
STATS_ROWS = 64  # statistics are of as many evenly spaced rows of an image, or up to twice as many
ARRAY_BYTES = 1 << 30  # maximum size of one array; parquet row groups above 2 GiB cannot be read

Used = NDArray[np.int64]  # (T,) stamp of the sample that a tick used, -1 if there is none


def stats_rows(height: int) -> slice:
    """Return the rows of an image that its statistics are computed from: all rows of a small image."""
    return slice(None, None, max(1, height // STATS_ROWS))


def video_name(stream: str, codec: str, episode: int) -> str:
    """Return the file of an episode's video in a piece."""
    return f"pictures/{stream}/{codec}/episode-{episode:06d}.mp4"


def blobs_name(stream: str, encoding: str) -> str:
    """Return the file of a stream's distinct images or arrays in a piece."""
    return f"pictures/{stream}/{encoding}"


def samples_name(stream: str) -> str:
    """Return the file with the index of the distinct image of each row, -1 if there is none."""
    return f"pictures/{stream}/samples"


class _SampleNumbers:
    """Numbers the distinct samples of a stream, and writes the number of each row."""

    def __init__(self, folder: Path, stream: str) -> None:
        path = folder / samples_name(stream)
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
        self._file.write(np.array(numbers, "<i8").tobytes())

    def close(self) -> None:
        self._file.close()


class PictureWriter:
    """Writes the 8-bit images of one stream, in one or more encodings. A video has one frame per row."""

    def __init__(
        self, folder: Path, stream: StreamSpec, encodings: Sequence[str], rate_hz: int, settings: VideoSettings
    ) -> None:
        self._folder, self._name, self._rate_hz, self._settings = folder, stream.name, rate_hz, settings
        self._stream = stream
        self._codecs = [encoding for encoding in encodings if encoding in CODECS]
        self._copies = COPY in encodings
        self._used: list[list[int]] = []  # by episode, the stamps of the messages that its rows used
        self._images = {e: BlobWriter(folder / blobs_name(stream.name, e)) for e in encodings if e not in VIDEO}
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
            files = [self._folder / video_name(self._name, COPY, number) for number in range(len(self._used))]
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
            path = self._folder / video_name(self._name, codec, len(self._episodes) - 1)
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
    """

    def __init__(self, folder: Path, stream: StreamSpec) -> None:
        self._name = stream.name
        self._blobs = BlobWriter(folder / blobs_name(stream.name, "arrays"))
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
