"""Decompresses jpeg, png and compressedDepth with Pillow; truncated, corrupt or too large files are refused."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from robocache_ros.decode.image_files import jpeg_picture, png_picture
from robocache_ros.decode.images import DEPTH_HEADER, check_depth
from robocache_ros.decode.limits import IMAGE_LIMITS, ImageLimits
from robocache_ros.decode.payloads import ByteArray, DecodeError, ImagePayload
from robocache_ros.errors import RoboCacheError, printable

_PICTURES = {"jpeg": jpeg_picture, "png": png_picture}


def decode_compressed(image: ImagePayload, limits: ImageLimits = IMAGE_LIMITS) -> ImagePayload:
    """Decompress a jpeg, png or compressedDepth payload; other payloads are returned unchanged.

    Colour becomes rgb8 or rgba8, grey mono8, 16 bits mono16 or 16UC1 (native byte order, rows without padding), and
    depth 32FC1 in metres with NaN where nothing was measured. Only the first picture of a file is used.
    DecodeError if a file is truncated, corrupt or exceeds `limits`; RoboCacheError without Pillow.
    """
    if image.encoding in ("jpeg", "png"):
        pixels = _pixels(image.data, image.encoding, limits, limits.pixels)
        return _payload(pixels, "16UC1" if image.source == "16UC1" else "mono16")
    if image.encoding == "compressedDepth":
        a, b = check_depth(image.data, image.source, "")
        pixels = _pixels(image.data[DEPTH_HEADER.size :], "png", limits, limits.depth_pixels)
        if pixels.dtype != np.uint16 or pixels.ndim != 2:
            raise DecodeError(
                "bad_image", f"data: compressedDepth contains {pixels.dtype} {pixels.shape}, not 16-bit gray"
            )
        return _payload(pixels if image.source != "32FC1" else _depth(pixels, a, b), image.source)
    return image


def first_picture(image: ImagePayload, limits: ImageLimits = IMAGE_LIMITS) -> bytes:
    """The first picture of a jpeg or png payload, as a file for a decompressor; DecodeError beyond `limits`."""
    return _PICTURES[image.encoding](image.data.tobytes(), limits, limits.pixels)


def _depth(quantized: np.ndarray[Any, np.dtype[np.uint16]], a: float, b: float) -> np.ndarray[Any, Any]:
    """Depth in metres from the inverse depth of compressed_depth_image_transport: a / (q - b), NaN if q is 0."""
    with np.errstate(all="ignore"):
        depth: np.ndarray[Any, Any] = np.float32(a) / (quantized.astype(np.float32) - np.float32(b))
    depth[quantized == 0] = np.nan
    return depth


def _payload(pixels: np.ndarray[Any, Any], deep: str) -> ImagePayload:
    height, width = pixels.shape[:2]
    if pixels.dtype == np.uint8:
        encoding = "mono8" if pixels.ndim == 2 else {3: "rgb8", 4: "rgba8"}[pixels.shape[2]]
    else:
        encoding = deep
    data: ByteArray = np.ascontiguousarray(pixels).reshape(-1).view(np.uint8)
    big_endian = pixels.dtype.itemsize > 1 and not np.little_endian
    return ImagePayload(data, encoding, width, height, len(data) // height, big_endian)


def _pixels(data: ByteArray, kind: str, limits: ImageLimits, pixels: int) -> np.ndarray[Any, Any]:
    """(H, W) uint8 or uint16, or (H, W, 3|4) uint8."""
    try:
        from PIL import Image
    except ImportError:
        raise RoboCacheError("compressed images need Pillow; pip install pillow") from None
    picture = _PICTURES[kind](data.tobytes(), limits, pixels)
    try:
        with Image.open(io.BytesIO(picture), formats=[kind.upper()]) as opened:
            mode = opened.mode
            if mode in ("I", "I;16", "I;16B"):
                return np.asarray(opened).astype(np.uint16, copy=False)
            if mode not in ("L", "RGB", "RGBA"):
                return np.asarray(opened.convert("L" if mode in ("1", "LA") else "RGB"))
            return np.asarray(opened)
    except Exception as error:  # Pillow raises many kinds of errors for bytes that it cannot read
        raise DecodeError("bad_image", f"data: cannot decode the {kind}: {printable(error)}") from None
