"""Launches kernels/image/."""

from __future__ import annotations

import math
from ctypes import Structure, c_float, c_int, c_longlong, c_uint, c_void_p
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor, float16, float32, uint8

from robocache_ros.ops.cuda.kernels import kernel, launch_captured_dependent, packer
from robocache_ros.ops.image.conversion import Conversion
from robocache_ros.ops.image.conversion import MeanStd as MeanStd
from robocache_ros.ops.image.formats import PACKED, RESIZE, Format

# The arguments of the kernels in kernels/image: the structures of image/arguments.cuh.


class Image(Structure):
    """The bytes of an image, and the crop."""

    _fields_ = (
        ("data", c_void_p),
        ("step", c_longlong),
        ("width", c_int),
        ("height", c_int),
        ("top", c_int),
        ("left", c_int),
        ("rows", c_int),
        ("columns", c_int),
        ("pixel_bytes", c_int),
        ("offset", c_int * 4),
        ("big_endian", c_int),
        ("channels", c_int),
    )


class Affine(Structure):
    """(value - mean) / std of each channel."""

    _fields_ = (("given", c_int), ("mean", c_float * 3), ("std", c_float * 3))


class ConvertArguments(Structure):
    """An image, and its conversion."""

    _fields_ = (
        ("image", Image),
        ("affine", Affine),
        ("out", c_void_p),
        ("width", c_int),
        ("height", c_int),
        ("element", c_int),
    )


class AreaImageArguments(Structure):
    """Area means of any 8-bit image."""

    _fields_ = (("convert", ConvertArguments), ("per_block", c_int), ("vector", c_int))


class Axis(Structure):
    """One axis of area means, in lowest terms."""

    _fields_ = (("source", c_int), ("out", c_int), ("magic", c_uint), ("least", c_int))


class AreaArguments(Structure):
    """Area means of a packed image whose rows are aligned."""

    _fields_ = (("convert", ConvertArguments), ("across", Axis), ("down", Axis), ("per_block", c_int))


class NormalizeArguments(Structure):
    """Planes of uint8 to normalise."""

    _fields_ = (
        ("image", c_void_p),
        ("affine", Affine),
        ("out", c_void_p),
        ("planes", c_longlong),
        ("plane", c_longlong),
        ("channels", c_int),
    )


# Launches of kernels/image/area.cu: area means of packed images whose rows are aligned.
#
# convert.cu computes area means of all other images. This kernel exists for its speed: 1080p rgb8 to 224 x 224 takes
# 3.8 us in L2, about the time that a copy of the image's bytes takes (docs/explanation/performance_spatial.md).

Numbers = tuple[int | float, ...]

AREA_THREADS = 96  # of a block
_ROW_SHARES = 65535 // 255  # of an output row, so that area.cuh can sum its bytes in 16 bits


def convert_area(arguments: Numbers, data: Tensor, conversion: Conversion, out: Tensor) -> bool:
    """Launch area.cu if it supports the image; `arguments` are those of ConvertArguments."""
    fmt, step, (_, _, rows, columns) = conversion.format, conversion.layout.step, conversion.crop
    out_height, out_width = out.shape[1:]
    if fmt.family != PACKED or (data.data_ptr() | step) % 16 or data.numel() >= 2**32:
        return False
    tiles = area_tiles(fmt.pixel_bytes, rows, columns, out_height, out_width)
    if tiles is None:
        return False
    grid, element = (-(-out_width // tiles.per_block), out_height, 1), int(arguments[-1])
    defines = area_defines(fmt.pixel_bytes, element)
    launchable = kernel("image/area.cu", "area_packed", packer(AreaArguments), data.device.index, defines)
    axes = (*tiles.across, *tiles.down)
    launch_captured_dependent(launchable, grid, AREA_THREADS, 0, *arguments, *axes, tiles.per_block)
    return True


def area_defines(pixel_bytes: int, element: int) -> tuple[str, ...]:
    """The constants that area.cu is compiled with."""
    return (f"PIXEL_BYTES={pixel_bytes}", f"ELEMENT={element}", f"THREADS={AREA_THREADS}")


@dataclass(frozen=True)
class AreaTiles:
    """How area.cu divides an image."""

    across: tuple[int, int, int, int]  # Axis of arguments.cuh
    down: tuple[int, int, int, int]
    per_block: int  # output columns that a block computes


@lru_cache(maxsize=256)
def area_tiles(pixel_bytes: int, rows: int, columns: int, out_height: int, out_width: int) -> AreaTiles | None:
    """The tiles for the sides of a source and of the result, in pixels; None if area.cu does not support them."""
    across, down = _axis(columns, out_width), _axis(rows, out_height)
    if across is None or down is None or down[0] > _ROW_SHARES or across[0] * down[0] > 2**24:
        return None
    widest = (16 * AREA_THREADS - 15) // pixel_bytes - 2  # source columns whose sums fit a block
    most = min(out_width, 2 * AREA_THREADS // (3 if pixel_bytes > 1 else 1), widest * out_width // columns)
    if most < 1:
        return None
    blocks = -(-out_width // most)
    return AreaTiles(across, down, -(-out_width // blocks))


def _axis(source: int, out: int) -> tuple[int, int, int, int] | None:
    """Axis of arguments.cuh; None if its divisions exceed 32 bits."""
    common = math.gcd(source, out)
    shares, pixel = source // common, out // common
    if out * shares * pixel >= 2**32:
        return None
    return shares, pixel, -(-(2**32) // pixel) % 2**32, -(-shares // pixel)


# Launches of kernels/image/convert.cu.

_CONVERT_THREADS = 128  # of a block
_NORMALIZE_THREADS = 256
_SUMS, _MAX_SUMS = 1024, 8192  # 32-bit sums in a block's shared memory: usually, two loads for each thread; at most


def convert(data: Tensor, conversion: Conversion, out: Tensor) -> Tensor:
    """Fill `out` (C, H, W) from the bytes."""
    arguments, fmt = convert_arguments(data, conversion, out), conversion.format
    if conversion.resize == "area" and not fmt.is_float:
        if convert_area(arguments, data, conversion, out):
            return out
        if _area_image(arguments, data, conversion, out):
            return out
    out_height, out_width = out.shape[1:]
    grid = (-(-out_width * out_height // _CONVERT_THREADS), 1, 1)
    defines = convert_defines(fmt.family, conversion.resize, element_kind(out))
    launchable = kernel("image/convert.cu", "convert_image", packer(ConvertArguments), data.device.index, defines)
    launch_captured_dependent(launchable, grid, _CONVERT_THREADS, 0, *arguments)
    return out


def convert_arguments(data: Tensor, conversion: Conversion, out: Tensor) -> Numbers:
    """The numbers of ConvertArguments, in order."""
    layout, fmt = conversion.layout, conversion.format
    offsets = (*fmt.offsets, 0, 0, 0, 0)[:4]
    sizes = (layout.step, layout.width, layout.height, *conversion.crop, fmt.pixel_bytes)
    image = (data.data_ptr(), *sizes, *offsets, int(layout.big_endian), fmt.channels)
    return (*image, *_affine(conversion.affine), out.data_ptr(), out.shape[2], out.shape[1], element_kind(out))


def normalize(image: Tensor, affine: MeanStd | None, out: Tensor) -> Tensor:
    """Fill `out` (..., C, H, W) with the normalised `image`."""
    plane = image.shape[-2] * image.shape[-1]
    if not image.numel():
        return out
    planes = image.numel() // plane
    grid = (min((plane + 1023) // 1024, 1 << 16), min(planes, 65535), 1)
    defines = convert_defines(PACKED, "nearest", element_kind(out))
    launchable = kernel("image/convert.cu", "normalize_image", packer(NormalizeArguments), image.device.index, defines)
    arguments = (image.data_ptr(), *_affine(affine), out.data_ptr(), planes, plane, image.shape[-3])
    launch_captured_dependent(launchable, grid, _NORMALIZE_THREADS, 0, *arguments)
    return out


def convert_defines(family: int, resize: str, element: int) -> tuple[str, ...]:
    """The constants that convert.cu is compiled with."""
    return (f"FAMILY={family}", f"RESIZE={RESIZE[resize]}", f"ELEMENT={element}", f"THREADS={_CONVERT_THREADS}")


def _affine(affine: MeanStd | None) -> Numbers:
    if affine is None:
        return (0,) * 7
    mean, std = ((*values, *values, *values)[:3] for values in affine)
    return (1, *mean, *std)


def element_kind(out: Tensor) -> int:
    """ElementKind of pixel.cuh."""
    return 0 if out.dtype == uint8 else 1 if out.dtype == float32 else 2 if out.dtype == float16 else 3


def _area_image(arguments: Numbers, data: Tensor, conversion: Conversion, out: Tensor) -> bool:
    """Compute area means of any 8-bit image, with rows summed in shared memory; False if they do not fit."""
    out_height, out_width = out.shape[1:]
    fmt, alignment = conversion.format, data.data_ptr() | conversion.layout.step
    per_block, sums, vector = _area_blocks(fmt, conversion.crop[3], out_width, alignment)
    if not per_block:
        return False
    defines = convert_defines(fmt.family, "area", element_kind(out))
    layout = packer(AreaImageArguments)
    launchable = kernel("image/convert.cu", "area_image", layout, data.device.index, defines)
    grid = (-(-out_width // per_block), out_height, 1)
    launchable.launch(grid, _CONVERT_THREADS, 4 * sums, *arguments, per_block, vector)
    return True


def _area_blocks(fmt: Format, columns: int, out_width: int, alignment: int) -> tuple[int, int, int]:
    """Output columns of a block (0: the source is too wide for shared memory), its sums, and bytes in a load."""
    each = fmt.pixel_bytes if fmt.family == PACKED else 3
    vector = 4 if alignment % 4 == 0 else 1
    wanted = _SUMS - 2 * vector if columns * each < _SUMS * out_width // 2 else _MAX_SUMS - 2 * vector
    per_block = min(_CONVERT_THREADS // fmt.channels, out_width, (wanted // each - 2) * out_width // columns)
    if per_block < 1:
        return 0, 0, 0
    widest = (per_block * columns + out_width - 1) // out_width + 1
    return per_block, widest * each + 2 * vector, vector
