"""Video topics: every message gives its picture, in order, and damage costs the pictures that depend on it."""

import struct
from contextlib import nullcontext

import numpy as np
import pytest

from robocache_ros.decode import DecodeError, ImagePayload, make_decoder
from robocache_ros.engine import FusionEngine, Ingest
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import VIDEO_TYPES, load_spec
from test.decode.video_messages import COMPRESSED_VIDEO, HEIGHT, WIDTH, compressed_video, packets, pictures

PACKET = "std_msgs/Header header\nint32 width\nint32 height\nstring encoding\n"
PACKET += "uint64 pts\nuint8 flags\nbool is_bigendian\nuint8[] data\n"


def spec_of(kind=VIDEO_TYPES[0]):
    stream = {"topic": "/camera", "type": kind, "align": "hold", "max_age_ms": 100, "image": {"size": [HEIGHT, WIDTH]}}
    return load_spec({"robocache": 1, "actions": "none", "streams": {"front": stream}})


@pytest.fixture
def decoder():
    return make_decoder(spec_of().streams[0], {VIDEO_TYPES[0]: COMPRESSED_VIDEO})


def shown(payload):
    assert isinstance(payload, ImagePayload)
    assert (payload.encoding, payload.height, payload.width, payload.step) == ("rgb8", HEIGHT, WIDTH, 3 * WIDTH)
    return payload.data.reshape(HEIGHT, WIDTH, 3)


@pytest.mark.parametrize(("codec", "name"), [("libx264", "h264"), ("libx265", "h265"), ("libx265", "hevc")])
def test_each_message_gives_its_picture_and_its_stamp(decoder, codec, name):
    for number, (image, packet) in enumerate(zip(pictures(25), packets(pictures(25), codec), strict=True)):
        sample = decoder.decode_cdr(compressed_video(5 * 10**9 + number, packet, name))
        assert sample.stamp_ns == 5 * 10**9 + number
        # Lossy: a few steps, where the pictures of two messages differ by 32.
        assert np.abs(shown(sample.value).astype(int) - image).max() < 8


def test_a_packet_of_ffmpeg_image_transport_gives_its_picture():
    decoder = make_decoder(spec_of(VIDEO_TYPES[1]).streams[0], {VIDEO_TYPES[1]: PACKET})
    (packet,), (image,) = packets(pictures(1)), pictures(1)
    text = b"h264;yuv420p;bgr8;bgr8\0"
    head = struct.pack("<iII4siiI", 7, 0, 4, b"cam\0", WIDTH, HEIGHT, len(text)) + text
    head += bytes(-len(head) % 8) + struct.pack("<QBB2xI", 0, 1, 0, len(packet)) + packet
    sample = decoder.decode_cdr(b"\0\1\0\0" + head)
    assert sample.stamp_ns == 7 * 10**9
    assert np.abs(shown(sample.value).astype(int) - image).max() < 8


def test_messages_before_the_first_key_frame_are_refused(decoder):
    found = packets(pictures(12), gop=10)
    for packet in found[1:10]:
        with pytest.raises(DecodeError, match="depends on an earlier picture") as error:
            decoder.decode_cdr(compressed_video(1, packet))
        assert error.value.cause == "no_key_frame"
    shown(decoder.decode_cdr(compressed_video(1, found[10])).value)


@pytest.mark.parametrize(
    ("codec", "name", "damage"),
    [("libx264", "h264", lambda packet: packet[: len(packet) // 2]), *(("libx26" + n, "h26" + n, None) for n in "45")],
    ids=["damaged", "lost of h264", "lost of h265"],
)
def test_after_a_damaged_or_lost_message_pictures_are_refused_up_to_the_next_key_frame(decoder, codec, name, damage):
    found = packets(pictures(62), codec, gop=30)  # longer than the numbers of pictures, which begin again after 16
    found[20] = damage(found[20]) if damage else None
    for number, packet in enumerate(found):
        if packet is None:
            continue
        with pytest.raises(DecodeError) if 20 <= number < 30 else nullcontext():
            shown(decoder.decode_cdr(compressed_video(1, packet, name)).value)


@pytest.mark.parametrize("data", [b"", b"\0\0\1", b"\0\0\1\x65", b"\0\0\1\x65" + bytes(range(256)), b"\xff" * 99])
def test_bytes_that_are_not_video_are_refused(decoder, data):
    with pytest.raises(DecodeError):
        decoder.decode_cdr(compressed_video(1, data))


def test_another_codec_is_refused(decoder):
    with pytest.raises(DecodeError, match="format: 'vp9' is not one of h264, h265, hevc"):
        decoder.decode_cdr(compressed_video(1, b"", "vp9"))


def test_a_node_does_not_read_video():
    with pytest.raises(RoboCacheError, match=r"streams\.front\.type: .* is read only from recordings"):
        Ingest(spec_of(), FusionEngine(spec_of()), live=True)
