"""Decompression: the pixels that were compressed, and what cut, corrupt and oversized files give."""

import struct
import sys
import zlib

import numpy as np
import pytest

from robocache_ros.decode import DecodeError, ImagePayload, decode_compressed
from robocache_ros.errors import RoboCacheError

PNG = b"\x89PNG\r\n\x1a\n"


def compressed(data, encoding, source=""):
    return ImagePayload(np.frombuffer(data, np.uint8), encoding, source=source)


def image_array(image, dtype=np.uint8):
    return image.data.view(dtype).reshape(image.height, image.width, -1)


@pytest.mark.parametrize(("name", "of", "encoding"), [("rgb.png", "rgb", "rgb8"), ("grey.png", "grey", "mono8")])
def test_a_png_gives_its_very_pixels(pictures, pixels, name, of, encoding):
    image = decode_compressed(pictures[name])
    assert (image.encoding, image.width, image.height) == (encoding, 24, 16)
    np.testing.assert_array_equal(image_array(image), pixels[of].reshape(16, 24, -1))


@pytest.mark.parametrize(("name", "of", "encoding"), [("rgb.jpeg", "rgb", "rgb8"), ("grey.jpeg", "grey", "mono8")])
def test_a_jpeg_gives_its_pixels_in_rgb_order(pictures, pixels, name, of, encoding):
    image = decode_compressed(pictures[name])
    assert image.encoding == encoding
    # Quality 95 keeps each pixel of a ramp within a few steps; swapped channels would be off by a hundred.
    assert np.abs(image_array(image).astype(int) - pixels[of].reshape(16, 24, -1)).max() < 16


@pytest.mark.parametrize(("source", "encoding"), [("", "mono16"), ("mono16", "mono16"), ("16UC1", "16UC1")])
def test_sixteen_bits_stay_sixteen_bits(pictures, pixels, source, encoding):
    image = decode_compressed(compressed(pictures["deep.png"].data.tobytes(), "png", source))
    assert (image.encoding, image.step, image.big_endian) == (encoding, 48, sys.byteorder == "big")
    np.testing.assert_array_equal(image_array(image, np.uint16)[..., 0], pixels["deep"])


def test_compressed_depth_of_16uc1_is_its_png(pictures, pixels):
    image = decode_compressed(pictures["millimetres.depth"])
    assert image.encoding == "16UC1"
    np.testing.assert_array_equal(image_array(image, np.uint16)[..., 0], pixels["deep"])


def test_compressed_depth_of_32fc1_is_metres_from_inverse_depth(pictures, pixels):
    image = decode_compressed(pictures["metres.depth"])
    assert (image.encoding, image.step) == ("32FC1", 96)
    depth = image_array(image, np.float32)[..., 0]
    assert depth[0, 1] == np.float32(20) / np.float32(7 - 0.5)
    measured = pixels["deep"] > 0
    expected = 20.0 / (pixels["deep"][measured] - 0.5)
    np.testing.assert_allclose(depth[measured], expected, rtol=2**-22)  # two float32 roundings
    assert np.isnan(depth[~measured]).all()


def test_a_raw_image_comes_back_as_it_is():
    image = ImagePayload(np.zeros(3, np.uint8), "rgb8", 1, 1, 3)
    assert decode_compressed(image) is image


@pytest.mark.parametrize("name", ["rgb.jpeg", "grey.jpeg", "rgb.png", "grey.png", "deep.png", "metres.depth"])
def test_a_picture_cut_short_anywhere_is_refused(pictures, name):
    payload = pictures[name]
    for size in range(len(payload.data)):
        with pytest.raises(DecodeError):
            decode_compressed(ImagePayload(payload.data[:size], payload.encoding, source=payload.source))


def test_a_corrupt_png_is_refused(pictures):
    data = bytearray(pictures["rgb.png"].data.tobytes())
    data[data.index(b"IDAT") + 8] ^= 0xFF
    with pytest.raises(DecodeError, match="cannot decode the png") as error:
        decode_compressed(compressed(bytes(data), "png"))
    assert error.value.cause == "bad_image"


@pytest.mark.parametrize("side", [9000, 20000, 2**31 - 1])
def test_a_small_file_of_a_huge_picture_is_refused_before_it_is_decompressed(side):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    data = PNG + header + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    with pytest.raises(DecodeError) as error:
        decode_compressed(compressed(data, "png"))
    assert error.value.cause == "image_size"


def test_other_formats_that_pillow_knows_are_not_opened():
    from io import BytesIO

    from PIL import Image

    file = BytesIO()
    Image.new("RGB", (4, 4)).save(file, "gif")
    with pytest.raises(DecodeError):
        decode_compressed(compressed(file.getvalue() + b"\xff\xd9", "jpeg"))


def test_without_pillow_the_error_says_what_to_install(pictures, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(RoboCacheError, match="pip install") as error:
        decode_compressed(pictures["rgb.png"])
    assert not isinstance(error.value, DecodeError)


@pytest.mark.parametrize(("mode", "encoding"), [("P", "rgb8"), ("1", "mono8"), ("RGBA", "rgba8"), ("LA", "mono8")])
def test_palettes_and_transparency_come_as_plain_pixels(mode, encoding):
    from io import BytesIO

    from PIL import Image

    file = BytesIO()
    Image.new("RGB", (4, 2), (255, 255, 255)).convert(mode).save(file, "png")
    image = decode_compressed(compressed(file.getvalue(), "png"))
    assert (image.encoding, image.width, image.height) == (encoding, 4, 2)
    assert image.data.min() == 255
