"""The options of an image conversion, and the checks that every backend relies on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.checks import check_choice, checked_integers
from robocache_ros.ops.image.formats import MAX_PIXELS, RESIZE, Format, ImageLayout, check_image, image_format
from robocache_ros.ops.tensor_checks import check_dtype
from robocache_ros.spec import IMAGENET

MeanStd = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel
FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """How an image is processed, not checked; the fields are the arguments of `convert_image`."""

    size: Sequence[int] | None = None
    crop: Sequence[int] | None = None
    resize: str = "bilinear"
    normalize: Any = None
    dtype: torch.dtype | None = None


class Conversion(NamedTuple):
    """A checked conversion: every pixel of the source is inside its bytes, and the crop inside the image."""

    layout: ImageLayout
    format: Format
    crop: tuple[int, int, int, int]  # top, left, height, width
    resize: str
    affine: MeanStd | None
    shape: tuple[int, int, int]  # of the result: C, H, W
    dtype: torch.dtype  # of the result


def checked_conversion(nbytes: int, layout: ImageLayout, options: ImageOptions) -> Conversion:
    """The conversion of an image of `nbytes` bytes; errors are those of `convert_image`."""
    fmt = image_format(layout.encoding)
    check_image(fmt, layout.width, layout.height, layout.step, nbytes)
    box = _checked_crop(options.crop, layout.width, layout.height)
    shape = _checked_size(options.size, box)
    check_choice("resize", options.resize, RESIZE)
    affine = mean_std(options.normalize, fmt.channels)
    dtype = _checked_dtype(options.dtype, fmt, affine is not None)
    return Conversion(layout, fmt, box, options.resize, affine, (fmt.channels, *shape), dtype)


def mean_std(normalize: Any, channels: int) -> MeanStd | None:
    """Mean and standard deviation of each channel, from any form that `convert_image` accepts."""
    if normalize is None:
        return None
    if isinstance(normalize, str):
        if normalize != "imagenet":
            raise RoboCacheError(f"normalize: {normalize!r} is not 'imagenet'; use 'imagenet' or (mean, std)")
        given = IMAGENET
    elif isinstance(normalize, Mapping):
        if set(normalize) != {"mean", "std"}:
            raise RoboCacheError(f"normalize: has the keys {sorted(normalize)}; use mean and std")
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
        raise RoboCacheError(
            f"normalize: {len(mean)} means and {len(std)} stds for {channels} channels; give one of each per channel"
        )
    if not all(map(math.isfinite, mean)) or not all(value > 0 and math.isfinite(value) for value in std):
        raise RoboCacheError(f"normalize: expected finite means and stds above 0, got {mean} and {std}")
    return mean, std


def _checked_crop(crop: Sequence[int] | None, width: int, height: int) -> tuple[int, int, int, int]:
    """The crop, or the full image; raises RoboCacheError where the crop leaves the image."""
    if crop is None:
        return 0, 0, height, width
    top, left, rows, columns = checked_integers("crop", crop, ("top", "left", "height", "width"))
    inside = top >= 0 and left >= 0 and top + rows <= height and left + columns <= width
    if not inside or rows < 1 or columns < 1:
        form = "(top, left, height, width)"
        raise RoboCacheError(
            f"crop: {form} = {tuple(crop)} is not inside an image of {height} x {width}; make it smaller"
        )
    return top, left, rows, columns


def _checked_size(size: Sequence[int] | None, box: tuple[int, int, int, int]) -> tuple[int, int]:
    """Height and width of the result, the crop's own where none is given."""
    rows, columns = box[2:] if size is None else checked_integers("size", size, ("height", "width"))
    if not (1 <= rows <= MAX_PIXELS and 1 <= columns <= MAX_PIXELS):
        raise RoboCacheError(f"size: (height, width) = ({rows}, {columns}) is not in 1..{MAX_PIXELS}; choose another")
    return rows, columns


def _checked_dtype(dtype: torch.dtype | None, fmt: Format, normalized: bool) -> torch.dtype:
    """The dtype of the result; raises RoboCacheError where it cannot hold the values."""
    check_dtype(dtype)
    if dtype is None:
        return torch.float32 if normalized or fmt.is_float else torch.uint8
    if dtype == torch.uint8 and (normalized or fmt.is_float):
        raise RoboCacheError(f"dtype: uint8 cannot hold {'normalised' if normalized else fmt.name} values; use float32")
    if dtype != torch.uint8 and dtype not in FLOAT_DTYPES:
        raise RoboCacheError(f"dtype: {dtype} is not one of uint8, float32, float16, bfloat16")
    return dtype
