"""Decompression of jpeg, png and compressedDepth with Pillow, guarded against cut, corrupt and oversized files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from robocache_ros.decode.images import DEPTH_HEADER, check_depth
from robocache_ros.decode.payloads import ByteArray, DecodeError, ImagePayload
from robocache_ros.errors import RoboCacheError

MAX_PIXELS = 64 * 2**20  # a small file may claim any size; no camera has more
_END = {"jpeg": b"\xff\xd9", "png": b"IEND\xaeB`\x82"}


def decode_compressed(image: ImagePayload) -> ImagePayload:
    """Decompress a jpeg, png or compressedDepth payload; others come back as they are.

    Colour comes as rgb8 or rgba8, grey as mono8, 16 bits as mono16 or 16UC1 (native byte order, rows without padding),
    32FC1 depth in metres with NaN where nothing was measured. DecodeError for a file that is cut, corrupt or too large;
    RoboCacheError without Pillow.
    """
    if image.encoding in ("jpeg", "png"):
        pixels = _pixels(image.data, image.encoding)
        return _payload(pixels, "16UC1" if image.source == "16UC1" else "mono16")
    if image.encoding == "compressedDepth":
        a, b = check_depth(image.data, image.source, "")
        pixels = _pixels(image.data[DEPTH_HEADER.size :], "png")
        if pixels.dtype != np.uint16 or pixels.ndim != 2:
            raise DecodeError(
                "bad_image", f"data: compressedDepth holds {pixels.dtype} {pixels.shape}, not 16-bit grey"
            )
        return _payload(pixels if image.source != "32FC1" else _depth(pixels, a, b), image.source)
    return image


def _depth(quantized: np.ndarray[Any, np.dtype[np.uint16]], a: float, b: float) -> np.ndarray[Any, Any]:
    """Depth in metres of compressed_depth_image_transport's inverse depth: a / (q - b), NaN where q is 0."""
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


def _pixels(data: ByteArray, kind: str) -> np.ndarray[Any, Any]:
    """(H, W) uint8 or uint16, or (H, W, 3|4) uint8."""
    try:
        from PIL import Image
    except ImportError:
        raise RoboCacheError("compressed images need Pillow; pip install pillow") from None
    raw = data.tobytes()
    if _END[kind] not in raw:
        raise DecodeError("truncated", f"data: the {kind} of {len(raw)} bytes has no end")
    try:
        opened: Image.Image = Image.open(io.BytesIO(raw), formats=[kind.upper()])
        width, height = opened.size
        if width * height > MAX_PIXELS:
            raise DecodeError("image_size", f"data: a {kind} of {width}x{height} pixels; {MAX_PIXELS} are allowed")
        with opened:
            mode = opened.mode
            if mode in ("I", "I;16", "I;16B"):
                return np.asarray(opened).astype(np.uint16)
            if mode not in ("L", "RGB", "RGBA"):
                return np.asarray(opened.convert("L" if mode in ("1", "LA") else "RGB"))
            return np.asarray(opened)
    except DecodeError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError("image_size", f"data: {error}") from None
    except Exception as error:  # Pillow raises errors of many kinds over bytes that it cannot read
        raise DecodeError("bad_image", f"data: not a {kind} that can be read: {error}") from None
