"""Camera images: from the bytes of a message to a (C, H, W) tensor, in one pass, with the same bits on CPU and GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.checks import checked_sizes
from robocache_ros.ops.image import cpu as image_cpu
from robocache_ros.ops.image.conversion import (
    FLOAT_DTYPES,
    ImageOptions,
    checked_conversion,
    mean_std,
)
from robocache_ros.ops.image.formats import ImageLayout
from robocache_ros.ops.tensor_checks import check_bytes, check_dtype, check_tensor, checked_out, described


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
        from robocache_ros.ops.image.cuda import convert as image_cuda

        return image_cuda.convert(data, conversion, out)
    return image_cpu.convert(data, conversion, out)


def channels_last_layout(data: Tensor, layout: ImageLayout, options: ImageOptions) -> Tensor:
    """`convert_layout` to a tensor in torch's channels_last memory format, the order of the pixels in most messages.

    The result is a view of `data` if the image needs no conversion. Floats are contiguous, as by `convert_layout`.
    """
    conversion = checked_conversion(data.numel(), layout, options)
    if data.is_cuda or conversion.dtype != torch.uint8:
        return convert_layout(data, layout, options)
    return image_cpu.channels_last(data, conversion)


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
        from robocache_ros.ops.image.cuda import convert as image_cuda

        return image_cuda.normalize(image, affine, out)
    return image_cpu.normalize(image, affine, out)
