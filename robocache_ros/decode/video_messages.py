"""Decodes messages of H.264 and H.265 video, foxglove_msgs CompressedVideo and FFMPEGPacket, to pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from robocache_ros.decode.cdr.numbers import octets
from robocache_ros.decode.cdr.types import Struct
from robocache_ros.decode.cdr.values import string
from robocache_ros.decode.decoder import Decoder
from robocache_ros.decode.image_files import check_pixels
from robocache_ros.decode.limits import IMAGE_LIMITS
from robocache_ros.decode.payloads import DecodeError, ImagePayload, Sample
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec import VIDEO_TYPES, FusionSpec, StreamSpec

if TYPE_CHECKING:
    from av.video.codeccontext import VideoCodecContext

_CODECS = {"h264": "h264", "h265": "hevc", "hevc": "hevc"}  # by the name in a message
_START = b"\0\0\1"  # of a NAL unit in Annex B


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
        self._follows = False  # the pictures that the next one depends on are decoded

    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample:
        text, data = values
        codec = _CODECS.get(text.partition(";")[0].strip().lower())
        if codec is None:
            raise DecodeError("bad_encoding", f"format: '{printable(text, 40)}' is not one of h264, h265, hevc")
        packet = data.tobytes()
        if self._context is None or codec != self._codec or not self._follows:
            if not is_key_frame(packet, codec):
                raise DecodeError("no_key_frame", "data: depends on an earlier picture that is missing or damaged")
            self._context, self._codec = _opened(codec), codec
        self._follows = False  # unless this picture is decoded
        pixels = _decoded(self._context, packet)
        self._follows = True
        height, width, channels = pixels.shape
        return Sample(stamp_ns, ImagePayload(pixels.reshape(-1), "rgb8", width, height, channels * width))


def is_key_frame(packet: bytes, codec: str) -> bool:
    """Whether a packet of h264 or hevc in Annex B contains a picture that does not depend on others."""
    at = packet.find(_START)
    while 0 <= at < len(packet) - len(_START):
        head = packet[at + len(_START)]
        if (head & 31 == 5) if codec == "h264" else (16 <= head >> 1 & 63 <= 21):
            return True
        at = packet.find(_START, at + len(_START))
    return False


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
                f"streams.{stream.name}.type: {stream.type} is read from recordings alone, because a lost message "
                "costs all pictures up to the next key frame; subscribe to a topic of images"
            )
