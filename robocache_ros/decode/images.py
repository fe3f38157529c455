"""Decodes images and camera information: raw, compressed, and compressed depth."""

from __future__ import annotations

import io
import math
import struct
from typing import Any

import numpy as np

from robocache_ros.decode.cdr import integer, numbers, octets, scalar, string
from robocache_ros.decode.decoder import Decoder
from robocache_ros.decode.definitions import Struct
from robocache_ros.decode.payloads import (
    IMAGE_LIMITS,
    ByteArray,
    CameraPayload,
    DecodeError,
    ImageLimits,
    ImagePayload,
    Sample,
)
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.ops.image.formats import FORMATS, check_image
from robocache_ros.spec import StreamSpec

# Reads the structure of jpeg and png files before a decompressor reads them.
#
# A small file may declare any number of pixels, scans, chunks or frames. Both functions return the file without the
# parts that its first picture does not need (comments, colour profiles, thumbnails, further frames), so that no
# decompressor reads these parts.

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


DEPTH_HEADER = struct.Struct("<iff")  # compression format, then a and b of the quantisation; little endian
_INVERSE_DEPTH = 0


class ImageDecoder(Decoder):
    """A sensor_msgs/msg/Image as ImagePayload; encodings with the same pixels get the same name."""

    def __init__(self, stream: StreamSpec, message: Struct) -> None:
        numbers = [((name,), integer) for name in ("height", "width", "step")]
        super().__init__(
            stream, message, [*numbers, (("encoding",), string), (("is_bigendian",), scalar), (("data",), octets)]
        )
        self._layout: tuple[int, int, int, str] | None = None  # the last layout that was checked
        self._encoding, self._nbytes = "", 0

    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample:
        height, width, step, name, big_endian, data = values
        if (height, width, step, name) != self._layout or len(data) < self._nbytes:
            self._encoding, self._nbytes = _checked(height, width, step, name, len(data))
            self._layout = height, width, step, name
        data = data[: self._nbytes]
        return Sample(stamp_ns, ImagePayload(data, self._encoding, width, height, step, bool(big_endian)))


def _checked(height: int, width: int, step: int, name: str, nbytes: int) -> tuple[str, int]:
    """The encoding's usual name and the size of the image in bytes; DecodeError if they do not match."""
    fmt = FORMATS.get(name)
    if fmt is None:
        usual = ", ".join(f.name for f in FORMATS.values() if not f.alias_of)
        raise DecodeError("bad_encoding", f"encoding: '{printable(name, 16)}' is not one of {usual}")
    try:
        check_image(fmt, width, height, step, nbytes)
    except RoboCacheError as error:
        raise DecodeError("image_size", str(error)) from None
    if step % fmt.value_bytes:
        raise DecodeError(
            "image_size", f"step: {step} is not a multiple of the {fmt.value_bytes} bytes of a {name} value"
        )
    check_pixels("raw image", width, height, IMAGE_LIMITS.pixels)
    return fmt.alias_of or name, step * fmt.rows(height)


class CompressedImageDecoder(Decoder):
    """A sensor_msgs/msg/CompressedImage as ImagePayload: jpeg, png or compressedDepth, not yet decompressed.

    The type of the file is detected from its first bytes, because drivers fill `format` in many ways. `source` is the
    encoding at the start of `format`, if it names one.
    """

    def __init__(self, stream: StreamSpec, message: Struct) -> None:
        super().__init__(stream, message, [(("format",), string), (("data",), octets)])

    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample:
        text, data = values
        source, _, rest = (part.strip() for part in text.partition(";"))
        if source not in FORMATS:
            source = ""
        if "compressedDepth" in text:
            check_depth(data, source, rest)
            return Sample(stamp_ns, ImagePayload(data, "compressedDepth", source=source))
        if data[: len(JPEG_MAGIC)].tobytes() == JPEG_MAGIC:
            return Sample(stamp_ns, ImagePayload(data, "jpeg", source=source))
        if data[: len(PNG_MAGIC)].tobytes() == PNG_MAGIC:
            return Sample(stamp_ns, ImagePayload(data, "png", source=source))
        if any(word in text.lower() for word in ("jpeg", "jpg", "png")):
            raise DecodeError(
                "bad_image", f"data: {len(data)} bytes that are neither a jpeg nor a png ('{printable(text, 40)}')"
            )
        raise DecodeError(
            "bad_encoding", f"format: '{printable(text, 40)}' is not one of jpeg, png, compressedDepth png"
        )


def check_depth(data: ByteArray, source: str, rest: str) -> tuple[float, float]:
    """The quantisation (a, b) of a compressedDepth image; DecodeError if header, codec or encoding is not for depth."""
    if "rvl" in rest.lower():
        raise DecodeError("bad_encoding", "format: compressedDepth rvl is not supported; publish compressedDepth png")
    if source not in ("16UC1", "mono16", "32FC1"):
        raise DecodeError(
            "bad_encoding", f"format: compressedDepth of '{source}'; only 16UC1 and 32FC1 are depth images"
        )
    head = DEPTH_HEADER.size
    if data[head : head + len(PNG_MAGIC)].tobytes() != PNG_MAGIC:
        raise DecodeError("bad_image", f"data: no png after the {head}-byte header of compressedDepth")
    kind, a, b = DEPTH_HEADER.unpack(data[:head].tobytes())
    if source == "32FC1" and (kind != _INVERSE_DEPTH or not math.isfinite(a) or not math.isfinite(b) or a <= 0):
        raise DecodeError(
            "bad_image",
            f"data: compressedDepth header (format {kind}, a {a}, b {b}) is not inverse depth",
        )
    return a, b


_PICTURES = {"jpeg": jpeg_picture, "png": png_picture}


def decode_compressed(
    image: ImagePayload, limits: ImageLimits = IMAGE_LIMITS, reduced: int | None = None
) -> ImagePayload:
    """Decompress a jpeg, png or compressedDepth payload; other payloads are returned unchanged.

    Colour becomes rgb8 or rgba8, grey mono8, 16 bits mono16 or 16UC1 (native byte order, rows without padding), and
    depth 32FC1 in metres with NaN where nothing was measured. Only the first picture of a file is used. libjpeg decodes
    a jpeg at 1 / `reduced` of its size, of 2, 4 or 8.
    DecodeError if a file is truncated, corrupt or exceeds `limits`; RoboCacheError without Pillow.
    """
    if image.encoding in ("jpeg", "png"):
        pixels = _pixels(image.data, image.encoding, limits, limits.pixels, reduced)
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


def first_picture(image: ImagePayload) -> bytes:
    """The first picture of a jpeg or png payload, as a file for a decompressor; DecodeError beyond IMAGE_LIMITS."""
    return _PICTURES[image.encoding](image.data.tobytes(), IMAGE_LIMITS, IMAGE_LIMITS.pixels)


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


def _pixels(
    data: ByteArray, kind: str, limits: ImageLimits, pixels: int, reduced: int | None = None
) -> np.ndarray[Any, Any]:
    """(H, W) uint8 or uint16, or (H, W, 3|4) uint8."""
    try:
        from PIL import Image
    except ImportError:
        raise RoboCacheError("compressed images need Pillow; pip install pillow") from None
    picture = _PICTURES[kind](data.tobytes(), limits, pixels)
    try:
        with Image.open(io.BytesIO(picture), formats=[kind.upper()]) as opened:
            if reduced and kind == "jpeg":
                opened.draft(None, (opened.width // reduced, opened.height // reduced))
            mode = opened.mode
            if mode in ("I", "I;16", "I;16B"):
                return np.asarray(opened).astype(np.uint16, copy=False)
            if mode not in ("L", "RGB", "RGBA"):
                return np.asarray(opened.convert("L" if mode in ("1", "LA") else "RGB"))
            return np.asarray(opened)
    except Exception as error:  # Pillow raises many kinds of errors for bytes that it cannot read
        raise DecodeError("bad_image", f"data: cannot decode the {kind}: {printable(error)}") from None


class CameraDecoder(Decoder):
    """A sensor_msgs/msg/CameraInfo as CameraPayload: P, or K if P is not set, of the binned region of interest.

    P is the camera of the rectified image, as in depth_image_proc. The distortion of the raw image is not read.
    """

    def __init__(self, stream: StreamSpec, message: Struct) -> None:
        scalars = [((name,), integer) for name in ("height", "width", "binning_x", "binning_y")]
        window = [(("roi", name), integer) for name in ("x_offset", "y_offset", "height", "width")]
        super().__init__(stream, message, [*scalars, *window, (("k",), numbers), (("p",), numbers)])

    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample:
        height, width, bin_x, bin_y, left, top, rows, columns, k, p = values
        if len(k) != 9 or len(p) != 12:
            raise DecodeError("bad_length", f"camera_info: k has {len(k)} values and p {len(p)}; 9 and 12 are expected")
        fx, fy, cx, cy = (p[0], p[5], p[2], p[6]) if p[0] else (k[0], k[4], k[2], k[5])
        bin_x, bin_y = max(bin_x, 1), max(bin_y, 1)
        camera = (float(fx) / bin_x, float(fy) / bin_y, (float(cx) - left) / bin_x, (float(cy) - top) / bin_y)
        if not all(map(math.isfinite, camera)) or camera[0] <= 0 or camera[1] <= 0:
            raise DecodeError("uncalibrated", f"camera_info: fx, fy, cx, cy = {camera}; calibrate the camera")
        return Sample(stamp_ns, CameraPayload((columns or width) // bin_x, (rows or height) // bin_y, camera))
