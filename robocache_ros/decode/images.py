"""Images: sensor_msgs Image and CompressedImage to payloads that point into the message."""

from __future__ import annotations

import math
import struct
from typing import Any

from robocache_ros.decode.decoder import Decoder
from robocache_ros.decode.numeric import OCTETS
from robocache_ros.decode.payloads import ByteArray, DecodeError, ImagePayload, Sample
from robocache_ros.decode.types import Struct
from robocache_ros.decode.values import SCALAR, STRING
from robocache_ros.spec import StreamSpec

# Bytes a pixel of a row (nv12: of a luma row) by encoding.
PIXEL_BYTES = {
    "rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono8": 1, "mono16": 2, "16UC1": 2, "32FC1": 4,
    "yuv422": 2, "yuv422_yuy2": 2, "nv12": 1,
    "bayer_rggb8": 1, "bayer_bggr8": 1, "bayer_gbrg8": 1, "bayer_grbg8": 1,
}  # fmt: skip
# Other names of the same pixels; 8UC3 and 8UC4 say no order and are OpenCV's.
ALIASES = {
    "8UC1": "mono8", "8UC3": "bgr8", "8UC4": "bgra8", "uyvy": "yuv422", "yuyv": "yuv422_yuy2",
}  # fmt: skip
_EVEN_WIDTH = ("yuv422", "yuv422_yuy2", "nv12")

JPEG_MAGIC = b"\xff\xd8\xff"
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
DEPTH_HEADER = struct.Struct("<iff")  # compression format, then the quantisation's a and b; written little endian
_INVERSE_DEPTH = 0


class ImageDecoder(Decoder):
    """A sensor_msgs/msg/Image as ImagePayload; encodings that are the same pixels come under one name."""

    def __init__(self, stream: StreamSpec, message: Struct) -> None:
        numbers = [((name,), SCALAR) for name in ("height", "width", "is_bigendian", "step")]
        super().__init__(stream, message, [*numbers, (("encoding",), STRING), (("data",), OCTETS)])

    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample:
        height, width, big_endian, step, name, data = values
        encoding = ALIASES.get(name, name)
        pixel = PIXEL_BYTES.get(encoding)
        if pixel is None:
            raise DecodeError("bad_encoding", f"encoding: {name!r} is not one of {', '.join((*PIXEL_BYTES, *ALIASES))}")
        if not width or not height or step < width * pixel:
            raise DecodeError("image_size", f"step: {step} for {width}x{height} {encoding}; rows need {width * pixel}")
        rows = height
        if encoding in _EVEN_WIDTH and (width % 2 or (encoding == "nv12" and height % 2)):
            raise DecodeError("image_size", f"width: {width}x{height} is odd, which {encoding} cannot be")
        if encoding == "nv12":
            rows += height // 2
        if step * rows > len(data):
            raise DecodeError("image_size", f"data: {len(data)} bytes, but {rows} rows of {step} need {step * rows}")
        return Sample(stamp_ns, ImagePayload(data[: step * rows], encoding, width, height, step, bool(big_endian)))


class CompressedImageDecoder(Decoder):
    """A sensor_msgs/msg/CompressedImage as ImagePayload: jpeg, png or compressedDepth, not yet decompressed.

    What the bytes are is seen from their first ones, since drivers fill `format` in many ways; `source` is the
    encoding that `format` begins with, where it names one.
    """

    def __init__(self, stream: StreamSpec, message: Struct) -> None:
        super().__init__(stream, message, [(("format",), STRING), (("data",), OCTETS)])

    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample:
        text, data = values
        source, _, rest = (part.strip() for part in text.partition(";"))
        if source not in PIXEL_BYTES and source not in ALIASES:
            source = ""
        if "compressedDepth" in text:
            check_depth(data, source, rest)
            return Sample(stamp_ns, ImagePayload(data, "compressedDepth", source=source))
        if data[: len(JPEG_MAGIC)].tobytes() == JPEG_MAGIC:
            return Sample(stamp_ns, ImagePayload(data, "jpeg", source=source))
        if data[: len(PNG_MAGIC)].tobytes() == PNG_MAGIC:
            return Sample(stamp_ns, ImagePayload(data, "png", source=source))
        if any(word in text.lower() for word in ("jpeg", "jpg", "png")):
            raise DecodeError("bad_image", f"data: {len(data)} bytes that are neither a jpeg nor a png ({text!r})")
        raise DecodeError("bad_encoding", f"format: {text!r} is not one of jpeg, png, compressedDepth png")


def check_depth(data: ByteArray, source: str, rest: str) -> tuple[float, float]:
    """The quantisation (a, b) of a compressedDepth image; DecodeError if header, codec or encoding will not do."""
    if "rvl" in rest.lower():
        raise DecodeError("bad_encoding", "format: compressedDepth rvl is not supported; publish compressedDepth png")
    if source not in ("16UC1", "mono16", "32FC1"):
        raise DecodeError("bad_encoding", f"format: compressedDepth of {source!r}; only 16UC1 and 32FC1 are depth")
    head = DEPTH_HEADER.size
    if data[head : head + len(PNG_MAGIC)].tobytes() != PNG_MAGIC:
        raise DecodeError("bad_image", f"data: no png after the {head}-byte header of compressedDepth")
    kind, a, b = DEPTH_HEADER.unpack(data[:head].tobytes())
    if source == "32FC1" and (kind != _INVERSE_DEPTH or not math.isfinite(a) or not math.isfinite(b) or a <= 0):
        raise DecodeError(
            "bad_image", f"data: compressedDepth header (format {kind}, a {a}, b {b}) is no inverse depth"
        )
    return a, b
