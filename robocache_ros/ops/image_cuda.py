"""The CUDA backend of images: one launch of kernels/image.cu or area.cu, on the current stream."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor, float16, float32, uint8

from robocache_ros.ops.cuda.dependent import launch_captured_dependent
from robocache_ros.ops.cuda.loader import Kernel, kernel
from robocache_ros.ops.image_formats import PACKED, Format

Affine = tuple[tuple[float, ...], tuple[float, ...]]
Numbers = tuple[int | float, ...]

_AFFINE = "i6f"
JOB = "Pq13i4x" + _AFFINE + "P3i"  # Image, padded to its alignment, Affine, out, out_width, out_height, kind
AREA = JOB + "iiIi" * 2 + "i"  # two times Axis of area.cuh, and the columns that a block makes
RESIZE = {"nearest": 0, "bilinear": 1, "area": 2}
_THREADS = 128
AREA_THREADS = 96  # of a block of area.cu
_ROW_SHARES = 65535 // 255  # of an output row: area.cuh sums its bytes in 16 bits
_SUMS, _MAX_SUMS = 1024, 8192  # 32-bit sums in a block's shared memory: usual, two loads a thread; and at most


def convert(
    data: Tensor,
    fmt: Format,
    shape: tuple[int, int, int],
    big_endian: bool,
    crop: tuple[int, int, int, int],
    resize: str,
    affine: Affine | None,
    out: Tensor,
) -> Tensor:
    """Fill `out` (C, H, W) from the bytes; `shape` is (width, height, step), and everything is checked."""
    arguments = packed_job(data, fmt, shape, big_endian, crop, affine, out)
    if resize == "area" and not fmt.is_float and _area(arguments, data, fmt, shape[2], crop, out):
        return out
    out_height, out_width = out.shape[1:]
    grid = (-(-out_width * out_height // _THREADS), 1, 1)
    defines = (f"FAMILY={fmt.family}", f"RESIZE={RESIZE[resize]}")
    launchable = _kernel("convert_image", JOB, data.device.index, defines)
    launch_captured_dependent(launchable, grid, _THREADS, 0, *arguments)
    return out


def packed_job(
    data: Tensor,
    fmt: Format,
    shape: tuple[int, int, int],
    big_endian: bool,
    crop: tuple[int, int, int, int],
    affine: Affine | None,
    out: Tensor,
) -> Numbers:
    """The values of JOB: the structs of image.cuh and what is made of them."""
    width, height, step = shape
    offsets = (*fmt.offsets, 0, 0, 0, 0)[:4]
    image = (data.data_ptr(), step, width, height, *crop, fmt.pixel_bytes, *offsets, int(big_endian), fmt.channels)
    return (*image, *_affine(affine), out.data_ptr(), out.shape[2], out.shape[1], _kind(out))


def normalize(image: Tensor, affine: Affine | None, out: Tensor) -> Tensor:
    """Fill `out` (..., C, H, W) with the normalised `image`."""
    plane = image.shape[-2] * image.shape[-1]
    if not image.numel():
        return out
    planes = image.numel() // plane
    grid = (min((plane + 1023) // 1024, 1 << 16), min(planes, 65535), 1)
    launchable = _kernel("normalize_image", "P" + _AFFINE + "PqqIi", image.device.index, ("FAMILY=0", "RESIZE=0"))
    arguments = (image.data_ptr(), *_affine(affine), out.data_ptr(), planes, plane, image.shape[-3], _kind(out))
    launch_captured_dependent(launchable, grid, 256, 0, *arguments)
    return out


def _kernel(name: str, parameters: str, device: int, defines: tuple[str, ...]) -> Kernel:
    return kernel("image.cu", name, parameters, device, defines)


def _affine(affine: Affine | None) -> Numbers:
    if affine is None:
        return (0,) * 7
    mean, std = ((*values, *values, *values)[:3] for values in affine)
    return (1, *mean, *std)


def _kind(out: Tensor) -> int:
    return 0 if out.dtype == uint8 else 1 if out.dtype == float32 else 2 if out.dtype == float16 else 3


def _area(
    arguments: Numbers, data: Tensor, fmt: Format, step: int, crop: tuple[int, int, int, int], out: Tensor
) -> bool:
    """Launch the kernel that makes area means of such an image, if there is one that does so in shared memory."""
    _, _, rows, columns = crop
    out_height, out_width = out.shape[1:]
    device, alignment = data.device.index, data.data_ptr() | step
    if fmt.family == PACKED and alignment % 16 == 0 and data.numel() < 2**32:
        plan = area_plan(fmt.pixel_bytes, rows, columns, out_height, out_width)
        if plan is not None:
            grid = (-(-out_width // plan.per_block), out_height, 1)
            launchable = kernel("area.cu", "area_packed", AREA, device, area_defines(fmt.pixel_bytes, _kind(out)))
            axes = (*plan.across, *plan.down)
            launch_captured_dependent(launchable, grid, AREA_THREADS, 0, *arguments, *axes, plan.per_block)
            return True
    per_block, sums, vector = _area_blocks(fmt, columns, out_width, alignment)
    if not per_block:
        return False
    defines = (f"FAMILY={fmt.family}", f"RESIZE={RESIZE['area']}")
    launchable = _kernel("area_image", JOB + "2i", device, defines)
    grid = (-(-out_width // per_block), out_height, 1)
    launchable.launch(grid, _THREADS, 4 * sums, *arguments, per_block, vector)
    return True


def area_defines(pixel_bytes: int, kind: int) -> tuple[str, ...]:
    """What area.cu is compiled with."""
    return (f"PIXEL_BYTES={pixel_bytes}", f"KIND={kind}", f"THREADS={AREA_THREADS}")


def _area_blocks(fmt: Format, columns: int, out_width: int, alignment: int) -> tuple[int, int, int]:
    """Output columns a block makes (0: too wide a source for shared memory), its sums, and bytes in a load."""
    each = fmt.pixel_bytes if fmt.family == PACKED else 3
    vector = 4 if alignment % 4 == 0 else 1
    wanted = _SUMS - 2 * vector if columns * each < _SUMS * out_width // 2 else _MAX_SUMS - 2 * vector
    per_block = min(_THREADS // fmt.channels, out_width, (wanted // each - 2) * out_width // columns)
    if per_block < 1:
        return 0, 0, 0
    widest = (per_block * columns + out_width - 1) // out_width + 1
    return per_block, widest * each + 2 * vector, vector


@dataclass(frozen=True)
class AreaPlan:
    """How area.cu goes about an image."""

    across: tuple[int, int, int, int]  # Axis of area.cuh
    down: tuple[int, int, int, int]
    per_block: int  # output columns that a block makes


@lru_cache(maxsize=256)
def area_plan(pixel_bytes: int, rows: int, columns: int, out_height: int, out_width: int) -> AreaPlan | None:
    """The plan for sides of a source, in pixels, and of what it becomes; None where area.cu does not serve them."""
    across, down = _axis(columns, out_width), _axis(rows, out_height)
    if across is None or down is None or down[0] > _ROW_SHARES or across[0] * down[0] > 2**24:
        return None
    widest = (16 * AREA_THREADS - 15) // pixel_bytes - 2  # source columns whose sums a block has room for
    most = min(out_width, 2 * AREA_THREADS // (3 if pixel_bytes > 1 else 1), widest * out_width // columns)
    if most < 1:
        return None
    blocks = -(-out_width // most)
    return AreaPlan(across, down, -(-out_width // blocks))


def _axis(source: int, out: int) -> tuple[int, int, int, int] | None:
    """Axis of area.cuh; None where its divisions would leave 32 bits."""
    common = math.gcd(source, out)
    shares, pixel = source // common, out // common
    if out * shares * pixel >= 2**32:
        return None
    return shares, pixel, -(-(2**32) // pixel) % 2**32, -(-shares // pixel)
