"""Image messages: encodings and their other names, row padding, sizes that cannot be, byte order."""

from dataclasses import replace

import numpy as np
import pytest

from robocache_ros.decode import DecodeError, ImagePayload
from robocache_ros.ops.image.formats import FORMATS
from test.decode.conftest import decoded

RAW, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
PNG = b"\x89PNG\r\n\x1a\n"


def raw(**values):
    return decoded(RAW, values).value


def compressed(text, data):
    return decoded(COMPRESSED, {"format": text, "data": data}).value


@pytest.mark.parametrize("name", FORMATS)
def test_every_encoding_comes_under_its_usual_name_and_has_the_pixels_of_that(name):
    usual = FORMATS[FORMATS[name].alias_of or name]
    step, rows = 4 * usual.pixel_bytes, 3 if name == "nv12" else 2
    image = raw(width=4, height=2, encoding=name, step=step, data=bytes(rows * step))
    found = (image.encoding, image.width, image.height, image.step, len(image.data))
    assert found == (usual.name, 4, 2, step, rows * step)
    assert replace(FORMATS[name], name=usual.name, alias_of="") == usual


def test_rows_may_be_padded_and_bytes_behind_the_last_are_left_out():
    image = raw(width=2, height=2, encoding="rgb8", step=8, data=bytes(range(20)))
    assert image.step == 8
    np.testing.assert_array_equal(image.data, np.arange(16))


@pytest.mark.parametrize("encoding", ["", "rgb16", "bayer_rggb16", "nv21", "jpeg", "RGB8"])
def test_another_encoding_is_refused_by_name(encoding):
    with pytest.raises(DecodeError, match=f"encoding: '{encoding}' is not one of rgb8, bgr8") as error:
        raw(width=4, height=1, encoding=encoding, step=100, data=bytes(100))
    assert error.value.cause == "bad_encoding"


@pytest.mark.parametrize("flag", [0, 1, 255])
def test_byte_order_is_carried(flag):
    image = raw(width=1, height=1, encoding="mono16", step=2, data=b"\1\2", is_bigendian=flag)
    assert image.big_endian is bool(flag)


@pytest.mark.parametrize(
    "values",
    [
        {"width": 2, "height": 2, "step": 5},
        {"width": 0, "height": 2, "step": 6},
        {"width": 2, "height": 0, "step": 6},
        {"width": 2, "height": 3, "step": 6},
        {"width": 1, "height": 1, "step": 13},
        {"width": 2, "height": 0xFFFFFFFF, "step": 0xFFFFFFFF},
        {"width": 0xFFFFFFFF, "height": 1, "step": 12},
    ],
)
def test_sizes_that_do_not_fit_the_data_are_refused(values):
    with pytest.raises(DecodeError) as error:
        raw(encoding="rgb8", data=bytes(12), **values)
    assert error.value.cause == "image_size"


@pytest.mark.parametrize(
    ("encoding", "width", "height"), [("yuv422", 3, 2), ("yuyv", 3, 2), ("nv12", 3, 2), ("nv12", 4, 3)]
)
def test_odd_sizes_of_subsampled_colour_are_refused(encoding, width, height):
    with pytest.raises(DecodeError, match="is odd"):
        raw(width=width, height=height, encoding=encoding, step=8, data=bytes(64))


@pytest.mark.parametrize(
    ("text", "data", "expected"),
    [
        ("jpeg", b"\xff\xd8\xff", ("jpeg", "")),
        ("bgr8; jpeg compressed bgr8", b"\xff\xd8\xff", ("jpeg", "bgr8")),
        ("", b"\xff\xd8\xff", ("jpeg", "")),
        ("png", b"\xff\xd8\xff", ("jpeg", "")),
        ("16UC1; png compressed ", PNG, ("png", "16UC1")),
        ("16UC1; compressedDepth png", bytes(12) + PNG, ("compressedDepth", "16UC1")),
        ("16UC1; compressedDepth", bytes(12) + PNG, ("compressedDepth", "16UC1")),
    ],
)
def test_what_is_compressed_is_seen_from_its_bytes(text, data, expected):
    image = compressed(text, data)
    assert isinstance(image, ImagePayload)
    assert (image.encoding, image.source) == expected
    assert (image.width, image.height, image.step) == (0, 0, 0)
    assert image.data.tobytes() == data


@pytest.mark.parametrize(
    ("text", "data", "cause"),
    [
        ("jpeg", b"", "bad_image"),
        ("jpeg", b"\xff\xd8", "bad_image"),
        ("png", b"nothing of the kind", "bad_image"),
        ("h264", b"\0\0\0\1", "bad_encoding"),
        ("", b"", "bad_encoding"),
        ("16UC1; compressedDepth rvl", bytes(40), "bad_encoding"),
        ("rgb8; compressedDepth png", bytes(12) + PNG, "bad_encoding"),
        ("16UC1; compressedDepth png", bytes(40), "bad_image"),
        ("16UC1; compressedDepth png", bytes(11), "bad_image"),
        ("32FC1; compressedDepth png", bytes(12) + PNG, "bad_image"),
        ("32FC1; compressedDepth png", b"\1\0\0\0" + np.float32([9, 1]).tobytes() + PNG, "bad_image"),
        ("32FC1; compressedDepth png", b"\0\0\0\0" + np.float32([np.nan, 1]).tobytes() + PNG, "bad_image"),
    ],
)
def test_what_cannot_be_decompressed_is_refused_with_the_message(text, data, cause):
    with pytest.raises(DecodeError) as error:
        compressed(text, data)
    assert error.value.cause == cause
