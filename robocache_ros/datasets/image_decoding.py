"""The images of a stream, decoded at the rows that are used."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.episode_source import DatasetError, Stream, check_image_bytes
from robocache_ros.decode.compressed import decode_compressed
from robocache_ros.decode.image_files import JPEG_MAGIC, PNG_MAGIC, jpeg_picture
from robocache_ros.decode.limits import IMAGE_LIMITS
from robocache_ros.decode.payloads import ImagePayload
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need

_SIMPLEJPEG = find_spec("simplejpeg") is not None


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
    rising = bool(len(rows) and rows[0] >= 0 and (rows[1:] > rows[:-1]).all())
    distinct, place = (rows, rows) if rising else np.unique(rows[rows >= 0], return_inverse=True)
    if not len(distinct):
        distinct = np.zeros(1, np.int64)  # for the size
    where = f"{where}: {printable(stream.name, 40)}"
    values = stream.values
    if isinstance(values, np.ndarray):
        decoded: NDArray[Any] = values[distinct]
    elif hasattr(values, "frames"):
        decoded = values.frames(distinct)
    else:
        decoded = _decoded(values, distinct, where)
    if rising:
        return decoded
    check_image_bytes(len(rows), (*decoded.shape[1:], decoded.itemsize), where)
    found = np.zeros((len(rows), *decoded.shape[1:]), decoded.dtype)
    found[rows >= 0] = decoded[place]
    return found


def decode_image(data: bytes | memoryview, where: str) -> NDArray[np.uint8]:
    """Return the (H, W, 3) uint8 RGB image of a jpeg or png file; by simplejpeg where it is installed, else by Pillow.

    Errors:
        DatasetError: it is damaged, is too large, or is not an 8-bit image.
    """
    head = bytes(data[: len(PNG_MAGIC)])
    kind = "jpeg" if head.startswith(JPEG_MAGIC) else "png" if head == PNG_MAGIC else ""
    if not kind:
        raise DatasetError(f"{where}: neither jpeg nor png; repair the file or leave the episode out")
    try:
        if kind == "jpeg" and _SIMPLEJPEG:
            picture = jpeg_picture(bytes(data), IMAGE_LIMITS, IMAGE_LIMITS.pixels)
            pixels: NDArray[np.uint8] = _decode_jpeg()(picture, colorspace="RGB")
            return pixels
        image = decode_compressed(ImagePayload(np.frombuffer(data, np.uint8), kind))
    except (RoboCacheError, ValueError) as error:
        raise DatasetError(f"{where}: {printable(error, 100)}; repair the file or leave the episode out") from None
    return _rgb(image, where)


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


def _decoded(files: Any, rows: NDArray[np.int64], where: str) -> NDArray[np.uint8]:
    first = decode_image(files[int(rows[0])], f"{where}: image {rows[0]}")
    check_image_bytes(len(rows), first.shape, where)
    found = np.empty((len(rows), *first.shape), np.uint8)
    found[0] = first
    for place, row in enumerate(rows.tolist()[1:], start=1):
        _decode_into(found[place], files[row], f"{where}: image {row}")
    return found


def _decode_into(out: NDArray[np.uint8], data: bytes | memoryview, where: str) -> None:
    """Decode an image to where it belongs, without a copy if simplejpeg can."""
    if _SIMPLEJPEG and bytes(data[: len(JPEG_MAGIC)]) == JPEG_MAGIC:
        with suppress(RoboCacheError, ValueError):  # a damaged image, or one of another size, is named below
            picture = jpeg_picture(bytes(data), IMAGE_LIMITS, IMAGE_LIMITS.pixels)
            if _decode_jpeg()(picture, colorspace="RGB", buffer=out).shape == out.shape:
                return
    image = decode_image(data, where)
    if image.shape != out.shape:
        raise DatasetError(f"{where} is {image.shape[:2]}, the first {out.shape[:2]}; repair the file")
    out[...] = image
