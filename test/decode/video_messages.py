"""Messages of H.264 and H.265 video, and the pictures in them."""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import Any

import av
import numpy as np

HEIGHT, WIDTH = 64, 96
COMPRESSED_VIDEO = "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format\n"


def pictures(count: int) -> list[np.ndarray[Any, Any]]:
    """(H, W, 3) uint8 pictures of one colour each, which differ from their neighbours."""
    return [np.full((HEIGHT, WIDTH, 3), 40 + 160 * (k % 5) // 5, np.uint8) for k in range(count)]


def packets(images: list[np.ndarray[Any, Any]], codec: str = "libx264", gop: int = 10) -> list[bytes]:
    """One packet in Annex B per image, without B-frames; parameter sets are in every key frame."""
    encoder: Any = av.CodecContext.create(codec, "w")
    encoder.width, encoder.height, encoder.pix_fmt = WIDTH, HEIGHT, "yuv420p"
    encoder.time_base, encoder.gop_size, encoder.max_b_frames = Fraction(1, 30), gop, 0
    encoder.options = {"preset": "ultrafast", "tune": "zerolatency", "x265-params": "log-level=none:repeat-headers=1"}
    if codec == "libx264":
        del encoder.options["x265-params"]
    found = []
    for number, image in enumerate(images):
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame.pts = number
        found += [bytes(packet) for packet in encoder.encode(frame)]
    return found + [bytes(packet) for packet in encoder.encode(None)]


def compressed_video(stamp_ns: int, packet: bytes, name: str = "h264") -> bytes:
    """A foxglove_msgs/msg/CompressedVideo."""
    text = name.encode() + b"\0"
    head = struct.pack("<iII4sI", *divmod(stamp_ns, 10**9), 4, b"cam\0", len(packet)) + packet
    head += bytes(-len(head) % 4)
    return b"\0\1\0\0" + head + struct.pack("<I", len(text)) + text
