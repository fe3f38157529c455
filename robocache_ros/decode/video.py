"""Decodes messages of H.264 and H.265 video, foxglove_msgs CompressedVideo and FFMPEGPacket, to pixels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from robocache_ros.decode.cdr import octets, string
from robocache_ros.decode.decoder import Decoder
from robocache_ros.decode.definitions import Struct
from robocache_ros.decode.images import check_pixels
from robocache_ros.decode.payloads import IMAGE_LIMITS, DecodeError, ImagePayload, Sample
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec import VIDEO_TYPES, FusionSpec, StreamSpec

if TYPE_CHECKING:
    from av.video.codeccontext import VideoCodecContext

_CODECS = {"h264": "h264", "h265": "hevc", "hevc": "hevc"}  # by the name in a message
_START = b"\0\0\1"  # of a NAL unit in Annex B
_HEAD_BYTES = 64  # of a NAL unit, of which a few are read
_SLICE, _KEY_SLICE, _PARAMETERS = 1, 5, 7  # types of NAL units in H.264
_PLAIN_PROFILES, _HIGH_PROFILES = (66, 77, 88), (44, 100, 110, 122, 244)
_SEPARATE_PLANES = 3  # chroma format whose planes may be coded separately
_LONGEST = 32  # zeros at the start of a number
_MAX_NUMBER_BITS = 16  # of the number of a picture


class VideoDecoder(Decoder):
    """A message with one picture of a video as ImagePayload in rgb8.

    A picture depends on those before it, so that every message is decoded when it comes, in the order of the log.
    Messages before the first key frame, and from a damaged message to the next key frame, are refused.
    """

    def __init__(self, stream: StreamSpec, message: Struct) -> None:
        foxglove = message.name == VIDEO_TYPES[0]
        name, stamped = ("format", ("timestamp",)) if foxglove else ("encoding", ())
        super().__init__(stream, message, [((name,), string), (("data",), octets)], stamped=stamped)
        self._context: VideoCodecContext | None = None
        self._codec = ""
        self._numbers = FrameNumbers()
        self._follows = False  # the pictures that the next one depends on are decoded

    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample:
        codec, packet = _packet(*values)
        if self._context is None or codec != self._codec or not self._follows:
            if not is_key_frame(packet, codec):
                raise DecodeError("no_key_frame", "data: depends on an earlier picture that is missing or damaged")
            self._context, self._codec = _opened(codec), codec
            self._numbers = FrameNumbers()
        self._follows = False  # unless this picture is decoded
        if codec == "h264" and not self._numbers.follows(packet):
            raise DecodeError("no_key_frame", "data: the message before it is missing; pictures depend on it")
        pixels = _decoded(self._context, packet)
        self._follows = True
        height, width, channels = pixels.shape
        return Sample(stamp_ns, ImagePayload(pixels.reshape(-1), "rgb8", width, height, channels * width))


class PacketDecoder(VideoDecoder):
    """The packet of a message as ImagePayload in h264 or hevc, not decoded."""

    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample:
        codec, packet = _packet(*values)
        return Sample(stamp_ns, ImagePayload(np.frombuffer(packet, np.uint8), codec))


def _packet(text: str, data: Any) -> tuple[str, bytes]:
    """Return the codec and the packet of a message."""
    codec = _CODECS.get(text.partition(";")[0].strip().lower())
    if codec is None:
        raise DecodeError("bad_encoding", f"format: '{printable(text, 40)}' is not one of h264, h265, hevc")
    return codec, data.tobytes()


class FrameNumbers:
    """Notices lost messages of H.264 by the numbers of its reference pictures; a decoder would fill the gap by guesses.

    Streams that may leave numbers out, and those whose parameter set cannot be read, are not checked.
    """

    def __init__(self) -> None:
        self._bits = 0  # of a number; 0: unknown
        self._last = 0  # number of the last reference picture

    def follows(self, packet: bytes) -> bool:
        """Whether a packet is the next one."""
        for head, unit in _units(packet):
            kind = head & 31
            if kind == _PARAMETERS:
                self._bits = _number_bits(_Bits(unit))
            elif kind in (_SLICE, _KEY_SLICE):
                return self._is_next(kind == _KEY_SLICE, bool(head >> 5 & 3), _Bits(unit))
        return True

    def _is_next(self, key: bool, reference: bool, bits: _Bits) -> bool:
        if not self._bits:
            return True
        for _ in range(3):  # first macroblock, type of the slice, picture parameter set
            bits.golomb()
        number, last = bits.read(self._bits), self._last
        if key or reference:
            self._last = number
        return key or number in (last, (last + 1) % (1 << self._bits))


class _Bits:
    """Reads the head of a NAL unit; zeros after its end."""

    def __init__(self, unit: bytes) -> None:
        head = unit.replace(b"\0\0\3", b"\0\0")  # bytes that only prevent start codes
        self._value, self._left = int.from_bytes(head, "big"), 8 * len(head)

    def read(self, count: int) -> int:
        self._left -= count
        return (self._value >> self._left if self._left >= 0 else 0) & ((1 << count) - 1)

    def golomb(self) -> int:
        """An unsigned number in exponential Golomb code."""
        zeros = 0
        while zeros < _LONGEST and not self.read(1):
            zeros += 1
        return (1 << zeros) - 1 + self.read(zeros)


def _number_bits(bits: _Bits) -> int:
    """The bits of a picture's number, from a sequence parameter set; 0 if the numbers may have gaps or are not known.

    The fields are those of ITU-T H.264, 7.3.2.1.1.
    """
    profile = bits.read(8)
    bits.read(16)
    bits.golomb()
    if profile not in _PLAIN_PROFILES:
        if profile not in _HIGH_PROFILES or bits.golomb() == _SEPARATE_PLANES:
            return 0
        bits.golomb()
        bits.golomb()
        if bits.read(2) & 1:  # scaling matrices
            return 0
    count = bits.golomb() + 4
    order = bits.golomb()
    if order == 0:
        bits.golomb()
    elif order == 1:
        return 0
    bits.golomb()
    return 0 if bits.read(1) or count > _MAX_NUMBER_BITS else count


def is_key_frame(packet: bytes, codec: str) -> bool:
    """Whether a packet of h264 or hevc in Annex B contains a picture that does not depend on others."""
    heads = (head for head, _ in _units(packet))
    return any(head & 31 == _KEY_SLICE if codec == "h264" else 16 <= head >> 1 & 63 <= 21 for head in heads)


def _units(packet: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the first byte of each NAL unit, and the bytes that follow it."""
    at = packet.find(_START)
    while 0 <= at < len(packet) - len(_START):
        at += len(_START)
        yield packet[at], packet[at + 1 : at + 1 + _HEAD_BYTES]
        at = packet.find(_START, at)


def _opened(codec: str) -> VideoCodecContext:
    try:
        import av
    except ImportError:
        raise RoboCacheError("video topics need PyAV; pip install av") from None
    context: Any = av.CodecContext.create(codec, "r")
    # Each message gives its picture at once, and a damaged one an error instead of a guess.
    context.options = {"flags": "low_delay", "err_detect": "explode", "max_pixels": str(IMAGE_LIMITS.pixels)}
    context.thread_count = 1
    return context  # type: ignore[no-any-return]


def _decoded(context: VideoCodecContext, packet: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """(H, W, 3) uint8 rgb."""
    import av

    try:
        frames = context.decode(av.Packet(packet))
    except Exception as error:  # PyAV raises many kinds of errors for bytes that it cannot read
        raise DecodeError("bad_image", f"data: cannot decode the video: {printable(error)}") from None
    if len(frames) != 1 or frames[0].is_corrupt:
        raise DecodeError("bad_image", f"data: {len(frames)} complete pictures; a message must have exactly one")
    check_pixels("video", frames[0].width, frames[0].height, IMAGE_LIMITS.pixels)
    pixels: np.ndarray[Any, Any] = frames[0].to_ndarray(format="rgb24")
    return pixels


def check_live(spec: FusionSpec) -> None:
    """Refuse streams of video from topics, where messages are lost.

    Errors:
        RoboCacheError: the spec has one.
    """
    for stream in spec.streams:
        if stream.type in VIDEO_TYPES:
            raise RoboCacheError(
                f"streams.{stream.name}.type: {stream.type} is read only from recordings, because a lost message "
                "costs all pictures up to the next key frame; subscribe to a topic of images"
            )
