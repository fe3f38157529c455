"""Checks of tensors, dtypes and methods. Each error names the argument, the expected value and the given one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robocache_ros.alignments import NAMES, alignment
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.checks import check_choice

BLEND_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_tensor(name: str, value: Any) -> None:
    """Raise RoboCacheError if `value` is not a dense tensor in host memory or on a CUDA device."""
    if not isinstance(value, Tensor):
        raise RoboCacheError(
            f"{name}: expected a tensor, got {type(value).__name__}; convert an array or a list with torch.as_tensor"
        )
    if value.layout != torch.strided or value.device.type not in ("cpu", "cuda"):
        raise RoboCacheError(
            f"{name}: expected a dense tensor on the CPU or a CUDA device, got {value.layout} on {value.device}"
        )


def check_bytes(name: str, data: Any) -> None:
    """Raise RoboCacheError if `data` is not a contiguous (nbytes,) uint8 tensor."""
    check_tensor(name, data)
    if data.dtype != torch.uint8 or data.ndim != 1 or not data.is_contiguous():
        raise RoboCacheError(f"{name}: expected contiguous (nbytes,) uint8, got {described(data)}")


def checked_out(out: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`out`, or an uninitialised new tensor where `out` is None."""
    if out is None:
        return torch.empty(shape, dtype=dtype, device=device)
    check_tensor("out", out)
    if out.shape != shape or out.dtype != dtype or out.device != device or not out.is_contiguous():
        raise RoboCacheError(f"out: expected contiguous {shape} {dtype} on {device}, got {described(out)}")
    found: Tensor = out
    return found


def described(tensor: Tensor) -> str:
    """Strides, shape, dtype and device of a tensor, for an error message."""
    contiguous = "contiguous" if tensor.is_contiguous() else "strided"
    return f"{contiguous} {tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"


def check_dtype(dtype: Any) -> None:
    """Raise RoboCacheError if `dtype` is neither None nor a torch.dtype."""
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise RoboCacheError(f"dtype: expected a torch.dtype such as torch.float32, got {dtype!r}")


def check_method(method: str) -> None:
    """Raise RoboCacheError if `method` is not an alignment's name."""
    check_choice("method", method, NAMES)


def check_source(name: str, source: Tensor, method: str, dims: int) -> None:
    """Raise RoboCacheError if the method does not support the shape or dtype of a source."""
    check_tensor(name, source)
    if source.dim() != dims:
        raise RoboCacheError(f"{name}: expected {dims} dimensions, got shape {tuple(source.shape)}")
    if source.dtype not in BLEND_DTYPES and not (source.dtype == torch.uint8 and not alignment(method).blends):
        raise RoboCacheError(
            f"{name}: dtype {source.dtype} cannot be aligned by {method}; use float32, float16 or bfloat16, "
            f"or uint8 with {', '.join(name for name in NAMES if not alignment(name).blends)}"
        )
    group, values = alignment(method).group, alignment(method).values
    if source.shape[-1] % group:
        raise RoboCacheError(
            f"{name}: {source.shape[-1]} columns, and {method} is for {values} of {group} columns each; use linear"
        )
