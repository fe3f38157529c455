"""Images: cases worked by hand, the float64 reference, and what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros import RoboCacheError
from robocache_ros.ops import convert_image, normalize_image
from robocache_ros.ops.image.formats import FORMATS, NV12
from robocache_ros.spec import IMAGENET
from test.ops.image import oracle


def tensor(values, dtype=np.uint8):
    return torch.from_numpy(np.array(values, dtype).reshape(-1).view(np.uint8).copy())


def convert(values, encoding, width, height, step, dtype=np.uint8, **options):
    layout = {"encoding": encoding, "width": width, "height": height, "step": step}
    return convert_image(tensor(values, dtype), **layout, **options)


@pytest.mark.parametrize(
    ("encoding", "values", "step", "expected"),
    [
        ("rgb8", [1, 2, 3, 4, 5, 6], 6, [[1, 4], [2, 5], [3, 6]]),
        ("bgr8", [1, 2, 3, 4, 5, 6], 6, [[3, 6], [2, 5], [1, 4]]),
        ("rgba8", [1, 2, 3, 9, 4, 5, 6, 9], 8, [[1, 4], [2, 5], [3, 6]]),
        ("bgra8", [1, 2, 3, 9, 4, 5, 6, 9], 8, [[3, 6], [2, 5], [1, 4]]),
        ("mono8", [7, 8], 2, [[7, 8]]),
        ("yuyv", [16, 128, 235, 128], 4, [[0, 255], [0, 255], [0, 255]]),  # black, white
        ("uyvy", [128, 16, 128, 235], 4, [[0, 255], [0, 255], [0, 255]]),
        ("yuv422", [128, 16, 128, 235], 4, [[0, 255], [0, 255], [0, 255]]),
        ("yuv422_yuy2", [81, 90, 81, 240], 4, [[254, 254], [0, 0], [0, 0]]),  # BT.601's red
    ],
)
def test_channels_are_found(encoding, values, step, expected):
    assert convert(values, encoding, 2, 1, step)[:, 0].tolist() == expected


def test_nv12_takes_its_chroma_from_below_the_luma_rows_padding_included():
    luma = [[81, 81, 0], [145, 145, 0]]  # a third byte of padding
    assert convert([*luma, [90, 240, 0]], "nv12", 2, 2, 3)[:, 0, 0].tolist() == [254, 0, 0]


@pytest.mark.parametrize(
    ("encoding", "corner"),
    [
        ("bayer_rggb8", [10, 25, 40]),
        ("bayer_bggr8", [40, 25, 10]),
        ("bayer_grbg8", [20, 10, 30]),
        ("bayer_gbrg8", [30, 10, 20]),
    ],
)
def test_bayer_averages_neighbours_that_are_mirrored_at_the_border(encoding, corner):
    assert convert([[10, 20], [30, 40]], encoding, 2, 2, 2)[:, 0, 0].tolist() == corner


def test_bayer_rounds_its_means_half_up():
    mosaic = [[0, 1, 0, 2], [4, 0, 5, 0], [0, 6, 0, 9], [0, 0, 0, 0]]
    assert convert(mosaic, "bayer_rggb8", 4, 4, 4)[1, 2, 2] == round((5 + 6 + 9 + 0) / 4)
    assert convert([[0, 0, 1], [0, 0, 0]], "bayer_rggb8", 3, 2, 3)[0, 0, 1] == 1


@pytest.mark.parametrize(
    ("resize", "source", "width", "expected"),
    [
        ("bilinear", [0, 100], 4, [0, 25, 75, 100]),
        ("bilinear", [0, 10, 20, 30], 2, [5, 25]),
        ("nearest", [1, 2, 3, 4], 2, [2, 4]),
        ("nearest", [1, 2], 5, [1, 1, 2, 2, 2]),  # a centre on the edge: the upper
        ("area", [0, 30, 60], 2, [10, 50]),
        ("area", [0, 1], 1, [1]),  # half a level: up
        ("area", [10, 20], 3, [10, 15, 20]),
    ],
)
def test_resizing_a_row_by_hand(resize, source, width, expected):
    result = convert(source, "mono8", len(source), 1, len(source), size=(1, width), resize=resize)
    assert result[0, 0].tolist() == expected
    column = convert(source, "mono8", 1, len(source), 1, size=(width, 1), resize=resize)
    assert column[0, :, 0].tolist() == expected


@pytest.mark.parametrize(
    ("resize", "source", "width", "expected"),
    [
        ("bilinear", [1.0, 3.0], 4, [1, 1.5, 2.5, 3]),  # distances at which nothing is
        ("nearest", [1.0, 3.0], 4, [1, 1, 3, 3]),
        ("bilinear", [0, 0, 0, 8.0, 0, 0, 0, 0], 2, [0, 0]),  # not antialiased: reads pixels 1, 2 and 5, 6
        ("area", [0, 0, 0, 8.0, 0, 0, 0, 0], 2, [2, 0]),
        ("area", [1.0, 2.0, np.nan, 4.0], 2, [1.5, np.nan]),
        ("nearest", [1.0, 2.0, np.nan, 4.0], 2, [2, 4]),
        ("bilinear", [1.0, np.nan, 3.0], 3, [1, np.nan, 3]),  # NaN spreads only where it has weight
        ("bilinear", [1.0, 1.0, np.nan], 6, [1, 1, 1, *[np.nan] * 3]),
    ],
)
def test_resizing_a_row_of_depth_by_hand(resize, source, width, expected):
    depth = convert(source, "32FC1", len(source), 1, 4 * len(source), np.float32, size=(1, width), resize=resize)
    np.testing.assert_array_equal(depth[0, 0].numpy(), expected)


@pytest.mark.parametrize(("dtype", "big_endian"), [("<u2", False), (">u2", True)])
def test_depth_keeps_the_units_of_its_message_in_both_byte_orders(dtype, big_endian):
    depth = convert([0, 513, 65535], "16UC1", 3, 1, 6, dtype, big_endian=big_endian)
    assert depth.dtype == torch.float32
    assert depth.tolist() == [[[0, 513, 65535]]]


def test_uint8_pixels_normalised_later_are_the_pixels_normalised_at_once():
    data = torch.randint(0, 256, (40 * 30 * 3,), dtype=torch.uint8)
    layout = {"encoding": "rgb8", "width": 40, "height": 30, "step": 120, "size": (17, 19)}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        at_once = convert_image(data, **layout, normalize="imagenet", dtype=dtype)
        assert torch.equal(at_once, normalize_image(convert_image(data, **layout), "imagenet", dtype))


def test_normalising_rounds_each_operation_to_float32():
    value = np.float32(200) / np.float32(255)
    expected = (value - np.float32(0.485)) / np.float32(0.229)
    image = normalize_image(torch.full((3, 1, 1), 200, dtype=torch.uint8), "imagenet")
    assert image[0, 0, 0].item() == expected


@pytest.mark.parametrize(
    "normalize",
    [
        IMAGENET,
        np.array(IMAGENET),
        torch.tensor(IMAGENET),
        {"mean": IMAGENET[0], "std": IMAGENET[1]},
        SimpleNamespace(mean=IMAGENET[0], std=IMAGENET[1]),
    ],
    ids=["pair", "array", "tensor", "mapping", "object"],
)
def test_mean_and_std_are_accepted_in_every_form(normalize):
    image = torch.arange(48, dtype=torch.uint8).reshape(3, 4, 4)
    assert torch.equal(normalize_image(image, normalize), normalize_image(image, "imagenet"))


def test_without_normalisation_floats_are_from_0_to_1():
    image = convert_image(tensor([255, 51]), encoding="mono8", width=2, height=1, step=2, dtype=torch.float32)
    assert image.tolist() == [[[1.0, np.float32(51) / np.float32(255)]]]


def test_out_is_written_and_returned():
    out = torch.full((1, 1, 2), 9, dtype=torch.uint8)
    assert convert([3, 4], "mono8", 2, 1, 2, out=out) is out
    assert out.tolist() == [[[3, 4]]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"encoding": "rgb9"}, ["encoding", "rgb9", "bgr8"]),
        ({"width": 3}, ["step", "8", "3"]),
        ({"height": 5}, ["data", "32", "40", "truncated"]),
        ({"height": 0}, ["height", "0"]),
        ({"step": 7}, ["step", "7"]),
        ({"encoding": "yuyv", "width": 1}, ["width", "odd"]),
        ({"encoding": "nv12", "width": 3, "height": 2}, ["width", "odd"]),
        ({"encoding": "nv12", "height": 3}, ["height", "odd"]),
        ({"encoding": "bayer_rggb8", "height": 1}, ["2 x 2"]),
        ({"crop": (0, 1, 4, 2)}, ["crop", "4 x 2"]),
        ({"crop": (0, 0, 0, 2)}, ["crop"]),
        ({"size": (0, 3)}, ["size", "0"]),
        ({"size": (20000, 3)}, ["size", "20000"]),
        ({"resize": "cubic"}, ["resize", "cubic", "area"]),
        ({"normalize": "coco"}, ["normalize", "coco", "imagenet"]),
        ({"normalize": {"mean": [0.5], "std": [0.5]}}, ["normalize", "1 means", "3 channels"]),
        ({"normalize": {"mean": [0.5] * 3, "std": [0.5, 0, 1]}}, ["std", "above 0"]),
        ({"normalize": {"mean": [0.5] * 3}}, ["normalize", "std"]),
        ({"normalize": {"mean": 0.5, "std": 0.5}}, ["normalize", "each channel"]),
        ({"normalize": ([0.5] * 3, [float("nan")] * 3)}, ["normalize", "nan"]),
        ({"normalize": ([float("inf")] * 3, [1] * 3)}, ["normalize", "inf"]),
        ({"normalize": 0.5}, ["normalize", "0.5", "each channel"]),
        ({"normalize": "imagenet", "dtype": torch.uint8}, ["dtype", "uint8"]),
        ({"encoding": "16UC1", "dtype": torch.uint8}, ["dtype", "uint8"]),
        ({"dtype": torch.int32}, ["dtype", "int32"]),
        ({"out": torch.zeros(3, 4, 3, dtype=torch.uint8)}, ["out", "(3, 4, 2)"]),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(change, words):
    layout = {"encoding": "rgba8", "width": 2, "height": 4, "step": 8, **change}
    with pytest.raises(RoboCacheError) as caught:
        convert_image(torch.zeros(32, dtype=torch.uint8), **layout)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("data", [torch.zeros(64)[::2], torch.zeros(64), torch.zeros(8, 8, dtype=torch.uint8)])
def test_bytes_must_be_contiguous_uint8(data):
    with pytest.raises(RoboCacheError, match="data: expected contiguous"):
        convert_image(data, encoding="mono8", width=2, height=1, step=2)


@pytest.mark.parametrize("image", [torch.zeros(3, 4, 4), torch.zeros(4, 4, dtype=torch.uint8)])
def test_normalize_image_refuses_what_is_not_a_uint8_image(image):
    with pytest.raises(RoboCacheError, match="image: expected contiguous"):
        normalize_image(image)


@settings(max_examples=60)
@given(st.data())
def test_images_agree_with_the_reference(data):
    encoding = data.draw(st.sampled_from(sorted(set(FORMATS) - {"32FC1"})))
    fmt = FORMATS[encoding]
    even = 2 if fmt.family in (1, NV12) else 1
    width, height = (data.draw(st.integers(1, 6)) * 2 + (0 if even == 2 else 1) for _ in range(2))
    step = width * fmt.pixel_bytes + data.draw(st.integers(0, 3))
    rows = height * 3 // 2 if fmt.family == NV12 else height
    raw = np.random.default_rng(data.draw(st.integers(0, 2**32))).integers(0, 256, step * rows, dtype=np.uint8)
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    crop = (top, left, data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left)))
    options = {
        "size": (data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))),
        "crop": crop,
        "resize": data.draw(st.sampled_from(["nearest", "bilinear", "area"])),
        "big_endian": data.draw(st.booleans()),
    }
    layout = {"encoding": encoding, "width": width, "height": height, "step": step}
    got = convert_image(torch.from_numpy(raw), **layout, **options).double().numpy()
    size = options.pop("size")
    wanted = oracle.image(raw.tobytes(), encoding, (width, height, step), size, **options)
    # Half a level for rounding the result, half for a pixel that is converted before, 2 * 255 / 2**12 for the weights;
    # depth, of at most 65535, three roundings to float32.
    tolerance = 65535 * 3 * 2**-24 if fmt.is_float else 0.63 if fmt.family == 0 else 1.13
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max() <= tolerance


@pytest.mark.parametrize(
    "encoding", ["yuyv", "uyvy", "nv12", "bayer_rggb8", "bayer_bggr8", "bayer_gbrg8", "bayer_grbg8"]
)
def test_colours_equal_opencv_s_except_at_bayer_s_border(encoding):
    cv2 = pytest.importorskip("cv2")
    height, width = 64, 96
    rows, columns = (96, 96) if encoding == "nv12" else (64, 96 if encoding.startswith("bayer") else 192)
    raw = np.random.default_rng(0).integers(0, 256, (rows, columns), dtype=np.uint8)
    code = {"yuyv": "YUV2RGB_YUYV", "uyvy": "YUV2RGB_UYVY", "nv12": "YUV2RGB_NV12"}.get(encoding)
    code = code or f"Bayer{encoding[6:10].upper()}2RGB"
    wanted = cv2.cvtColor(raw.reshape(rows, width, -1), getattr(cv2, f"COLOR_{code}"))
    got = convert(raw, encoding, width, height, columns).numpy().transpose(1, 2, 0)
    inner = slice(1, -1) if encoding.startswith("bayer") else slice(None)
    assert np.array_equal(got[inner, inner], wanted[inner, inner])
