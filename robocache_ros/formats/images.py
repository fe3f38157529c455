"""The images of a stream, from files, arrays and videos, decoded at the rows that are used."""

from __future__ import annotations

import os
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from itertools import islice
from threading import get_ident
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from robocache_ros.decode.images import (
    JPEG_MAGIC,
    PNG_MAGIC,
    decode_compressed,
    jpeg_frame,
    jpeg_head,
    jpeg_picture,
    png_picture,
)
from robocache_ros.decode.payloads import IMAGE_LIMITS, DecodeError, ImagePayload
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.formats.read import DatasetError, Stream, Values, check_image_bytes, refusing
from robocache_ros.processes import cached_until_fork
from robocache_ros.storage.paths import AnyPath, keep_for
from robocache_ros.untrusted_files import DatasetFile, file_below, open_container

Files = Sequence["bytes | memoryview"]
Size = tuple[int, int]  # height and width
_heads: deque[tuple[bytes, Size]] = deque(maxlen=4)  # of jpeg files that were checked
_SIMPLEJPEG = find_spec("simplejpeg") is not None
_PNG_SIZE = struct.Struct(">II")  # width and height, behind the magic, and the length and the name of the first chunk


class Reduction(NamedTuple):
    """How libjpeg decodes jpeg files of one size at a part of it: each side divided, rounded up."""

    factor: int  # 2, 4 or 8
    size: Size  # of the files

    @property
    def reduced(self) -> Size:
        """The size of the images."""
        height, width = (-(-side // self.factor) for side in self.size)
        return height, width


def reduction(size: Size, at_least: Size) -> Reduction | None:
    """Return the largest reduction of files of a size whose images are not below `at_least`; None if there is none.

    Files of less than a block of 8 pixels are not reduced: fractions of them round to one size.
    """
    for factor in (8, 4, 2) if min(size) >= 8 else ():
        found = Reduction(factor, size)
        if found.reduced[0] >= at_least[0] and found.reduced[1] >= at_least[1]:
            return found
    return None


def images_at(stream: Stream, rows: NDArray[np.int64], where: str, at_least: Size | None = None) -> NDArray[Any]:
    """Return the images of a stream at rows; each distinct one is decoded once.

    Args:
        stream: a stream of images, depth images or voxels.
        rows: (n,) int64 in any order; -1 gives zeros.
        where: file and record, for errors.
        at_least: decode at a reduced size that is not below this, if all of the images are jpeg files.

    Returns:
        (n, H, W, 3) uint8 RGB; (n, ...) of depth images or voxels.

    Errors:
        DatasetError: an image is damaged, is too large, or does not have the size of the others.
    """
    where, values = label(stream, where), stream.values
    if is_files(values):
        size = image_size(values, rows, where)
        check_image_bytes(len(rows), (*size, 3), where)
        reduced = reduction(size, at_least) if at_least and _all_jpeg(values, rows) else None
        images = np.empty((len(rows), *(reduced.reduced if reduced else size), 3), np.uint8)
        write_images(values, rows, images, where, reduced)
        return images
    rising = bool(len(rows) and rows[0] >= 0 and (rows[1:] > rows[:-1]).all())
    distinct, place = (rows, rows) if rising else np.unique(rows[rows >= 0], return_inverse=True)
    if not len(distinct):
        distinct = np.zeros(1, np.int64)  # for the size
    lazy: Any = values
    decoded: NDArray[Any] = values[distinct] if isinstance(values, np.ndarray) else lazy.frames(distinct)
    if rising:
        return decoded
    check_image_bytes(len(rows), (*decoded.shape[1:], decoded.itemsize), where)
    found = np.zeros((len(rows), *decoded.shape[1:]), decoded.dtype)
    found[rows >= 0] = decoded[place]
    return found


def is_files(values: Values) -> TypeGuard[Files]:
    """Whether the images of a stream are files of jpeg or png."""
    return not isinstance(values, np.ndarray) and not hasattr(values, "frames")


def _all_jpeg(files: Files, rows: NDArray[np.int64]) -> bool:
    return all(bytes(files[row][: len(JPEG_MAGIC)]) == JPEG_MAGIC for row in set(rows.tolist()) if row >= 0)


def label(stream: Stream, where: str) -> str:
    """Return what errors of a stream begin with."""
    return f"{where}: {printable(stream.name, 40)}"


def image_size(files: Files, rows: NDArray[np.int64], where: str) -> Size:
    """Return the height and the width of the first image that is used, as its file states them."""
    row = next((row for row in rows.tolist() if row >= 0), 0)
    return _stated_size(bytes(files[row]), f"{where}: image {row}")


def _stated_size(data: bytes, where: str) -> Size:
    try:
        if _kind(data, where) == "png":
            width, height = _PNG_SIZE.unpack_from(png_picture(data, IMAGE_LIMITS, IMAGE_LIMITS.pixels), 16)
        else:
            width, height, _ = jpeg_frame(jpeg_picture(data, IMAGE_LIMITS, IMAGE_LIMITS.pixels))
    except DecodeError as error:
        raise _damaged(where, error) from None
    return height, width


def write_images(
    files: Files, rows: NDArray[np.int64], out: NDArray[np.uint8], where: str, reduced: Reduction | None = None
) -> None:
    """Decode images at (n,) rows in any order to where they belong, each distinct one once; -1 gives zeros."""
    written: dict[int, int] = {}
    for place, row in enumerate(rows.tolist()):
        if row < 0:
            out[place] = 0
        elif row in written:
            out[place] = out[written[row]]
        else:
            _decode_into(out[place], bytes(files[row]), where, row, reduced)
            written[row] = place


def decode_image(data: bytes | memoryview, where: str, reduced: Reduction | None = None) -> NDArray[np.uint8]:
    """Return the (H, W, 3) uint8 RGB image of a jpeg or png file; by simplejpeg where it is installed, else by Pillow.

    A jpeg file has the size of the reduction, if there is one.

    Errors:
        DatasetError: it is damaged, is too large, or is not an 8-bit image.
    """
    kind = _kind(data, where)
    try:
        if kind == "jpeg" and _SIMPLEJPEG:
            picture = jpeg_picture(bytes(data), IMAGE_LIMITS, IMAGE_LIMITS.pixels)
            pixels: NDArray[np.uint8] = _decode_jpeg()(picture, "RGB", **_least(reduced))
            return pixels
        image = decode_compressed(ImagePayload(np.frombuffer(data, np.uint8), kind), reduced=reduced and reduced.factor)
    except (RoboCacheError, ValueError) as error:
        raise _damaged(where, error) from None
    return _rgb(image, where)


def _kind(data: bytes | memoryview, where: str) -> str:
    head = bytes(data[: len(PNG_MAGIC)])
    if head.startswith(JPEG_MAGIC):
        return "jpeg"
    if head != PNG_MAGIC:
        raise DatasetError(f"{where}: neither jpeg nor png; repair the file or leave the episode out")
    return "png"


def _damaged(where: str, error: Exception) -> DatasetError:
    return DatasetError(f"{where}: {printable(error, 60)}; repair the file or leave the episode out")


def _least(reduced: Reduction | None) -> dict[str, int]:
    """The arguments with which simplejpeg reduces: it decodes at the smallest size that is not below these."""
    return dict(zip(("min_height", "min_width"), reduced.reduced, strict=True)) if reduced else {}


@cache
def _decode_jpeg() -> Any:
    return need("simplejpeg", "datasets").decode_jpeg


def _rgb(image: ImagePayload, where: str) -> NDArray[np.uint8]:
    channels = {"mono8": 1, "rgb8": 3, "rgba8": 4}.get(image.encoding)
    if channels is None:
        raise DatasetError(
            f"{where}: an image of {image.encoding}, not of 8 bits; leave the feature out of the mapping"
        )
    pixels = image.data.reshape(image.height, image.width, channels)
    return pixels[:, :, :3] if channels > 1 else np.repeat(pixels, 3, axis=2)


def _decode_into(out: NDArray[np.uint8], data: bytes, where: str, row: int, reduced: Reduction | None = None) -> None:
    """Decode an image to where it belongs, without a copy if simplejpeg can."""
    first: Size = reduced.size if reduced else out.shape[:2]
    if _SIMPLEJPEG and data.startswith(JPEG_MAGIC):
        try:
            picture, size = _checked(data)
            if size == first:
                _decode_jpeg()(picture, "RGB", buffer=out, **_least(reduced))
                return
        except (RoboCacheError, ValueError):
            pass  # a damaged image is named below
    image = decode_image(data, f"{where}: image {row}", reduced)
    if (size := _stated_size(data, f"{where}: image {row}")) != first:
        raise DatasetError(f"{where}: image {row} is {size}, the first {first}; repair the file")
    out[...] = image


def _checked(data: bytes) -> tuple[bytes, Size]:
    """Return a jpeg file for simplejpeg, and its size. The images of a camera begin alike: they are checked once."""
    for head, size in tuple(_heads):  # another thread may add one
        if data.startswith(head):
            return data, size
    picture = jpeg_picture(data, IMAGE_LIMITS, IMAGE_LIMITS.pixels)
    width, height, _ = jpeg_frame(picture)
    if head := jpeg_head(picture):
        _heads.append((head, (height, width)))
    return picture, (height, width)


OPEN_VIDEOS = 8  # of a process; each has the frames that its decoder refers to in memory
SKIP_S = 1.0  # of video that is decoded without need rather than sought over, at most
RECENT_BYTES = 16 << 20  # of images that stay in memory, because overlapping windows ask for them again


class OpenVideo:
    """Reads pictures of a video by their time.

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
        self._key_s: float | None = None  # time of the last key frame since the last seek
        self._skip_s = SKIP_S  # up to which decoding takes less time than to seek: that between two key frames
        self._damaged = False
        self._recent: OrderedDict[Hashable, NDArray[Any]] = OrderedDict()

    def picture(
        self, time_s: float, tolerance_s: float, row: int, pixels: Callable[[Any], NDArray[Any]]
    ) -> NDArray[Any] | None:
        """Return the picture at a time, not to be changed; None if there is none. `pixels` makes an array of a frame.

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
        if self._frame is None or not early - self._skip_s <= self._time_s <= late + tolerance_s:
            # From the frame itself if it is a key frame. Containers that seek by other times may lead beyond it.
            self._seek(late)
            if not self._next() or self._time_s > late:
                self._seek(early)
        while self._frame is None or self._time_s < early:
            if not self._next():
                return False
        return self._time_s <= late

    def _next(self) -> bool:
        """Decode the next frame. Return whether there is one."""
        for frame in self._frames:
            # The decoder conceals damage that it finds; frames up to the next key frame are computed from it.
            self._damaged = frame.is_corrupt or (self._damaged and not frame.key_frame)
            if frame.pts is None:
                continue
            self._frame, self._time_s = frame, float(frame.pts * self._stream.time_base)
            if frame.key_frame:
                if self._key_s is not None:
                    self._skip_s = min(SKIP_S, self._time_s - self._key_s)
                self._key_s = self._time_s
            return True
        self._frame = None
        return False

    def _seek(self, time_s: float) -> None:
        """Continue at the key frame before a time."""
        self._container.seek(max(0, int(time_s / self._stream.time_base)), stream=self._stream, backward=True)
        self._frames, self._frame, self._damaged = self._container.decode(self._stream), None, False
        self._key_s = None


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
MAX_INTERVAL = 64  # frames that are searched for the second key frame


@dataclass(frozen=True)
class VideoFrames:
    """The frames of an episode in a video."""

    root: AnyPath  # the folder of the dataset
    name: str  # of the file in it
    start_s: float  # time of the first frame of the episode in the file
    fps: float  # frames per second
    count: int  # number of frames of the episode

    def __len__(self) -> int:
        return self.count

    @property
    def path(self) -> AnyPath:
        """The file, which may not be there."""
        return self.root / self.name

    def frames(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the (n, H, W, 3) uint8 images of rising rows."""
        with refusing(
            printable(self.path), "damaged", errors=(need("av", "datasets").FFmpegError, OSError, ValueError)
        ):
            video = open_video(file_below(self.root, self.name))
            check_image_bytes(len(rows), (*video.size, 4), printable(self.path))
            found = self._empty(len(rows), video.size)
            for place, row in enumerate(rows.tolist()):
                found[place] = self._picture(video, row, found.shape[1:])
        return found

    def key_frame_interval(self) -> int:
        """Return the frames from the first key frame of the file to the second one, at most `MAX_INTERVAL`."""
        with (
            refusing(printable(self.path), "damaged", errors=(need("av", "datasets").FFmpegError, OSError, ValueError)),
            open_container(file_below(self.root, self.name)) as container,
        ):
            packets = (packet for packet in container.demux(video=0) if packet.pts is not None)
            keys = (n for n, packet in enumerate(islice(packets, MAX_INTERVAL)) if packet.is_keyframe and n)
            return next(keys, MAX_INTERVAL)

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
        pixels: NDArray[np.uint8] = _reformatter(get_ident())(frame, format="rgb24").to_ndarray()
        return pixels


@cached_until_fork(8)
def _reformatter(thread: int) -> Any:
    """The method that converts frames, in a thread. It keeps its tables, which `to_ndarray` would compute each time."""
    convert = need("av.video.reformatter", "datasets").VideoReformatter().reformat
    # PyAV 17 and later convert in a thread per core, which takes several times as much CPU time.
    return partial(convert, threads=1) if int(need("av", "datasets").__version__.split(".")[0]) >= 17 else convert
