"""Convert images to tensors. The CPU backend is here; `cuda` launches the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.checks import checked_sizes
from robocache_ros.ops.image.conversion import (
    FLOAT_DTYPES,
    Conversion,
    ImageOptions,
    MeanStd,
    checked_conversion,
    mean_std,
)
from robocache_ros.ops.image.formats import BAYER, F32, NV12, PACKED, U16, Format, ImageLayout
from robocache_ros.ops.tensor_checks import check_bytes, check_dtype, check_tensor, checked_out, described

# The CPU backend of images: bytes -> RGB uint8 (or float32 depth) -> crop -> resize -> normalise, in NumPy and torch.
#
# Arithmetic on uint8 is in integers, so that any order of the operations gives the same bits. YUV (BT.601, 20
# fractional bits) and Bayer (bilinear averages) equal OpenCV's bits, except for Bayer's border, which is mirrored
# here. Bilinear weights have 11 fractional bits and are applied with one rounding, which is within one level of
# OpenCV's. An area mean is exact, rounded half up. Depth (float32) is interpolated with each operation rounded; its
# area mean is summed in float64, rows first.

U8 = NDArray[np.uint8]
Array = NDArray[Any]  # (H, W, C) uint8 or float32

WEIGHT_BITS = 11
MAX_SERIAL_ELEMENTS = 32768  # elements up to which torch computes in the calling thread
# BT.601, limited range, times 2**20: of Y, of V for R, of U and V for G, of U for B.
CY, CVR, CUG, CVG, CUB = 1220542, 1673527, -409993, -852492, 2116026


def convert_on_cpu(data: Tensor, conversion: Conversion, out: Tensor) -> Tensor:
    """Fill `out` (C, H, W) from the bytes."""
    pixels = _pixels(data, conversion)
    return normalize_on_cpu(torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), conversion.affine, out)


def channels_last(data: Tensor, conversion: Conversion) -> Tensor:
    """(C, H, W) in memory as (H, W, C): a view of the bytes if they are stored so. For uint8, not normalised."""
    return torch.from_numpy(np.ascontiguousarray(_pixels(data, conversion))).permute(2, 0, 1)


def _pixels(data: Tensor, conversion: Conversion) -> Array:
    """Decode, crop and resize."""
    pixels = decode_pixels(data.numpy(), conversion.format, conversion.layout)
    top, left, rows, columns = conversion.crop
    return resize_pixels(pixels[top : top + rows, left : left + columns], conversion.shape[1:], conversion.resize)


def normalize_on_cpu(planes: Tensor, affine: MeanStd | None, out: Tensor) -> Tensor:
    """Fill `out` with (..., C, H, W) planes, normalised if `out` is a float tensor."""
    if planes.dtype == out.dtype == torch.uint8:
        return out.copy_(planes)
    if planes.dtype == torch.uint8 and planes.ndim == 3 and out.is_contiguous():
        return _normalize_image(planes, affine, out)
    value = planes
    if planes.dtype == torch.uint8:
        # Divisors are tensors: torch may divide by a Python number as a product with its reciprocal.
        value = planes.to(torch.float32).div_(torch.tensor(255, dtype=torch.float32).expand(1))
    if affine is not None:
        mean, std = (torch.tensor(values, dtype=torch.float32).view(-1, 1, 1) for values in affine)
        value = (value - mean).div_(std)
    out.copy_(value)
    if planes.dtype != torch.uint8:  # any NaN becomes the canonical NaN, because processors produce different ones
        out.masked_fill_(value != value, torch.nan)
    return out


def _normalize_image(image: Tensor, affine: MeanStd | None, out: Tensor) -> Tensor:
    """The same for one uint8 image, in this thread: to wake torch's other threads costs more than the image."""
    target = out.numpy() if out.dtype == torch.float32 else np.empty(image.shape, np.float32)
    np.divide(image.numpy(), np.float32(255), out=target, dtype=np.float32)
    if affine is not None:
        mean, std = (np.array(values, np.float32).reshape(-1, 1, 1) for values in affine)
        np.subtract(target, mean, out=target)
        np.divide(target, std, out=target)
    if out.dtype != torch.float32:
        values = torch.from_numpy(target)
        for part, rounded in zip(
            torch.split(values.view(-1), MAX_SERIAL_ELEMENTS),
            torch.split(out.view(-1), MAX_SERIAL_ELEMENTS),
            strict=True,
        ):
            rounded.copy_(part)
    return out


def decode_pixels(data: U8, fmt: Format, layout: ImageLayout) -> Array:
    """(H, W, C): RGB or grey uint8, or float32; a view of `data` where the encoding allows."""
    width, height, step = layout.width, layout.height, layout.step
    if fmt.family == PACKED:
        packed: U8 = np.ndarray((height, width, fmt.pixel_bytes), np.uint8, data, strides=(step, fmt.pixel_bytes, 1))
        first, stride = fmt.offsets[0], fmt.offsets[1] - fmt.offsets[0] if len(fmt.offsets) > 1 else 1
        return packed[..., first::stride][..., : fmt.channels]
    if fmt.family in (U16, F32):
        kind = np.dtype(np.uint16 if fmt.family == U16 else np.float32).newbyteorder(">" if layout.big_endian else "<")
        raw: Array = np.ndarray((height, width, 1), kind, data, strides=(step, fmt.pixel_bytes, fmt.pixel_bytes))
        return np.asarray(raw, np.float32)
    if fmt.family == BAYER:
        return _demosaic(np.ndarray((height, width), np.uint8, data, strides=(step, 1)), *fmt.offsets)
    luma, u, v = _yuv(data, fmt, width, height, step)
    return _bt601(luma, u, v)


def _yuv(data: U8, fmt: Format, width: int, height: int, step: int) -> tuple[U8, U8, U8]:
    """Y (H, W), and U and V at half the width (and height, for nv12)."""
    if fmt.family == NV12:
        chroma = np.ndarray((height // 2, width // 2, 2), np.uint8, data, step * height, (step, 2, 1))
        return np.ndarray((height, width), np.uint8, data, strides=(step, 1)), chroma[..., 0], chroma[..., 1]
    pairs = np.ndarray((height, width // 2, 4), np.uint8, data, strides=(step, 4, 1))
    y0, u, y1, v = fmt.offsets
    return np.stack((pairs[..., y0], pairs[..., y1]), axis=-1).reshape(height, width), pairs[..., u], pairs[..., v]


def _bt601(luma: U8, u: U8, v: U8) -> U8:
    y = np.maximum(luma.astype(np.int32) - 16, 0) * CY
    cu, cv = (u.astype(np.int32) - 128, v.astype(np.int32) - 128)
    rgb = np.empty((*y.shape, 3), np.uint8)
    for channel, chroma in enumerate((CVR * cv, CVG * cv + CUG * cu, CUB * cu)):
        for axis in range(2):
            chroma = np.repeat(chroma, y.shape[axis] // chroma.shape[axis], axis=axis)
        rgb[..., channel] = np.clip((y + (chroma + (1 << 19))) >> 20, 0, 255)
    return rgb


def _demosaic(raw: U8, red_x: int, red_y: int) -> U8:
    """Bilinear: each missing colour is the rounded mean of its two or four nearest; mirrored at the border."""
    height, width = raw.shape
    red: Array
    green: Array
    blue: Array
    p: Array = np.pad(raw, 1, mode="reflect").astype(np.uint16)
    up, down, left, right = p[:-2, 1:-1], p[2:, 1:-1], p[1:-1, :-2], p[1:-1, 2:]
    here = p[1:-1, 1:-1]
    horizontal, above = (left + right + 1) >> 1, (up + down + 1) >> 1
    cross = (left + right + up + down + 2) >> 2
    corners = (p[:-2, :-2] + p[:-2, 2:] + p[2:, :-2] + p[2:, 2:] + 2) >> 2
    rgb = np.empty((height, width, 3), np.uint8)
    for y in range(2):
        for x in range(2):
            at = (slice(y, None, 2), slice(x, None, 2))
            in_red_row, in_red_column = y == red_y, x == red_x
            if in_red_row == in_red_column:  # on a red or a blue pixel
                red, green, blue = (here if in_red_row else corners), cross, (corners if in_red_row else here)
            else:
                red, green, blue = (horizontal if in_red_row else above), here, (above if in_red_row else horizontal)
            for channel, plane in enumerate((red, green, blue)):
                rgb[..., channel][at] = plane[at]
    return rgb


def resize_pixels(image: Array, size: tuple[int, int], method: str) -> Array:
    """(H, W, C) -> (*size, C) of the same dtype; pixel centres at half integers."""
    if size == image.shape[:2]:
        return image
    if method == "nearest":
        return image[nearest_taps(image.shape[0], size[0])[:, None], nearest_taps(image.shape[1], size[1])]
    if method == "area":
        return _area_u8(image, size) if image.dtype == np.uint8 else _area_f32(image, size)
    return _bilinear_u8(image, size) if image.dtype == np.uint8 else _bilinear_f32(image, size)


def nearest_taps(size: int, out: int) -> NDArray[np.int64]:
    """Source index of each output index: floor((i + 1/2) * size / out)."""
    return (2 * np.arange(out, dtype=np.int64) + 1) * size // (2 * out)


def bilinear_taps(size: int, out: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Lower and upper source index and the remainder, the share of the upper one being remainder / (2 * out)."""
    position = np.maximum((2 * np.arange(out, dtype=np.int64) + 1) * size - out, 0)
    lower = position // (2 * out)
    return lower, np.minimum(lower + 1, size - 1), position - lower * 2 * out


def _bilinear_u8(image: Array, size: tuple[int, int]) -> Array:
    y0, y1, wy = _fixed_taps(image.shape[0], size[0])
    x0, x1, wx = _fixed_taps(image.shape[1], size[1])
    if image.shape[1] > 2 * size[1]:  # most columns are not read: select columns first
        top, bottom = image[y0], image[y1]
        left = _blend(top.take(x0, 1), bottom.take(x0, 1), wy[:, None, None])
        right = _blend(top.take(x1, 1), bottom.take(x1, 1), wy[:, None, None])
    else:
        rows = _blend(image[y0], image[y1], wy[:, None, None])
        left, right = rows[:, x0], rows[:, x1]
    total = _blend(left, right, wx[:, None])
    total += 1 << (2 * WEIGHT_BITS - 1)
    total >>= 2 * WEIGHT_BITS
    return total.astype(np.uint8)


def _fixed_taps(size: int, out: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    lower, upper, remainder = bilinear_taps(size, out)
    return lower, upper, (((remainder << WEIGHT_BITS) + out) // (2 * out)).astype(np.int32)


def _blend(lower: Array, upper: Array, weight: NDArray[np.int32]) -> NDArray[np.int32]:
    total = lower.astype(np.int32)
    total *= (1 << WEIGHT_BITS) - weight
    other = upper.astype(np.int32)
    other *= weight
    total += other
    return total


def _bilinear_f32(image: Array, size: tuple[int, int]) -> Array:
    y0, y1, ry = bilinear_taps(image.shape[0], size[0])
    x0, x1, rx = bilinear_taps(image.shape[1], size[1])
    wy = ry.astype(np.float32) / np.float32(2 * size[0])
    wx = rx.astype(np.float32) / np.float32(2 * size[1])
    with np.errstate(invalid="ignore", over="ignore"):
        rows = _lerp(image[y0], image[y1], wy[:, None, None])
        return _lerp(rows[:, x0], rows[:, x1], wx[:, None])


def _lerp(lower: Array, upper: Array, weight: NDArray[np.float32]) -> Array:
    """The lower value itself where the weight is 0, so that a NaN next to it does not spread."""
    return np.where(weight == 0, lower, lower + weight * (upper - lower))


def area_taps(size: int, out: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(out, K) source indices and overlaps, in 1/out of a source pixel; those of a row sum to `size`."""
    start = np.arange(out, dtype=np.int64)[:, None] * size
    first = start // out
    index = first + np.arange(int(((start + size - 1) // out - first).max()) + 1)
    overlap = np.minimum((index + 1) * out, start + size) - np.maximum(index * out, start)
    return np.minimum(index, size - 1), np.maximum(overlap, 0)


def _area_u8(image: Array, size: tuple[int, int]) -> Array:
    """Differences of running sums: one pass over the image at any factor.

    This needs integers: differences of running float sums would round, so float32 images are added in a fixed order.
    """
    pixels = image.shape[0] * image.shape[1]
    kind = np.uint32 if 255 * pixels < 2**32 - pixels else np.uint64  # running sums may wrap, their differences do not
    total: Any = _box_sums(_box_sums(image.astype(kind), 0, size[0]), 1, size[1])
    return np.asarray((total + kind(pixels // 2)) // kind(pixels), np.uint8)


def _box_sums(values: Array, axis: int, out: int) -> Array:
    length = values.shape[axis]
    edges = np.arange(out + 1, dtype=np.int64) * length
    whole, part = edges // out, edges % out
    shape = [1, 1, 1]
    shape[axis] = out + 1
    running = np.cumsum(values, axis=axis, dtype=values.dtype)
    before = np.take(running, np.maximum(whole - 1, 0), axis=axis) * values.dtype.type(out)
    before *= (whole > 0).astype(values.dtype).reshape(shape)
    before += np.take(values, np.minimum(whole, length - 1), axis=axis) * part.astype(values.dtype).reshape(shape)
    return np.asarray(np.diff(before, axis=axis))


def _area_f32(image: Array, size: tuple[int, int]) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        total = image.astype(np.float64)
        for axis in range(2):
            index, overlap = area_taps(total.shape[axis], size[axis])
            shape = [1, 1, 1]
            shape[axis] = -1
            summed = np.zeros([size[a] if a == axis else n for a, n in enumerate(total.shape)])
            for k in range(index.shape[1]):
                weight = overlap[:, k].reshape(shape)
                summed += np.where(weight > 0, weight * np.take(total, index[:, k], axis=axis), 0)
            total = summed
        return np.asarray(total / (image.shape[0] * image.shape[1]), np.float32)


def convert_image(
    data: Tensor,
    *,
    encoding: str,
    width: int,
    height: int,
    step: int,
    big_endian: bool = False,
    size: tuple[int, int] | None = None,
    crop: tuple[int, int, int, int] | None = None,
    resize: str = "bilinear",
    normalize: Any = None,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Convert, crop, resize and normalise an image straight from the bytes of its message.

    bytes -> RGB (grey) uint8 -> crop -> resize, rounded to uint8 -> x / 255 -> (x - mean) / std in float32 -> rounded
    once to `dtype`. A dataset of the uint8 images, normalised later by `normalize_image`, gives the same bits. mono16,
    16UC1 and 32FC1 are float32 in the message's units throughout; normalising them is (x - mean) / std.

    Args:
        data: (nbytes,) uint8, contiguous, on the CPU or a CUDA device, at any alignment.
        encoding: rgb8, bgr8, rgba8, bgra8, mono8, mono16, 16UC1, 32FC1, yuv422 (= uyvy), yuv422_yuy2 (= yuyv), nv12
            (its chroma rows follow the `height` rows of luma, with the same step), bayer_{rggb,bggr,gbrg,grbg}8.
        width: pixels in a row.
        height: rows.
        step: bytes from a row to the next.
        big_endian: byte order of 16- and 32-bit encodings.
        size: (H, W) of the result; None: that of the crop.
        crop: (top, left, height, width) in source pixels.
        resize: bilinear (without antialiasing, like OpenCV's), nearest, or area (the exact mean of the source's area;
            recommended when shrinking a lot). For depth use nearest: a mean invents surfaces between edges.
        normalize: None, "imagenet", (mean, std) with a value for each channel, or a mapping or an object with both.
        dtype: uint8 (of 8-bit encodings), float32, float16 or bfloat16. By default float32 if `normalize` is given
            or the encoding is not an 8-bit one, else uint8.
        out: (C, H, W) contiguous, on `data`'s device, written and returned.

    Returns:
        (C, H, W); C is 3 for colour and 1 for grey and depth.

    Raises:
        RoboCacheError: an unknown encoding, bytes too few for it, a crop outside, a wrong dtype or `out`.
    """
    width, height, step = checked_sizes(width=width, height=height, step=step)
    layout = ImageLayout(encoding, width, height, step, big_endian)
    return convert_layout(data, layout, ImageOptions(size, crop, resize, normalize, dtype), out)


def convert_layout(data: Tensor, layout: ImageLayout, options: ImageOptions, out: Tensor | None = None) -> Tensor:
    """`convert_image` of bytes whose layout is an object, with its options as one."""
    check_bytes("data", data)
    conversion = checked_conversion(data.numel(), layout, options)
    out = checked_out(out, conversion.shape, conversion.dtype, data.device)
    if data.is_cuda:
        from robocache_ros.ops.image import cuda as image_cuda

        return image_cuda.convert(data, conversion, out)
    return convert_on_cpu(data, conversion, out)


def channels_last_layout(data: Tensor, layout: ImageLayout, options: ImageOptions) -> Tensor:
    """`convert_layout` to a tensor in torch's channels_last memory format, the order of the pixels in most messages.

    The result is a view of `data` if the image needs no conversion. Floats are contiguous, as by `convert_layout`.
    """
    conversion = checked_conversion(data.numel(), layout, options)
    if data.is_cuda or conversion.dtype != torch.uint8:
        return convert_layout(data, layout, options)
    return channels_last(data, conversion)


def normalize_image(image: Tensor, normalize: Any = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normalise uint8 images as a policy sees them: (x / 255 - mean) / std in float32, rounded once to `dtype`.

    Args:
        image: (..., C, H, W) uint8, contiguous.
        normalize: as in `convert_image`; None: x / 255 only.
        dtype: float32, float16 or bfloat16.

    Returns:
        (..., C, H, W) of `dtype` on the same device, the same bits as `convert_image` gives with `normalize`.

    Raises:
        RoboCacheError: not uint8, not contiguous, fewer than three dimensions or another `dtype`.
    """
    check_tensor("image", image)
    if image.dtype != torch.uint8 or image.ndim < 3 or not image.is_contiguous():
        raise RoboCacheError(f"image: expected contiguous (..., C, H, W) uint8, got {described(image)}")
    check_dtype(dtype)
    if dtype not in FLOAT_DTYPES:
        raise RoboCacheError(f"dtype: {dtype} is not one of float32, float16, bfloat16")
    affine = mean_std(normalize, image.shape[-3])
    out = torch.empty(image.shape, dtype=dtype, device=image.device)
    if image.is_cuda:
        from robocache_ros.ops.image import cuda as image_cuda

        return image_cuda.normalize(image, affine, out)
    return normalize_on_cpu(image, affine, out)
