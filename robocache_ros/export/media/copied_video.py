"""Copies the video of a topic into the mp4 files of episodes, without encoding it again."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.reader import Bag
from robocache_ros.decode.cdr.definitions import message_type
from robocache_ros.decode.payloads import DecodeError, ImagePayload
from robocache_ros.decode.video_messages import PacketDecoder, is_key_frame
from robocache_ros.errors import RoboCacheError
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.media.joined_video import add_stream_like
from robocache_ros.export.media.video import COPY
from robocache_ros.extras import need
from robocache_ros.spec import VIDEO_TYPES, FusionSpec, StreamSpec

WAY_OUT = "use another --codec, which encodes the pictures again"


class CopiedVideo(NamedTuple):
    """What the copied videos of a stream are."""

    codec: str  # h264 or hevc
    pixel_format: str


def copied_or(stream: StreamSpec, options: ExportOptions, codec: str) -> str:
    """Return that the video of a stream is copied, where this is asked for and possible, or else a codec."""
    return COPY if options.codec == COPY and stream.type in VIDEO_TYPES else codec


def check_copy(spec: FusionSpec, options: ExportOptions) -> None:
    """Refuse to copy the video of a spec that has none.

    Errors:
        RoboCacheError: no stream is a video topic.
    """
    if options.codec == COPY and not any(stream.type in VIDEO_TYPES for stream in spec.streams):
        raise RoboCacheError("codec: copy needs a video topic, and the spec has none; use auto, av1 or h264")


class _Packet(NamedTuple):
    stamp_ns: int
    codec: str
    data: bytes


def copy_video(
    bag: Bag,
    stream: StreamSpec,
    episodes: Sequence[NDArray[np.int64]],
    files: Sequence[Path],
    size: tuple[int, int],
    rate_hz: int,
) -> CopiedVideo:
    """Write an mp4 file for each episode from the messages of a video topic.

    Each row must have used the message after that of the row before it, the first one a key frame: then the frames of
    the file are the rows, although no picture is decoded.

    Args:
        bag: the recording.
        stream: of a video topic.
        episodes: of each episode, (T,) the stamps of the messages that its rows used, -1 for none.
        files: an mp4 file for each episode; must not exist.
        size: height and width of the stream's images.
        rate_hz: rows per second.

    Errors:
        RoboCacheError: the messages are not on the grid of the rows, or the images of the stream are resized.
    """
    packets = _packets(bag, stream)
    found = [
        _copy_episode(packets, stream.name, stamps, file, size, rate_hz)
        for stamps, file in zip(episodes, files, strict=True)
    ]
    if len(set(found)) != 1:
        raise RoboCacheError(f"{stream.name}: the codec of the recording changes; {WAY_OUT}")
    return found[0]


def _packets(bag: Bag, stream: StreamSpec) -> Iterator[_Packet]:
    """Yield the messages of a video topic that can be read, in the order of the log."""
    decoder = PacketDecoder(stream, message_type(stream.type, bag.definitions))
    for message in bag.messages([stream.topic]):
        try:
            sample = decoder.decode_cdr(message.data)
        except DecodeError:
            continue  # no row has used it
        assert isinstance(sample.value, ImagePayload)
        stamp_ns = message.log_ns if sample.stamp_ns is None or stream.stamp == "receive" else sample.stamp_ns
        yield _Packet(stamp_ns, sample.value.encoding, bytes(sample.value.data))


def _copy_episode(
    packets: Iterator[_Packet], name: str, stamps: NDArray[np.int64], file: Path, size: tuple[int, int], rate_hz: int
) -> CopiedVideo:
    file.parent.mkdir(parents=True, exist_ok=True)
    raw = file.with_suffix(".raw")
    with raw.open("wb") as target:
        codec = _write_packets(packets, name, stamps, target)
    try:
        return _remux(raw, codec, file, name, len(stamps), size, rate_hz)
    finally:
        raw.unlink()


def _write_packets(packets: Iterator[_Packet], name: str, stamps: NDArray[np.int64], target: IO[bytes]) -> str:
    """Write the packets of an episode one after the other; return their codec."""
    first = next((packet for packet in packets if packet.stamp_ns == stamps[0]), None)
    if first is None:
        raise RoboCacheError(f"{name}: the first row has no message of its own; {WAY_OUT}")
    if not is_key_frame(first.data, first.codec):
        raise RoboCacheError(f"{name}: an episode does not begin with a key frame; {WAY_OUT}")
    target.write(first.data)
    for row, stamp in enumerate(stamps[1:].tolist(), start=1):
        packet = next(packets, None)
        if packet is None or packet.stamp_ns != stamp or packet.codec != first.codec:
            raise RoboCacheError(
                f"{name}: row {row} of an episode does not use the message after that of row {row - 1}, as copying "
                f"video needs; choose the rate of the camera, or {WAY_OUT}"
            )
        target.write(packet.data)
    return first.codec


def _remux(raw: Path, codec: str, file: Path, name: str, rows: int, size: tuple[int, int], rate_hz: int) -> CopiedVideo:
    """Move packets from a file of Annex B units to an mp4 file, with a frame per row."""
    av: Any = need("av", "export")
    time_base, count = Fraction(1, rate_hz), 0
    with av.open(str(raw), format=codec) as source, av.open(str(file), "w") as target:
        pictures = source.streams.video[0]
        context = pictures.codec_context
        if (context.height, context.width) != size:
            raise RoboCacheError(
                f"{name}: images of {size[1]}x{size[0]} are resized from {context.width}x{context.height}; leave "
                f"image.size out of the spec, or {WAY_OUT}"
            )
        stream = add_stream_like(target, pictures)
        with warnings.catch_warnings():  # PyAV 12 takes the stream for one that is decoded
            warnings.simplefilter("ignore", DeprecationWarning)
            stream.time_base = time_base
        for packet in source.demux(pictures):
            if not packet.size:
                continue  # the end of the file
            packet.pts = packet.dts = count
            packet.time_base, packet.stream = time_base, stream
            packet.duration = 1
            count += 1
            target.mux(packet)
        found = CopiedVideo(codec, str(context.pix_fmt))
    if count != rows:
        raise RoboCacheError(f"{name}: {count} pictures in {rows} messages; {WAY_OUT}")
    return found
