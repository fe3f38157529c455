"""Area means by area.cu give the CPU backend's bits: as host code built by g++, and on a GPU."""

import ctypes

import numpy as np
import pytest
import torch

from robocache_ros.ops import convert_image
from robocache_ros.ops.cuda.kernels import compile_cubin, compile_options, load_source, packer
from robocache_ros.ops.image.conversion import ImageOptions, checked_conversion
from robocache_ros.ops.image.cuda import AreaArguments, area_defines, area_tiles, convert_arguments
from robocache_ros.ops.image.formats import FORMATS, ImageLayout
from test.ops.image.frames import image_bytes, same_bits

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
    host_library(AREA_HOST).area(
        ctypes.c_char_p(packed), ctypes.c_void_p(out.data_ptr()), ctypes.c_void_p(sums.ctypes.data)
    )
    same_bits(out.transpose(0, 1), convert_image(data, **layout, crop=crop, size=size, resize="area"))


@pytest.mark.gpu
@pytest.mark.parametrize(("source", "crop", "size"), [*FRAMES, ((1920, 1200), (1, 0, 1199, 1920), (37, 300))])
@pytest.mark.parametrize("encoding", ["rgb8", "bgra8", "mono8"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
def test_area_means_of_aligned_rows_have_the_same_bits_on_the_gpu(encoding, dtype, source, crop, size):
    data, layout = image_bytes(encoding, *source, padding=-source[0] * FORMATS[encoding].pixel_bytes % 16)
    arguments = {**layout, "crop": crop, "size": size, "resize": "area", "dtype": dtype}
    same_bits(convert_image(data.cuda(), **arguments).cpu(), convert_image(data, **arguments))


@pytest.mark.gpu
def test_an_area_too_wide_for_shared_memory_has_the_same_bits_on_the_gpu():
    data, layout = image_bytes("rgb8", 16384, 3, padding=0)
    arguments = {**layout, "size": (2, 1), "resize": "area"}
    same_bits(convert_image(data.cuda(), **arguments).cpu(), convert_image(data, **arguments))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("pixel_bytes", [1, 3, 4])
@pytest.mark.parametrize("element", [0, 3])
def test_areas_compile_without_a_warning(nvrtc, architecture, pixel_bytes, element):
    options = compile_options(architecture, area_defines(pixel_bytes, element))
    assert compile_cubin(nvrtc, load_source("image/area.cu"), options)[1] == ""
