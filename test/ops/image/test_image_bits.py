"""The device code of images gives the CPU backend's bits: as host code built by g++, and on a GPU."""

import ctypes
from functools import partial

import numpy as np
import pytest
import torch

from robocache_ros.ops import convert_image, normalize_image
from robocache_ros.ops.cuda.kernels import packer
from robocache_ros.ops.image.conversion import FLOAT_DTYPES, ImageOptions, checked_conversion
from robocache_ros.ops.image.cuda import (
    AreaArguments,
    ConvertArguments,
    area_defines,
    area_tiles,
    convert_arguments,
    convert_defines,
)
from robocache_ros.ops.image.formats import FORMATS, PACKED, RESIZE, ImageLayout
from test.ops.conftest import same_bits


def image_bytes(encoding, width, height, padding, seed=0):
    fmt = FORMATS[encoding]
    step = width * fmt.pixel_bytes + padding
    rows = fmt.rows(height)
    data = torch.randint(0, 256, (step * rows,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return data, {"encoding": encoding, "width": width, "height": height, "step": step}


METHODS = ("nearest", "bilinear", "area")
HOST = """
#include "image/pixel.cuh"
using namespace robocache;
template <int family, int resize> void run(const ConvertArguments& job) {
  for (int y = 0; y < job.height; ++y)
    for (int x = 0; x < job.width; ++x)
      convert_pixel<family, resize>(job.image, job.affine, x, y, job.width, job.height, job.out, job.element);
}
#define CASE(FAMILY, RESIZE) if (family == FAMILY && resize == RESIZE) run<FAMILY, RESIZE>(*job);
#define CASES(FAMILY) CASE(FAMILY, NEAREST) CASE(FAMILY, BILINEAR) CASE(FAMILY, AREA)
extern "C" void convert(const ConvertArguments* job, int family, int resize) {
  CASES(PACKED) CASES(YUV422) CASES(NV12) CASES(BAYER) CASES(U16) CASES(F32)
}
"""


def on_gpu(data, **arguments):
    return convert_image(data.cuda(), **arguments).cpu()


def check(convert, data, **arguments):
    same_bits(convert(data, **arguments), convert_image(data, **arguments))


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def convert(request, monkeypatch):
    """`convert_image` of the code under test, taking and giving CPU tensors."""
    if request.param == "cuda":
        return on_gpu
    library = request.getfixturevalue("host_library")(HOST)

    def run(data, conversion, out):
        packed = packer(ConvertArguments).pack(*convert_arguments(data, conversion, out))
        library.convert(ctypes.c_char_p(packed), conversion.format.family, METHODS.index(conversion.resize))
        return out

    def host(data, **arguments):
        with monkeypatch.context() as patch:
            patch.setattr("robocache_ros.ops.image.convert.convert_on_cpu", run)
            return convert_image(data, **arguments)

    return host


CROPPED = ("rgba8", "mono8", "yuyv", "nv12", "bayer_gbrg8", "mono16")
IMAGES = [  # encoding, width and height, padding, options
    *((name, (48, 36), 5, {"size": size}) for name in FORMATS for size in (None, (9, 31), (50, 7), (64, 96))),
    *((name, (64, 48), 0, {"crop": (7, 13, 33, 41), "size": (20, 24)}) for name in CROPPED),
    *((name, (20, 16), 2, {"size": (7, 9), "big_endian": True}) for name in ("16UC1", "32FC1")),
    *(("rgb8", (w, h), 0, {"size": to}) for w, h, to in ((1, 1, (5, 5)), (2, 300, (1, 1)), (700, 3, (2, 1)))),
    ("rgb8", (2, 2), 0, {"size": (300, 1)}),
]


@pytest.mark.parametrize("resize", METHODS)
@pytest.mark.parametrize(("encoding", "source", "padding", "options"), IMAGES)
def test_every_encoding_crop_byte_order_and_size_has_the_same_bits(convert, encoding, source, padding, options, resize):
    data, layout = image_bytes(encoding, *source, padding)
    check(convert, data, **layout, **options, resize=resize)


@pytest.mark.parametrize(
    ("dtype", "normalize"),
    [
        (torch.uint8, None),  # which holds no normalised values
        *((dtype, normalize) for dtype in FLOAT_DTYPES for normalize in (None, "imagenet")),
    ],
)
def test_every_dtype_has_the_same_bits(convert, dtype, normalize):
    data, layout = image_bytes("bgr8", 40, 30, padding=0)
    check(convert, data, **layout, size=(16, 20), normalize=normalize, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("resize", METHODS)
def test_nan_infinity_and_subnormals_in_depth_have_the_same_bits(convert, resize, dtype):
    depth = np.random.default_rng(1).uniform(0, 5, (12, 10)).astype(np.float32)
    depth[2, 3], depth[4, 4], depth[5, 6], depth[7, 7] = np.nan, np.inf, -np.inf, 1e-40
    depth[8] = np.frombuffer(np.uint32(0xFFC12345).tobytes(), np.float32)  # a NaN with a sign and a payload
    data = torch.from_numpy(depth.view(np.uint8).reshape(-1))
    arguments = {"encoding": "32FC1", "width": 10, "height": 12, "step": 40, "resize": resize, "dtype": dtype}
    for size in (None, (5, 7), (20, 20)):
        check(convert, data, size=size, **arguments)


@pytest.mark.parametrize("offset", [1, 2, 4, 8])
@pytest.mark.parametrize("resize", METHODS)
def test_bytes_at_any_alignment_have_the_same_bits(convert, offset, resize):
    data, layout = image_bytes("rgb8", 32, 24, padding=0)
    shifted = torch.empty(len(data) + offset, dtype=torch.uint8)[offset:].copy_(data)
    arguments = {**layout, "size": (11, 13), "resize": resize}
    same_bits(convert(shifted, **arguments), convert_image(data, **arguments))


@pytest.mark.gpu
@pytest.mark.parametrize("resize", METHODS)
@pytest.mark.parametrize("encoding", ["rgb8", "bgra8", "mono8", "nv12", "yuv422", "bayer_rggb8", "16UC1"])
def test_a_camera_frame_has_the_same_bits_on_the_gpu(encoding, resize):
    data, layout = image_bytes(encoding, 1920, 1080, padding=0)
    channels = FORMATS[encoding].channels
    normalize = {"mean": [0.5] * channels, "std": [0.2] * channels}
    check(on_gpu, data, dtype=torch.bfloat16, **layout, size=(224, 224), resize=resize, normalize=normalize)


@pytest.mark.gpu
@pytest.mark.parametrize("resize", METHODS)
def test_it_reads_what_torch_wrote_just_before(wrong_after_writes, resize):
    frames = torch.randint(0, 256, (8, 480 * 640 * 3), dtype=torch.uint8, device="cuda")
    arguments = {"encoding": "rgb8", "width": 640, "height": 480, "step": 1920, "size": (120, 160), "resize": resize}
    assert wrong_after_writes(partial(convert_image, **arguments), frames) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("normalize", [None, "imagenet"])
def test_normalize_image_has_the_same_bits_on_the_gpu(normalize, dtype):
    image = torch.randint(0, 256, (5, 3, 33, 41), dtype=torch.uint8)
    same_bits(normalize_image(image.cuda(), normalize, dtype).cpu(), normalize_image(image, normalize, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("family", range(6))
def test_every_family_and_element_kind_compile_without_a_warning(compile_log, architecture, family):
    kinds = [*enumerate(RESIZE, 1), *((element, "bilinear") for element in range(4) if family == PACKED)]
    for element, resize in kinds:
        assert compile_log("image/convert.cu", architecture, convert_defines(family, resize, element)) == ""


def test_every_level_divided_by_255_is_rounded_as_a_division_is(host_library):
    text = """
    #include "image/pixel.cuh"
    extern "C" void units(float* out) { for (int i = 0; i < 256; ++i) out[i] = robocache::unit_of_u8(i); }
    """
    found = np.empty(256, np.float32)
    host_library(text).units(found.ctypes.data_as(ctypes.c_void_p))
    same_bits(found, np.arange(256, dtype=np.float32) / np.float32(255))


AREA_HOST = """
#include "image/area.cuh"
using namespace robocache;
// As area.cu divides an output row, in pieces of as many chunks as cover them.
template <int stride>
void row(
    const Image& image, const Axis& across, const Axis& down, int y, int out_width, unsigned char* out, Chunk* sums
) {
  const Cover rows = cover_of(down, y);
  const int begin = image.left * stride & -16, end = (image.left + image.columns) * stride;
  for (int byte = begin; byte < end; byte += 16) {
    const unsigned char* bytes = image.data + image.step * (image.top + rows.first) + byte;
    sum_rows(bytes, (uint32)image.step, down, rows, sums + (byte - begin) / 8);
  }
  for (int x = 0; x < out_width; ++x) {
    const Cover cover = cover_of(across, x);
    for (int channel = 0; channel < image.channels; ++channel) {
      const int at = (image.left + cover.first) * stride + image.offset[channel] - begin;
      const unsigned short* first = reinterpret_cast<const unsigned short*>(sums) + at;
      out[channel * out_width + x] = mean_across<stride>(first, across, cover, across.source * down.source);
    }
  }
}
extern "C" void area(
    const AreaArguments* arguments, unsigned char* out, Chunk* sums
) {
  const Image* image = &arguments->convert.image;
  const Axis &across = arguments->across, &down = arguments->down;
  const int out_width = arguments->convert.width;
  for (int y = 0; y < arguments->convert.height; ++y, out += out_width * image->channels) {
    if (image->pixel_bytes == 1) row<1>(*image, across, down, y, out_width, out, sums);
    else if (image->pixel_bytes == 3) row<3>(*image, across, down, y, out_width, out, sums);
    else row<4>(*image, across, down, y, out_width, out, sums);
  }
}
"""
FRAMES = [
    ((1920, 1080), None, (224, 224)),
    ((640, 480), None, (96, 128)),
    ((1280, 720), (7, 13, 640, 1201), (64, 300)),
    ((64, 48), None, (70, 96)),
    ((48, 257), None, (1, 1)),
]


@pytest.mark.parametrize(("source", "crop", "size"), FRAMES)
@pytest.mark.parametrize("encoding", ["rgb8", "bgra8", "mono8"])
def test_area_means_of_sixteen_bytes_at_a_time_have_the_same_bits(host_library, encoding, source, crop, size):
    data, layout = image_bytes(encoding, *source, padding=-source[0] * FORMATS[encoding].pixel_bytes % 16)
    aligned = torch.empty(len(data) + 15, dtype=torch.uint8)
    aligned = aligned[-aligned.data_ptr() % 16 :][: len(data)].copy_(data)
    fmt, box = FORMATS[encoding], crop or (0, 0, source[1], source[0])
    out = torch.empty((size[0], fmt.channels, size[1]), dtype=torch.uint8)
    tiles = area_tiles(fmt.pixel_bytes, *box[2:], *size)
    image = ImageLayout(encoding, *source, layout["step"], False)
    conversion = checked_conversion(len(data), image, ImageOptions(size, crop, "area"))
    numbers = convert_arguments(aligned, conversion, out.view(fmt.channels, *size))
    packed = packer(AreaArguments).pack(*numbers, *tiles.across, *tiles.down, tiles.per_block)
    sums = np.empty(2 * layout["step"] + 64, np.uint8)
    sums = sums[-sums.ctypes.data % 16 :]
    addresses = (ctypes.c_void_p(address) for address in (out.data_ptr(), sums.ctypes.data))
    host_library(AREA_HOST).area(ctypes.c_char_p(packed), *addresses)
    same_bits(out.transpose(0, 1), convert_image(data, **layout, crop=crop, size=size, resize="area"))


@pytest.mark.gpu
@pytest.mark.parametrize(("source", "crop", "size"), [*FRAMES, ((1920, 1200), (1, 0, 1199, 1920), (37, 300))])
@pytest.mark.parametrize("encoding", ["rgb8", "bgra8", "mono8"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
def test_area_means_of_aligned_rows_have_the_same_bits_on_the_gpu(encoding, dtype, source, crop, size):
    data, layout = image_bytes(encoding, *source, padding=-source[0] * FORMATS[encoding].pixel_bytes % 16)
    check(on_gpu, data, **layout, crop=crop, size=size, resize="area", dtype=dtype)


@pytest.mark.gpu
def test_an_area_too_wide_for_shared_memory_has_the_same_bits_on_the_gpu():
    data, layout = image_bytes("rgb8", 16384, 3, padding=0)
    check(on_gpu, data, **layout, size=(2, 1), resize="area")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("pixel_bytes", [1, 3, 4])
@pytest.mark.parametrize("element", [0, 3])
def test_areas_compile_without_a_warning(compile_log, architecture, pixel_bytes, element):
    assert compile_log("image/area.cu", architecture, area_defines(pixel_bytes, element)) == ""
