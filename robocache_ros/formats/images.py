"""The images of a stream, decoded at the rows that are used."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeGuard

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
from robocache_ros.formats.read import DatasetError, Stream, Values, check_image_bytes

Files = Sequence["bytes | memoryview"]
_heads: deque[bytes] = deque(maxlen=4)  # of jpeg files that were checked
_SIMPLEJPEG = find_spec("simplejpeg") is not None
_PNG_SIZE = struct.Struct(">II")  # width and height, behind the magic, and the length and the name of the first chunk


def images_at(stream: Stream, rows: NDArray[np.int64], where: str) -> NDArray[Any]:
    """Return the images of a stream at rows; each distinct one is decoded once.

    Args:
        stream: a stream of images, depth images or voxels.
        rows: (n,) int64 in any order; -1 gives zeros.
        where: file and record, for errors.

    Returns:
        (n, H, W, 3) uint8 RGB; (n, ...) of depth images or voxels.

    Errors:
        DatasetError: an image is damaged, is too large, or does not have the size of the others.
    """
    where, values = label(stream, where), stream.values
    if is_files(values):
        shape = (*image_size(values, rows, where), 3)
        check_image_bytes(len(rows), shape, where)
        images = np.empty((len(rows), *shape), np.uint8)
        write_images(values, rows, images, where)
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


def label(stream: Stream, where: str) -> str:
    """Return what errors of a stream begin with."""
    return f"{where}: {printable(stream.name, 40)}"


def image_size(files: Files, rows: NDArray[np.int64], where: str) -> tuple[int, int]:
    """Return the height and the width of the first image that is used, as its file states them.

    Errors:
        DatasetError: it is damaged or too large.
    """
    row = next((row for row in rows.tolist() if row >= 0), 0)
    data, where = bytes(files[row]), f"{where}: image {row}"
    try:
        if _kind(data, where) == "png":
            width, height = _PNG_SIZE.unpack_from(png_picture(data, IMAGE_LIMITS, IMAGE_LIMITS.pixels), 16)
        else:
            width, height, _ = jpeg_frame(jpeg_picture(data, IMAGE_LIMITS, IMAGE_LIMITS.pixels))
    except DecodeError as error:
        raise _damaged(where, error) from None
    return height, width


def write_images(files: Files, rows: NDArray[np.int64], out: NDArray[np.uint8], where: str) -> None:
    """Decode images to where they belong; each distinct one once.

    Args:
        files: of jpeg or png.
        rows: (n,) int64 in any order; -1 gives zeros.
        out: (n, H, W, 3) for the images at `rows`. Each of them is in one piece.
        where: file, record and stream, for errors.

    Errors:
        DatasetError: an image is damaged, is too large, or is not of the size of `out`.
    """
    written: dict[int, int] = {}
    for place, row in enumerate(rows.tolist()):
        if row < 0:
            out[place] = 0
        elif row in written:
            out[place] = out[written[row]]
        else:
            _decode_into(out[place], bytes(files[row]), where, row)
            written[row] = place


def decode_image(data: bytes | memoryview, where: str) -> NDArray[np.uint8]:
    """Return the (H, W, 3) uint8 RGB image of a jpeg or png file; by simplejpeg where it is installed, else by Pillow.

    Errors:
        DatasetError: it is damaged, is too large, or is not an 8-bit image.
    """
    kind = _kind(data, where)
    try:
        if kind == "jpeg" and _SIMPLEJPEG:
            picture = jpeg_picture(bytes(data), IMAGE_LIMITS, IMAGE_LIMITS.pixels)
            pixels: NDArray[np.uint8] = _decode_jpeg()(picture, colorspace="RGB")
            return pixels
        image = decode_compressed(ImagePayload(np.frombuffer(data, np.uint8), kind))
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


def _decode_into(out: NDArray[np.uint8], data: bytes, where: str, row: int) -> None:
    """Decode an image to where it belongs, without a copy if simplejpeg can."""
    if _SIMPLEJPEG and data.startswith(JPEG_MAGIC):
        try:
            if _decode_jpeg()(_checked(data), colorspace="RGB", buffer=out).shape == out.shape:
                return
        except (RoboCacheError, ValueError):
            pass  # a damaged image, or one of another size, is named below
    image = decode_image(data, f"{where}: image {row}")
    if image.shape != out.shape:
        raise DatasetError(f"{where}: image {row} is {image.shape[:2]}, the first {out.shape[:2]}; repair the file")
    out[...] = image


def _checked(data: bytes) -> bytes:
    """Return a jpeg file for simplejpeg. The images of a camera begin alike: they are checked once."""
    for head in tuple(_heads):  # another thread may add one
        if data.startswith(head):
            return data
    picture = jpeg_picture(data, IMAGE_LIMITS, IMAGE_LIMITS.pixels)
    if head := jpeg_head(picture):
        _heads.append(head)
    return picture
