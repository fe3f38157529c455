"""The reference for images, in plain float64, one pixel at a time.

It is written to be read and rounds nothing. Backends differ from it by their rounding: for 8-bit images half a level
for each rounding to 8 bits, and an eighth for the weights.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_PACKED = {"rgb8": (3, "rgb"), "bgr8": (3, "bgr"), "rgba8": (4, "rgba"), "bgra8": (4, "bgra")}
_PACKED |= {"8UC3": _PACKED["bgr8"], "8UC4": _PACKED["bgra8"]}


def pixel(data: bytes, encoding: str, shape: tuple[int, int, int], big_endian: bool, x: int, y: int) -> list[float]:
    """R, G and B, or the one value, at column x, row y; `shape` is (width, height, step)."""
    _, height, step = shape
    row = y * step
    if encoding in _PACKED:
        size, order = _PACKED[encoding]
        return [float(data[row + x * size + order.index(channel)]) for channel in "rgb"]
    if encoding in ("mono8", "8UC1"):
        return [float(data[row + x])]
    order = ">" if big_endian else "<"
    if encoding in ("mono16", "16UC1"):
        return [float(struct.unpack_from(order + "H", data, row + 2 * x)[0])]
    if encoding == "32FC1":
        return [float(struct.unpack_from(order + "f", data, row + 4 * x)[0])]
    if encoding.startswith("bayer_"):
        return _bayer(data, encoding[6:10], shape, x, y)
    pair = row + x // 2 * 4
    if encoding == "nv12":
        chroma = height * step + y // 2 * step + x // 2 * 2
        return _bt601(data[row + x], data[chroma], data[chroma + 1])
    if encoding in ("uyvy", "yuv422"):
        return _bt601(data[pair + 1 + x % 2 * 2], data[pair], data[pair + 2])
    return _bt601(data[pair + x % 2 * 2], data[pair + 1], data[pair + 3])


def _bt601(luma: int, u: int, v: int) -> list[float]:
    """Limited range: 16 is black, 235 white."""
    y = 255 / 219 * max(luma - 16, 0)
    cb, cr = 255 / 224 * (u - 128), 255 / 224 * (v - 128)
    red, blue = y + 1.402 * cr, y + 1.772 * cb
    green = y - 0.114 * 1.772 / 0.587 * cb - 0.299 * 1.402 / 0.587 * cr
    return [min(max(value, 0.0), 255.0) for value in (red, green, blue)]


def _bayer(data: bytes, pattern: str, shape: tuple[int, int, int], x: int, y: int) -> list[float]:
    """A colour is the pixel's own, or the mean of the neighbours, of eight, that have it; mirrored at the border."""
    width, height, step = shape
    found: dict[str, list[int]] = {"r": [], "g": [], "b": []}
    for j in (y - 1, y, y + 1):
        for i in (x - 1, x, x + 1):
            inside_x = -i if i < 0 else 2 * width - 2 - i if i >= width else i
            inside_y = -j if j < 0 else 2 * height - 2 - j if j >= height else j
            found[pattern[j % 2 * 2 + i % 2]].append(data[inside_y * step + inside_x])
    own = pattern[y % 2 * 2 + x % 2]
    found[own] = [data[y * step + x]]
    return [sum(found[channel]) / len(found[channel]) for channel in "rgb"]


def image(
    data: bytes,
    encoding: str,
    shape: tuple[int, int, int],
    size: tuple[int, int],
    *,
    crop: tuple[int, int, int, int] | None = None,
    resize: str = "bilinear",
    big_endian: bool = False,
) -> Array:
    """The (C, *size) image; `shape` is (width, height, step), `crop` top, left, height, width."""
    top, left, rows, columns = crop or (0, 0, shape[1], shape[0])
    weights_y = [_weights(i, rows, size[0], resize) for i in range(size[0])]
    weights_x = [_weights(i, columns, size[1], resize) for i in range(size[1])]
    channels = len(pixel(data, encoding, shape, big_endian, left, top))
    out = np.zeros((channels, *size))
    for y, x in np.ndindex(*size):
        for j, wy in weights_y[y].items():
            for i, wx in weights_x[x].items():
                out[:, y, x] += wy * wx * np.array(pixel(data, encoding, shape, big_endian, left + i, top + j))
    return out


def _weights(index: int, size: int, out: int, resize: str) -> dict[int, float]:
    """The weight of each source pixel in a pixel of the result."""
    if resize == "area":
        start, end = index * size / out, (index + 1) * size / out
        overlaps = {i: min(i + 1, end) - max(i, start) for i in range(size)}
        return {i: overlap * out / size for i, overlap in overlaps.items() if overlap > 1e-9}
    centre = (index + 0.5) * size / out
    if resize == "nearest":
        return {min(math.floor(centre + 1e-9), size - 1): 1.0}
    centre = max(centre - 0.5, 0.0)
    lower = min(math.floor(centre), size - 1)
    weights = {lower: 1 - (centre - lower)}
    upper = min(lower + 1, size - 1)
    weights[upper] = weights.get(upper, 0.0) + (centre - lower)
    return weights
