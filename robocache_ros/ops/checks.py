"""What a method of alignment can take."""

from __future__ import annotations

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.arithmetic import ARITHMETIC, METHODS

BLEND_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_method(method: str) -> None:
    """Refuse a method that is not one of the five."""
    if method not in METHODS:
        raise RoboCacheError(f"method: {method!r} is not one of {', '.join(METHODS)}")


def check_source(name: str, source: Tensor, method: str, dims: int) -> None:
    """Refuse a source whose shape or dtype the method cannot take."""
    if source.dim() != dims:
        raise RoboCacheError(f"{name}: expected {dims} dimensions, got shape {tuple(source.shape)}")
    if source.dtype not in BLEND_DTYPES and not (source.dtype == torch.uint8 and method not in ARITHMETIC):
        raise RoboCacheError(
            f"{name}: dtype {source.dtype} cannot be aligned by {method}; float32, float16 and bfloat16 can, "
            f"and uint8 by hold and nearest"
        )
    if method == "slerp" and source.shape[-1] % 4:
        raise RoboCacheError(f"{name}: slerp takes quaternions, four columns each, got {source.shape[-1]} columns")
