"""Decodes sensor_msgs Image and CompressedImage to payloads that point into the message."""

from __future__ import annotations

import math
import struct
from typing import Any

from robocache_ros.decode.cdr.numbers import octets
from robocache_ros.decode.cdr.types import Struct
from robocache_ros.decode.cdr.values import scalar, string
from robocache_ros.decode.decoder import Decoder
from robocache_ros.decode.image_files import JPEG_MAGIC, PNG_MAGIC, check_pixels
from robocache_ros.decode.limits import IMAGE_LIMITS
from robocache_ros.decode.payloads import ByteArray, DecodeError, ImagePayload, Sample
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.ops.image.formats import FORMATS, check_image
from robocache_ros.spec import StreamSpec

DEPTH_HEADER = struct.Struct("<iff")  # compression format, then a and b of the quantisation; little endian
_INVERSE_DEPTH = 0


class ImageDecoder(Decoder):
    """A sensor_msgs/msg/Image as ImagePayload; encodings with the same pixels get the same name."""

    def __init__(self, stream: StreamSpec, message: Struct) -> None:
        numbers = [((name,), scalar) for name in ("height", "width", "step")]
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
