"""The CUDA backend of images: one launch of kernels/image.cu, on the current stream."""

from __future__ import annotations

from torch import Tensor, float16, float32, uint8

from robocache_ros.ops.cuda.loader import Kernel, kernel
from robocache_ros.ops.image_formats import PACKED, Format

Affine = tuple[tuple[float, ...], tuple[float, ...]]
Numbers = tuple[int | float, ...]

_AFFINE = "i6f"
JOB = "Pq13i4x" + _AFFINE + "P3i"  # Image, padded to its alignment, Affine, out, out_width, out_height, kind
RESIZE = {"nearest": 0, "bilinear": 1, "area": 2}
_THREADS = 128
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
    out_height, out_width = out.shape[1:]
    device = data.device.index
    defines = (f"FAMILY={fmt.family}", f"RESIZE={RESIZE[resize]}")
    if resize == "area" and not fmt.is_float:
        per_block, sums, vector = _area_blocks(fmt, crop[3], out_width, data.data_ptr() | shape[2])
        if per_block:
            grid = ((out_width + per_block - 1) // per_block, out_height, 1)
            area = _kernel("area_image", JOB + "2i", device, defines)
            area.launch(grid, _THREADS, 4 * sums, *arguments, per_block, vector)
            return out
    threads = min(_THREADS, (out_width + 31) // 32 * 32)
    grid = ((out_width + threads - 1) // threads, out_height, 1)
    _kernel("convert_image", JOB, device, defines).launch(grid, threads, 0, *arguments)
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
    launchable.launch(grid, 256, 0, *arguments)
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
