"""Launches of kernels/image/convert.cu."""

from __future__ import annotations

from torch import Tensor, float16, float32, uint8

from robocache_ros.ops.cuda.dependent_launch import launch_captured_dependent
from robocache_ros.ops.cuda.loader import kernel
from robocache_ros.ops.cuda.structures import packer
from robocache_ros.ops.image.conversion import Affine, Conversion
from robocache_ros.ops.image.cuda.area import convert_area
from robocache_ros.ops.image.cuda.arguments import AreaImageArguments, ConvertArguments, NormalizeArguments
from robocache_ros.ops.image.formats import PACKED, RESIZE, Format

Numbers = tuple[int | float, ...]

_THREADS = 128  # of a block
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
    grid = (-(-out_width * out_height // _THREADS), 1, 1)
    defines = convert_defines(fmt.family, conversion.resize, element_kind(out))
    launchable = kernel("image/convert.cu", "convert_image", packer(ConvertArguments), data.device.index, defines)
    launch_captured_dependent(launchable, grid, _THREADS, 0, *arguments)
    return out


def convert_arguments(data: Tensor, conversion: Conversion, out: Tensor) -> Numbers:
    """The numbers of ConvertArguments, in order."""
    layout, fmt = conversion.layout, conversion.format
    offsets = (*fmt.offsets, 0, 0, 0, 0)[:4]
    sizes = (layout.step, layout.width, layout.height, *conversion.crop, fmt.pixel_bytes)
    image = (data.data_ptr(), *sizes, *offsets, int(layout.big_endian), fmt.channels)
    return (*image, *_affine(conversion.affine), out.data_ptr(), out.shape[2], out.shape[1], element_kind(out))


def normalize(image: Tensor, affine: Affine | None, out: Tensor) -> Tensor:
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
    return (f"FAMILY={family}", f"RESIZE={RESIZE[resize]}", f"ELEMENT={element}", f"THREADS={_THREADS}")


def _affine(affine: Affine | None) -> Numbers:
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
    launchable.launch(grid, _THREADS, 4 * sums, *arguments, per_block, vector)
    return True


def _area_blocks(fmt: Format, columns: int, out_width: int, alignment: int) -> tuple[int, int, int]:
    """Output columns of a block (0: the source is too wide for shared memory), its sums, and bytes in a load."""
    each = fmt.pixel_bytes if fmt.family == PACKED else 3
    vector = 4 if alignment % 4 == 0 else 1
    wanted = _SUMS - 2 * vector if columns * each < _SUMS * out_width // 2 else _MAX_SUMS - 2 * vector
    per_block = min(_THREADS // fmt.channels, out_width, (wanted // each - 2) * out_width // columns)
    if per_block < 1:
        return 0, 0, 0
    widest = (per_block * columns + out_width - 1) // out_width + 1
    return per_block, widest * each + 2 * vector, vector
