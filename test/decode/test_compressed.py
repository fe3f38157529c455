"""Decompression: the pixels that were compressed, and what cut, corrupt and oversized files give."""

import io
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from robocache_ros.decode import DecodeError, ImagePayload, decode_compressed
from robocache_ros.decode.payloads import IMAGE_LIMITS, ImageLimits
from robocache_ros.errors import RoboCacheError
from test.decode.conftest import compressed

PNG = b"\x89PNG\r\n\x1a\n"
BOMB = zlib.compress(bytes(10**7))
# What the pictures are made of: ramps that a jpeg keeps well.
Y, X = np.mgrid[0:16, 0:24]
GREY = (10 * X + Y).astype(np.uint8)
DEEP = np.where((Y == 3) & (X == 4), 0, 1000 * Y + 7 * X).astype(np.uint16)
PIXELS = {"grey": GREY, "rgb": np.stack([GREY, GREY[::-1], GREY[:, ::-1]], -1), "deep": DEEP}


def file(kind, pixels=GREY[:8, :16], **options):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def depth_file(a, b, pixels=DEEP):
    """Of compressed_depth_image_transport: quantised inverse depth, or millimetres where a and b are 0."""
    return struct.pack("<iff", 0, a, b) + file("png", pixels)


def decode(data, encoding, source="", **limits):
    return decode_compressed(compressed(data, encoding, source), ImageLimits(**limits))


def cause(data, encoding, source="", **limits):
    with pytest.raises(DecodeError) as error:
        decode(data, encoding, source, **limits)
    assert len(str(error.value)) < 200
    return error.value.cause


def image_array(image, dtype=np.uint8):
    return image.data.view(dtype).reshape(image.height, image.width, -1)


PICTURES = {
    "rgb.jpeg": (file("jpeg", PIXELS["rgb"], quality=95, subsampling=0), "jpeg"),
    "grey.jpeg": (file("jpeg", GREY, quality=95), "jpeg"),
    **{f"{name}.png": (file("png", pixels), "png") for name, pixels in PIXELS.items()},
    "metres.depth": (depth_file(20.0, 0.5), "compressedDepth", "32FC1"),
}


@pytest.mark.parametrize("name", ["rgb.png", "grey.png", "rgb.jpeg", "grey.jpeg"])
def test_a_picture_gives_its_pixels_in_rgb_order(name):
    of, _, kind = name.partition(".")
    image = decode(*PICTURES[name])
    assert (image.encoding, image.width, image.height) == ({"rgb": "rgb8", "grey": "mono8"}[of], 24, 16)
    # Quality 95 keeps each pixel of a ramp within a few steps; swapped channels would be off by a hundred.
    apart = np.abs(image_array(image).astype(int) - PIXELS[of].reshape(16, 24, -1)).max()
    assert apart < (16 if kind == "jpeg" else 1)


@pytest.mark.parametrize(
    ("encoding", "picture"),
    [
        *(("mono16", (file("png", DEEP), "png", source)) for source in ("", "mono16")),
        ("16UC1", (file("png", DEEP), "png", "16UC1")),
        ("16UC1", (depth_file(0.0, 0.0), "compressedDepth", "16UC1")),
    ],
)
def test_sixteen_bits_stay_sixteen_bits(encoding, picture):
    image = decode(*picture)
    assert (image.encoding, image.step, image.big_endian) == (encoding, 48, sys.byteorder == "big")
    np.testing.assert_array_equal(image_array(image, np.uint16)[..., 0], DEEP)


def test_compressed_depth_of_32fc1_is_metres_from_inverse_depth():
    image = decode(*PICTURES["metres.depth"])
    assert (image.encoding, image.step) == ("32FC1", 96)
    depth = image_array(image, np.float32)[..., 0]
    assert depth[0, 1] == np.float32(20) / np.float32(7 - 0.5)
    measured = DEEP > 0
    expected = 20.0 / (DEEP[measured] - 0.5)
    np.testing.assert_allclose(depth[measured], expected, rtol=2**-22)  # two float32 roundings
    assert np.isnan(depth[~measured]).all()


def test_a_raw_image_comes_back_as_it_is():
    image = ImagePayload(np.zeros(3, np.uint8), "rgb8", 1, 1, 3)
    assert decode_compressed(image) is image


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_cut_short_anywhere_is_refused(name):
    data, *kind = PICTURES[name]
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            decode(data[:size], *kind)


def test_a_corrupt_png_is_refused():
    data = bytearray(PICTURES["rgb.png"][0])
    data[data.index(b"IDAT") + 8] ^= 0xFF
    with pytest.raises(DecodeError, match="cannot decode the png") as error:
        decode(bytes(data), "png")
    assert error.value.cause == "bad_image"


@pytest.mark.parametrize("side", [9000, 20000, 2**31 - 1])
def test_a_small_file_of_a_huge_picture_is_refused_before_it_is_decompressed(side):
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    data = PNG + header + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    assert cause(data, "png") == "image_size"


def test_other_formats_that_pillow_knows_are_not_opened():
    with pytest.raises(DecodeError):
        decode(file("gif") + b"\xff\xd9", "jpeg")


def test_without_pillow_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(RoboCacheError, match="pip install") as error:
        decode(*PICTURES["rgb.png"])
    assert not isinstance(error.value, DecodeError)


@pytest.mark.parametrize(("mode", "encoding"), [("P", "rgb8"), ("1", "mono8"), ("RGBA", "rgba8"), ("LA", "mono8")])
def test_palettes_and_transparency_come_as_plain_pixels(mode, encoding):
    out = io.BytesIO()
    Image.new("RGB", (4, 2), (255, 255, 255)).convert(mode).save(out, "png")
    image = decode(out.getvalue(), "png")
    assert (image.encoding, image.width, image.height) == (encoding, 4, 2)
    assert image.data.min() == 255


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def with_chunks(*chunks):
    data = file("png")
    return data[:33] + b"".join(chunks) + data[33:]


def with_segments(*segments):
    data = file("jpeg")
    return data[:2] + b"".join(segments) + data[2:]


def segment(marker, body):
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def progressive(scans):
    data = file("jpeg", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * (scans - data.count(b"\xff\xda")) + b"\xff\xd9"


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decompressed_and_one_as_encoders_write_it_is_not():
    assert cause(progressive(1000), "jpeg") == "image_scans"
    assert progressive(0).count(b"\xff\xda") < IMAGE_LIMITS.scans
    assert decode(progressive(0), "jpeg").width == 16


def test_scans_in_a_thumbnail_do_not_count():
    thumbnail = segment(0xE1, b"Exif\0\0" + b"\xff\xda\0\0" * 100)
    assert decode(with_segments(thumbnail), "jpeg", scans=1).width == 16


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_the_pixels_that_are_allowed_can_be_raised_and_lowered(kind):
    data = file(kind)
    assert cause(data, kind, pixels=127) == "image_size"
    assert decode(data, kind, pixels=128).height == 8


def test_a_depth_image_has_a_limit_of_its_own():
    depth = depth_file(20.0, 0.5, np.ones((8, 16), np.uint16))
    assert cause(depth, "compressedDepth", "32FC1", depth_pixels=127) == "image_size"
    assert decode(depth, "compressedDepth", "32FC1", pixels=1, depth_pixels=128).height == 8


@pytest.mark.parametrize(
    "extra",
    [
        chunk(b"zTXt", b"a\0\0" + BOMB),
        chunk(b"iTXt", b"a\0\1\0\0\0" + BOMB),
        chunk(b"iCCP", b"a\0\0" + BOMB),
        chunk(b"tEXt", b"a\0" + bytes(10**6)),
        chunk(b"acTL", struct.pack(">II", 2**31, 0)),
        chunk(b"acTL", b""),
        chunk(b"pHYs", b""),
    ],
    ids=lambda extra: extra[4:8].decode(),
)
def test_chunks_that_the_first_picture_does_not_need_are_not_read(extra):
    assert decode(with_chunks(extra), "png").data.tobytes() == GREY[:8, :16].tobytes()


@pytest.mark.parametrize("marker", [0xE1, 0xE2, 0xED, 0xFE])
def test_segments_that_the_first_picture_does_not_need_are_not_read(marker):
    extra = segment(marker, b"MPF\0Exif\0\0" + bytes(99))
    plain = decode(file("jpeg"), "jpeg").data.tobytes()
    assert decode(with_segments(*[extra] * 5), "jpeg").data.tobytes() == plain


def test_a_second_picture_behind_a_jpeg_is_left_out():
    data = file("jpeg")
    assert decode(data + data + bytes(99), "jpeg", scans=1).data.tobytes() == decode(data, "jpeg").data.tobytes()


def test_a_flood_of_chunks_or_segments_is_refused():
    assert cause(with_chunks(*[chunk(b"IDAT", b"")] * 99), "png", chunks=50) == "image_size"
    assert cause(with_segments(*[segment(0xFE, b"")] * 99), "jpeg", segments=50) == "image_size"


@pytest.mark.parametrize("marker", [0xC3, 0xC9, 0xCA])
def test_a_jpeg_that_no_camera_writes_is_refused(marker):
    data = bytearray(file("jpeg"))
    data[data.index(b"\xff\xc0") + 1] = marker
    assert cause(bytes(data), "jpeg") == "bad_image"


def test_a_png_whose_size_comes_second_is_refused():
    data = file("png")
    assert cause(data[:8] + chunk(b"tEXt", b"a\0b") + data[8:], "png") == "bad_image"
