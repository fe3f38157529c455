"""Reads the structure of jpeg and png files before a decompressor reads them.

A small file may declare any number of pixels, scans, chunks or frames. Both functions return the file without the parts
that its first picture does not need (comments, colour profiles, thumbnails, further frames), so that no decompressor
reads these parts.
"""

from __future__ import annotations

import struct

import numpy as np

from robocache_ros.decode.limits import ImageLimits
from robocache_ros.decode.payloads import DecodeError

JPEG_MAGIC = b"\xff\xd8\xff"
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"

_SOI, _EOI, _SOS = 0xD8, 0xD9, 0xDA
_FRAMES = range(0xC0, 0xD0)  # SOF markers, except the three below
_NOT_FRAMES = (0xC4, 0xC8, 0xCC)
_PROGRESSIVE = 0xC2
_DECODED_FRAMES = (0xC0, 0xC1, _PROGRESSIVE)  # the first two: baseline and extended sequential
_BARE = (0x01, *range(0xD0, 0xD9))  # markers that no data follows
_KEPT_APPS = (0xE0, 0xEE)  # JFIF, and Adobe's, which names the colour space
_COMMENT = 0xFE
_PNG_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
_HEADER = struct.Struct(">I4s")


def jpeg_picture(raw: bytes, limits: ImageLimits, pixels: int) -> bytes:
    """The first picture of a jpeg file; DecodeError if it is truncated or exceeds `pixels` or `limits`."""
    end = len(raw)
    parts, size, pos = [raw[:2]], None, 2
    for _ in range(limits.segments):
        pos = raw.find(b"\xff", pos)  # libjpeg also skips bytes between segments
        while 0 <= pos < end - 1 and raw[pos + 1] == 0xFF:
            pos += 1
        if pos < 0 or pos + 4 > end:
            raise DecodeError("truncated", f"data: the jpeg of {end} bytes has no image")
        marker = raw[pos + 1]
        if marker == 0 or marker in _BARE:
            pos += 2
            continue
        stop = pos + 2 + (raw[pos + 2] << 8 | raw[pos + 3])
        if marker == _EOI or stop < pos + 4 or stop > end:
            raise DecodeError("truncated", f"data: the jpeg of {end} bytes ends before its image")
        if marker in _FRAMES and marker not in _NOT_FRAMES:
            size = _frame_size(raw, marker, pos, stop)
            check_pixels("jpeg", *size, pixels)
        if marker == _SOS:
            parts.append(_scans(raw, pos, limits))
            break
        if marker != _COMMENT and (not 0xE0 <= marker <= 0xEF or marker in _KEPT_APPS):
            parts.append(raw[pos:stop])
        pos = stop
    else:
        raise DecodeError("image_size", f"data: a jpeg of more than {limits.segments} segments")
    if size is None:
        raise DecodeError("bad_image", "data: a jpeg with a scan before its size")
    return b"".join(parts)


def jpeg_frame(picture: bytes) -> tuple[int, int, int]:
    """Width, height and channels of what `jpeg_picture` has returned."""
    pos = 2
    while (marker := picture[pos + 1]) not in _FRAMES or marker in _NOT_FRAMES:
        pos += 2 + (picture[pos + 2] << 8 | picture[pos + 3])
    return *_frame_size(picture, marker, pos, len(picture)), picture[pos + 9]


def jpeg_head(picture: bytes) -> bytes:
    """The bytes before the first data of what `jpeg_picture` has returned; none if it may have several scans.

    A file that begins with the same bytes is as large, and libjpeg does not decode a second scan of it.
    """
    pos, components = 2, 0
    while (marker := picture[pos + 1]) != _SOS:
        if marker in _FRAMES and marker not in _NOT_FRAMES:
            components = 0 if marker == _PROGRESSIVE else picture[pos + 9]
        pos += 2 + (picture[pos + 2] << 8 | picture[pos + 3])
    return picture[: pos + 2 + (picture[pos + 2] << 8 | picture[pos + 3])] if picture[pos + 4] == components else b""


def _frame_size(raw: bytes, marker: int, pos: int, stop: int) -> tuple[int, int]:
    if marker not in _DECODED_FRAMES or stop < pos + 10 or raw[pos + 4] != 8:
        raise DecodeError("bad_image", "data: neither a baseline nor a progressive jpeg of 8 bits; publish one of them")
    return raw[pos + 7] << 8 | raw[pos + 8], raw[pos + 5] << 8 | raw[pos + 6]


def _scans(raw: bytes, pos: int, limits: ImageLimits) -> bytes:
    """From the first scan to the end of the picture. In coded data, a marker's byte never follows a byte 0xFF."""
    data = np.frombuffer(raw, np.uint8, offset=pos)  # one pass of NumPy takes a fraction of the time of bytes.find
    (places,) = (data[:-1] == 0xFF).nonzero()
    markers = data[places + 1]
    (ends,) = (markers == _EOI).nonzero()
    if not len(ends):
        raise DecodeError("truncated", f"data: the jpeg of {len(raw)} bytes has no end")
    scans = np.count_nonzero(markers[: ends[0]] == _SOS)
    if scans > limits.scans:
        raise DecodeError("image_scans", f"data: a jpeg of {scans} scans; {limits.scans} are allowed")
    return raw[pos : pos + int(places[ends[0]]) + 2]


def png_picture(raw: bytes, limits: ImageLimits, pixels: int) -> bytes:
    """The first picture of a png file; DecodeError if it is truncated or exceeds `pixels` or `limits`."""
    end, pos = len(raw), len(PNG_MAGIC)
    parts = [raw[:pos]]
    for number in range(limits.chunks):
        if pos + 12 > end:
            raise DecodeError("truncated", f"data: the png of {end} bytes has no end")
        length, kind = _HEADER.unpack_from(raw, pos)
        stop = pos + 12 + length
        if stop > end:
            raise DecodeError("truncated", f"data: the png of {end} bytes ends within a chunk")
        if (number == 0) != (kind == b"IHDR") or (number == 0 and length != 13):
            raise DecodeError("bad_image", "data: a png that does not begin with its size")
        if number == 0:
            width, height = struct.unpack_from(">II", raw, pos + 8)
            check_pixels("png", width, height, pixels)
        if kind in _PNG_CHUNKS:
            parts.append(raw[pos:stop])
        if kind == b"IEND":
            return b"".join(parts)
        pos = stop
    raise DecodeError("image_size", f"data: a png of more than {limits.chunks} chunks")


def check_pixels(kind: str, width: int, height: int, limit: int) -> None:
    """Refuse an image without pixels, or with more than `limit` pixels."""
    if not width or not height or width * height > limit:
        raise DecodeError("image_size", f"data: a {kind} of {width}x{height} pixels; 1 to {limit} are allowed")
