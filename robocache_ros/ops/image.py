"""Camera images: the bytes of a message to a (C, H, W) tensor, in one pass and with the same bits on CPU and GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops import image_cpu
from robocache_ros.ops.checks import (
    check_bytes,
    check_choice,
    check_dtype,
    check_tensor,
    checked_out,
    checked_sizes,
    checked_wholes,
    described,
)
from robocache_ros.ops.image_formats import MAX_PIXELS, Format, check_image, image_format
from robocache_ros.spec import IMAGENET

RESIZE_METHODS = ("bilinear", "nearest", "area")
Affine = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel
FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


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
    once to `dtype`. A dataset of the uint8 images, normalised later by `normalize_image`, thus gives the very same
    bits. mono16, 16UC1 and 32FC1 stay float32 in the message's units throughout; normalising them is (x - mean) / std.

    Args:
        data: (nbytes,) uint8, contiguous, on the CPU or a CUDA device, at any alignment.
        encoding: rgb8, bgr8, rgba8, bgra8, mono8, mono16, 16UC1, 32FC1, yuv422 (= uyvy), yuv422_yuy2 (= yuyv), nv12
            (its chroma rows follow the `height` rows of luma, with the same step), bayer_{rggb,bggr,gbrg,grbg}8.
        width: pixels in a row.
        height: rows.
        step: bytes from a row to the next.
        big_endian: byte order of 16- and 32-bit encodings.
        size: (H, W) of the result; the crop's own where None.
        crop: (top, left, height, width) in source pixels.
        resize: bilinear (without antialiasing, like OpenCV's), nearest, or area (the exact mean of the source's area;
            the one to take when shrinking a lot). Depth has edges that a mean would invent surfaces between: nearest.
        normalize: None, "imagenet", (mean, std) with a value for each channel, or a mapping or an object with those.
        dtype: uint8 (of 8-bit encodings), float32, float16 or bfloat16. By default float32 where `normalize` is given
            or the encoding is not an 8-bit one, else uint8.
        out: (C, H, W) contiguous, on `data`'s device, written and returned.

    Returns:
        (C, H, W); C is 3 for colour and 1 for grey and depth.

    Raises:
        RoboCacheError: an unknown encoding, bytes too few for it, a crop outside, a wrong dtype or `out`.
    """
    fmt = image_format(encoding)
    check_bytes("data", data)
    width, height, step = checked_sizes(width=width, height=height, step=step)
    check_image(fmt, width, height, step, data.numel())
    box = checked_crop(crop, width, height)
    shape = checked_size(size, box)
    check_choice("resize", resize, RESIZE_METHODS)
    affine = mean_std(normalize, fmt.channels)
    dtype = checked_dtype(dtype, fmt, affine is not None)
    out = checked_out(out, (fmt.channels, *shape), dtype, data.device)
    backend = _convert_cpu
    if data.is_cuda:
        from robocache_ros.ops import image_cuda

        backend = image_cuda.convert
    return backend(data, fmt, (width, height, step), big_endian, box, resize, affine, out)


def normalize_image(image: Tensor, normalize: Any = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Turn uint8 images into what a policy sees: (x / 255 - mean) / std in float32, rounded once to `dtype`.

    Args:
        image: (..., C, H, W) uint8, contiguous.
        normalize: as in `convert_image`; None leaves x / 255.
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
        from robocache_ros.ops import image_cuda

        return image_cuda.normalize(image, affine, out)
    return _finish(image, affine, out)


def mean_std(normalize: Any, channels: int) -> Affine | None:
    """Mean and standard deviation of each channel, from any form `convert_image` takes."""
    if normalize is None:
        return None
    if isinstance(normalize, str):
        if normalize != "imagenet":
            raise RoboCacheError(f"normalize: {normalize!r} is not 'imagenet'; or give mean and std")
        given = IMAGENET
    elif isinstance(normalize, Mapping):
        if set(normalize) != {"mean", "std"}:
            raise RoboCacheError(f"normalize: has the keys {sorted(normalize)}; give mean and std")
        given = normalize["mean"], normalize["std"]
    elif hasattr(normalize, "mean") and hasattr(normalize, "std") and not isinstance(normalize, Tensor | np.ndarray):
        given = normalize.mean, normalize.std
    else:
        given = normalize
    try:
        mean, std = (tuple(map(float, values)) for values in given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RoboCacheError(
            f"normalize: {normalize!r} is not the mean and the std of each channel: {error}"
        ) from error
    if len(mean) != channels or len(std) != channels:
        raise RoboCacheError(f"normalize: {len(mean)} means and {len(std)} stds for an image of {channels} channels")
    if not all(map(math.isfinite, mean)) or not all(value > 0 and math.isfinite(value) for value in std):
        raise RoboCacheError(f"normalize: expected finite means and stds above 0, got {mean} and {std}")
    return mean, std


def _convert_cpu(
    data: Tensor,
    fmt: Format,
    shape: tuple[int, int, int],
    big_endian: bool,
    crop: tuple[int, int, int, int],
    resize: str,
    affine: Affine | None,
    out: Tensor,
) -> Tensor:
    pixels = image_cpu.decode(data.numpy(), fmt, *shape, big_endian)
    top, left, rows, columns = crop
    pixels = image_cpu.resize(pixels[top : top + rows, left : left + columns], (out.shape[1], out.shape[2]), resize)
    return _finish(torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), affine, out)


def _finish(planes: Tensor, affine: Affine | None, out: Tensor) -> Tensor:
    """Write (..., C, H, W) planes, normalised if `out` is a float tensor, into `out`."""
    if planes.dtype == out.dtype == torch.uint8:
        return out.copy_(planes)
    value = planes
    if planes.dtype == torch.uint8:
        # Divisors are tensors: a division by a Python number may be done as a product with its reciprocal.
        value = planes.to(torch.float32).div_(torch.tensor(255, dtype=torch.float32).expand(1))
    if affine is not None:
        mean, std = (torch.tensor(values, dtype=torch.float32).view(-1, 1, 1) for values in affine)
        value = (value - mean).div_(std)
    out.copy_(value)
    if planes.dtype != torch.uint8:  # any NaN to the one canonical NaN, for processors differ in the one they make
        out.masked_fill_(value != value, torch.nan)
    return out


def checked_crop(crop: Sequence[int] | None, width: int, height: int) -> tuple[int, int, int, int]:
    """The crop, or the whole image; raises RoboCacheError where it leaves the image."""
    if crop is None:
        return 0, 0, height, width
    top, left, rows, columns = checked_wholes("crop", crop, ("top", "left", "height", "width"))
    inside = top >= 0 and left >= 0 and top + rows <= height and left + columns <= width
    if not inside or rows < 1 or columns < 1:
        form = "(top, left, height, width)"
        raise RoboCacheError(f"crop: {form} = {tuple(crop)} does not lie in an image of {height} x {width}")
    return top, left, rows, columns


def checked_size(size: Sequence[int] | None, box: tuple[int, int, int, int]) -> tuple[int, int]:
    """Height and width of the result, the crop's own where none is given."""
    rows, columns = box[2:] if size is None else checked_wholes("size", size, ("height", "width"))
    if not (1 <= rows <= MAX_PIXELS and 1 <= columns <= MAX_PIXELS):
        raise RoboCacheError(f"size: (height, width) = ({rows}, {columns}) is not in 1..{MAX_PIXELS}")
    return rows, columns


def checked_dtype(dtype: torch.dtype | None, fmt: Format, normalized: bool) -> torch.dtype:
    """The type of the result; raises RoboCacheError where its values cannot be held."""
    check_dtype(dtype)
    if dtype is None:
        return torch.float32 if normalized or fmt.is_float else torch.uint8
    if dtype == torch.uint8 and (normalized or fmt.is_float):
        raise RoboCacheError(f"dtype: uint8 holds no {'normalised' if normalized else fmt.name} values; take float32")
    if dtype != torch.uint8 and dtype not in FLOAT_DTYPES:
        raise RoboCacheError(f"dtype: {dtype} is not one of uint8, float32, float16, bfloat16")
    return dtype
